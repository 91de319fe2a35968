"""`p2p-gateway check`: whether the pods of a configuration can pull from each other, and what to change where not.

finding  a line of the answer, their order, the exit code: pure
told     what a rank's events tell of a prompt and of its tiers: pure
facts    what was seen of a pod
judge    facts of one pod → findings: pure
compare  facts of several → findings: pure
stream   a rank's event stream, subscribed
look     a pod is asked
pulls    pods are asked to pull
command  options, output, exit code
"""
