"""Black-box tools around the gateway: a protocol-true simulated vLLM pod, and what drives and measures it."""
