"""The simulator on a trace, set up as `dynamo.replay` is: `TRACE SPEED` → JSON, in a process of its own.

Its pods take as long as that one's mock engine, have no tier below the GPU, and get requests in turn.
"""

import statistics
import sys
from pathlib import Path
from typing import Final

import msgspec

from loadgen.profile import PodProfile
from loadgen.sim.arms import ARMS
from loadgen.sim.simulation import Settings, Simulation
from loadgen.sim.timing import ReplayTiming
from loadgen.workload.traces import BLOCK_TOKENS, mooncake

PODS: Final = 8
PROFILE: Final = PodProfile(
    block_size=64, gpu_blocks=16_384, cpu_blocks=0, max_model_len=16_384 * 64, max_running=256, token_budget=8_192
)


def measure(trace: Path, speed: float) -> dict[str, float]:
    """Mean TTFT in ms, and the share of the prompts' tokens that was reused. Every request has to be answered."""
    simulation = Simulation(Settings(profile=PROFILE, pods=PODS), ARMS["round-robin"], 1, ReplayTiming())
    outcomes = simulation.run(mooncake(trace, speed=speed, block_tokens=BLOCK_TOKENS))
    waited = [each.first - each.due for each in outcomes if each.first is not None and not each.error]
    assert len(waited) == len(outcomes)
    reused = sum(each.gpu_tokens for each in outcomes) / sum(each.prompt_tokens for each in outcomes)
    return {"ttft_mean": statistics.fmean(waited) * 1e3, "reuse": reused}


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure(Path(sys.argv[1]), float(sys.argv[2]))).decode())
