"""The simulator with a large fleet: `PODS REQUESTS` → JSON, in a process of its own.

Prompts of 2,304 tokens, of which 2,048 are one of five prefixes per pod, and answers of 64 tokens. Requests come at
about half the rate that such pods can do, and go where prefix, queue and free memory send them.
"""

import re
import sys
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from loadgen.profile import PROFILES
from loadgen.sim.arms import ARMS
from loadgen.sim.simulation import Settings, Simulation
from loadgen.workload import arrivals
from loadgen.workload.datasets.shared_prefix import SharedPrefix

_PROFILE: Final = "gpt-oss-120b-h200"
_PREFIXES_PER_POD: Final = 5
_REQUESTS_PER_POD_S: Final = 10.0  # 20 pods of that profile, offered more than they can do, do 14 to 20 each
_SEED: Final = 1


def measure(pods: int, requests: int) -> dict[str, float]:
    """Seconds by the clock, and the most memory that the process ever had, MB. Every request has to be answered."""
    began = time.perf_counter()
    prompts = SharedPrefix(
        prefixes=_PREFIXES_PER_POD * pods, prefix_tokens=2_048, question_tokens=256, output_tokens=64
    )
    times = arrivals.poisson(_REQUESTS_PER_POD_S * pods, Random(_SEED))
    simulation = Simulation(Settings(profile=PROFILES[_PROFILE], pods=pods), ARMS["affinity"], _SEED)
    outcomes = simulation.run(islice(arrivals.due(prompts.requests(_SEED), times), requests))
    assert len(outcomes) == requests
    assert not any(each.error for each in outcomes)
    return {"seconds": time.perf_counter() - began, "memory": _peak_bytes() / 1e6}


def _peak_bytes() -> int:
    # Not getrusage's, which begins with what the parent had when it started this process.
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return 1024 * int(found[1])


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure(int(sys.argv[1]), int(sys.argv[2]))).decode())
