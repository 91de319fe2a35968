"""What a simulated pod costs: capacities, and the coefficients of its step, restore and pull times.

One engine step takes ``step_fixed_ms`` + the prefill chunks in it + ``decode_ms`` for each sequence that decodes. A
chunk of n tokens on top of c computed ones takes p·n + q·(n² + 2·n·c): summed over its chunks a prompt of N tokens
costs p·N + q·N², however it was cut. A pull takes ``pull_fixed_ms`` + ``pull_us_per_token`` per token, on the source's
link.
"""

from typing import Final

import msgspec


class PodProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Size and speed of a pod. Durations are divided by ``speed``; deadlines (``pull_*_deadline_s``) are real time.

    Raises ValueError when one sequence of ``max_model_len`` tokens would not fit the GPU blocks.
    """

    block_size: int = 16
    gpu_blocks: int = 4096
    cpu_blocks: int = 16384
    max_model_len: int = 32768
    max_running: int = 256
    token_budget: int = 8192  # tokens one step may compute, decodes included

    request_fixed_ms: float = 2.0  # once per request, in its first step
    step_fixed_ms: float = 4.0
    prefill_us_per_token: float = 100.0
    prefill_ns_per_token_squared: float = 0.0
    decode_ms: float = 0.2

    kv_bytes_per_token: int = 131_072
    restore_gb_per_s: float = 40.0  # CPU tier to GPU
    pull_fixed_ms: float = 5.0
    pull_us_per_token: float = 5.0
    pull_setup_ms: float = 0.0  # once per ordered pair of pods
    pull_handshake_deadline_s: float = 3.0
    pull_lookup_deadline_s: float = 30.0
    pull_fetch_deadline_s: float = 30.0

    speed: float = 1.0

    def __post_init__(self) -> None:
        """Refuse capacities with which a legal request could never run."""
        if self.gpu_blocks * self.block_size < self.max_model_len:
            raise ValueError("gpu_blocks x block_size must hold one sequence of max_model_len tokens")
        if min(self.block_size, self.max_running, self.token_budget) < 1 or self.speed <= 0:
            raise ValueError("block_size, max_running, token_budget and speed must be positive")

    def prefill_s(self, tokens: int, context: int) -> float:
        """Seconds to compute a chunk of ``tokens`` behind ``context`` computed ones."""
        linear_us = self.prefill_us_per_token * tokens
        square_ns = self.prefill_ns_per_token_squared * (tokens * tokens + 2 * tokens * context)
        return (linear_us * 1e-6 + square_ns * 1e-9) / self.speed

    def restore_s(self, tokens: int) -> float:
        """Seconds to copy ``tokens`` from the CPU tier to the GPU."""
        return tokens * self.kv_bytes_per_token / (self.restore_gb_per_s * 1e9) / self.speed

    def pull_s(self, tokens: int) -> float:
        """Seconds ``tokens`` take on the link when no other pull shares it."""
        return self.pull_us_per_token * tokens * 1e-6 / self.speed

    def ms(self, milliseconds: float) -> float:
        """Seconds that ``milliseconds`` of the profile take at this speed."""
        return milliseconds * 1e-3 / self.speed


PROFILES: Final[dict[str, PodProfile]] = {
    # A pod for people to watch: a 10K-token prompt takes a second, its pull a twentieth of that.
    "demo": PodProfile(),
    # A tiny Llama on vLLM's CPU build, fitted to recompute 0.2/0.3/0.9/1.5/5.6 s and pull 0.18…0.36 s at 0.5…8K tokens.
    "tiny-cpu": PodProfile(
        block_size=32,
        gpu_blocks=4096,
        cpu_blocks=1024,
        max_model_len=8192,
        token_budget=2048,
        request_fixed_ms=100.0,
        step_fixed_ms=5.0,
        prefill_us_per_token=120.0,
        prefill_ns_per_token_squared=66.0,
        decode_ms=10.0,
        kv_bytes_per_token=8192,
        restore_gb_per_s=2.0,
        pull_fixed_ms=80.0,
        pull_us_per_token=20.0,
        pull_setup_ms=300.0,
    ),
    # gpt-oss-120b on one H200 over RDMA: recompute 26.7 + 0.02457 n + 3.13e-7 n² ms, pull 25 + 0.00408 n ms with its
    # restore.
    "gpt-oss-120b": PodProfile(
        block_size=64,
        gpu_blocks=19_062,
        cpu_blocks=34_375,
        max_model_len=131_072,
        request_fixed_ms=20.0,
        step_fixed_ms=4.0,
        prefill_us_per_token=24.57,
        prefill_ns_per_token_squared=0.313,
        decode_ms=0.06,
        kv_bytes_per_token=41_500,
        pull_fixed_ms=1.0,
        pull_us_per_token=3.04,
        pull_setup_ms=6000.0,
    ),
}


def profile_named(name: str) -> PodProfile:
    """Return the built-in profile of that name; ValueError names the known ones."""
    if name not in PROFILES:
        raise ValueError(f"no profile {name!r}; there are {', '.join(PROFILES)}")
    return PROFILES[name]
