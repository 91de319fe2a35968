"""A fleet in virtual time: pods as models, requests as events, and the gateway's own code between them.

What decides is what decides in a gateway: `gateway.decision.Decider` over the pod table, the index and the scorers, fed
by the same events, polls and answers. What is modelled is what a gateway sees of pods: `engine` (steps, queues,
preemption), `tiers` (what is cached where), `links` (pulls). There is no I/O, and no time but the clock's.
"""
