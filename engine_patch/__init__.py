"""What goes into a vLLM pod.

`engine_patch.p2p_tier` is vLLM's P2P tier with deadlines, and `engine_patch.identity` tells what peers must share.
`engine_patch.host_memory` lets vLLM's CPU build offload its KV cache and serve it to peers. The tiers are loaded by
name from the pod's `--kv-transfer-config`. `engine_patch.stale_memory` frees shared memory that dead pods left behind.
No file of vLLM is changed: all use its extension points, and none imports anything until it is asked for.
"""
