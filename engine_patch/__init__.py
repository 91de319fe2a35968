"""What goes into a vLLM pod.

`engine_patch.host_memory` lets vLLM's CPU build offload its KV cache and serve it to peers; it is loaded by name
from the pod's `--kv-transfer-config`. `engine_patch.stale_memory` frees shared memory that dead pods left behind.
Nothing is patched: both use extension points of vLLM, and neither imports anything until it is asked for.
"""
