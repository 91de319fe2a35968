"""Two real pods behind a gateway, to one of which something happens all the time, under a load that makes them pull.

At the end every request has its answer; only a stream whose own pod was killed behind its first byte may have broken
off. Pulls in both directions have come back after each fault, what was pulled is what would have been computed, and
nothing has stayed behind.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

from tests.engine.environment import prepare
from tests.engine.front import Gateway, in_front_of, until
from tests.engine.pods import Pod, running
from tests.soak.comparing import is_alike, next_tokens
from tests.soak.faults import KINDS, Fault, Kind, happens
from tests.soak.leaks import Held, held, leaked, orphans, segments, settled
from tests.soak.load import Asked, Load

_WARM_S: Final = 15.0
_CALM_S: Final = (2.0, 6.0)  # between two faults
_RETURN_S: Final = 90.0
_KILL_S: Final = 75.0  # that a restart and the pulls behind it may take, for the end to be in time
_SECTIONS: Final = {
    "placement": {"preset": "load"},  # spreads a session's turns over both pods
    "p2p": {"source": {"type": "weighted-sampling"}, "min_cached_token_delta": 256},
}


class Plan(NamedTuple):
    """`minutes` from the first pod's start on, but for what ends behind it."""

    minutes: float = 10.0
    clients: int = 3
    seed: int = 1
    tier: Literal["patched", "stock"] = "patched"


class Report(NamedTuple):
    """What came of it. `resumed_s`: per fault, until both directions had pulled. `wrong`: what must not be.

    `compared`: prompts that the pods hold, and of how many they hold something else than they compute.
    """

    seconds: float
    asked: list[Asked]
    faults: list[Fault]
    resumed_s: list[float]
    counted: dict[str, float]
    compared: tuple[int, int]
    before: Held
    after: Held
    wrong: list[str]


def run(plan: Plan, folder: Path) -> Report:
    """Start the pods and a gateway, and end all of them, within about the plan's time."""
    began = time.monotonic()
    shared = segments()
    engine = prepare()
    first, second = (Pod(engine, folder, p2p_tier=plan.tier) for _ in range(2))
    with (
        running(first, second) as pods,
        in_front_of(pods, folder, "tests.soak.counting_gateway", **_SECTIONS) as gateway,
    ):
        report = _Soaking(plan, pods, gateway, folder / "gateway.log", shared).run(began)
    left = [f"left in shared memory: {each}" for each in sorted(segments() - shared)]
    return report._replace(seconds=time.monotonic() - began, wrong=[*report.wrong, *left])


class _Soaking:
    def __init__(self, plan: Plan, pods: Sequence[Pod], gateway: Gateway, log: Path, shared: set[Path]) -> None:
        self.plan, self.pods, self.gateway, self.log, self.shared = plan, pods, gateway, log, shared
        self.rng = Random(plan.seed)
        self.deck: list[Kind] = []
        self.faults: list[Fault] = []
        self.resumed: list[float] = []
        self.wrong: list[str] = []

    def run(self, began: float) -> Report:
        with self._load("warm") as warm:
            time.sleep(_WARM_S)
            self._wait_for_pulls(warm, began)
        self.wrong += settled(self.gateway)
        before = held(self.gateway, self.log)
        ends = began + 60.0 * self.plan.minutes
        with self._load("soak") as load:
            while time.monotonic() < ends:
                self._fault(load, ends)
        self.wrong += settled(self.gateway)
        after, grown = leaked(self.gateway, self.log, before)
        asked = warm.asked + load.asked
        self.wrong += [*grown, *orphans(self.shared, self.pods), *lost(asked, self.faults), *self._logged()]
        compared = self._compared(load.latest)
        if compared[1]:
            self.wrong.append(
                f"{compared[1]} of {compared[0]} prompts are not what they are when they are computed anew"
            )
        return Report(0.0, asked, self.faults, self.resumed, self._counted(), compared, before, after, self.wrong)

    def _load(self, name: str) -> Load:
        return Load(self.gateway.url, self.pods[0].model, (self.plan.seed, name), self.plan.clients)

    def _fault(self, load: Load, ends: float) -> None:
        """One, and the pulls behind it."""
        self.deck = self.deck or self.rng.sample(KINDS, len(KINDS))
        kind, pod = self.deck.pop(), self.rng.choice(self.pods)
        if kind == "kill" and time.monotonic() + _KILL_S > ends and any(fault.kind == "kill" for fault in self.faults):
            kind = "stop"
        fault = happens(kind, pod, self.rng)
        self.faults.append(fault)
        self.resumed.append(self._wait_for_pulls(load, fault.over))
        time.sleep(self.rng.uniform(*_CALM_S))

    def _wait_for_pulls(self, load: Load, since: float) -> float:
        """Seconds until each of the two has pulled from the other; what does not come is wrong."""

        def pulling() -> set[str]:
            return {each.told.pod for each in load.since(since) if each.pulled}

        try:
            until(lambda: len(pulling()) == len(self.pods), _RETURN_S, "pulls in both directions")
        except AssertionError as error:
            self.wrong.append(f"{error} after {self.faults[-1].kind if self.faults else 'the start'}: {pulling()}")
        return time.monotonic() - since

    def _compared(self, prompts: Iterable[list[int]]) -> tuple[int, int]:
        """Have idle pods go on from what they hold, and from the same with a salt, so that they compute it."""
        alike = [
            is_alike(next_tokens(pod, prompt), next_tokens(pod, prompt, f"soak {number}"))
            for pod in self.pods
            for number, prompt in enumerate(prompts)
        ]
        return len(alike), alike.count(False)

    def _counted(self) -> dict[str, float]:
        names = ("watchdog_fired", "watchdog_refused", "retries", "retries_refused", "pull_failures", "pull_trials")
        return {name: self.gateway.metric(f"p2p_gateway_{name}_total") for name in names}

    def _logged(self) -> list[str]:
        log = self.log.read_text(errors="replace")
        return [f"the gateway's log has {word!r}" for word in ("Traceback", "never retrieved") if word in log]


def lost(asked: list[Asked], faults: list[Fault]) -> Iterator[str]:
    """Requests that had to be answered and were not."""
    for each in asked:
        if each.told.error and not cut_off(each, faults):
            yield f"a request at {each.told.pod or 'no pod'} after {each.ended - each.began:.1f} s: {each.told.error}"


def cut_off(each: Asked, faults: list[Fault]) -> bool:
    """Whether it broke off behind its first byte, and since its own pod was killed."""
    return each.told.broken and any(
        fault.kind == "kill" and fault.pod == each.told.pod and each.began <= fault.over and fault.began <= each.ended
        for fault in faults
    )


def repeats(asked: list[Asked]) -> tuple[int, int]:
    """How many answers there are to prompts that had one before, and how many of them are other ones."""
    pairs = [(each.repeats, each.told.text) for each in asked if each.repeats and not each.told.error]
    return len(pairs), sum(one != other for one, other in pairs)


def told(plan: Plan, report: Report) -> str:
    """For a person."""
    asked, times = report.asked, sorted(each.told.ttft for each in report.asked if not each.told.error)
    broken = sum(cut_off(each, report.faults) for each in asked)
    repeated, differing = repeats(asked)
    kinds = Counter(fault.kind for fault in report.faults)
    rows = {
        "requests": f"{len(asked)}, of which {sum(not each.told.error for each in asked)} are answered as a whole",
        "cut off": f"{broken} behind the first byte, by the end of their own pod: nobody else can go on with them",
        "repeated": f"{repeated}, of which {differing} came out otherwise: bf16 rounds by what is computed beside it",
        "compared": f"{report.compared[0]} prompts as pods hold them, {report.compared[1]} not as computed by them",
        "pulls": f"{sum(each.pulled for each in asked)} that brought what they were to bring",
        "faults": f"{len(report.faults)}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
        "pulls again": "after " + ", ".join(f"{seconds:.1f}" for seconds in report.resumed_s) + " s, both directions",
        "first token": f"{statistics.median(times):.2f} s median, {times[len(times) * 99 // 100]:.2f} s p99, "
        f"{times[-1]:.2f} s at most",
        "counted": ", ".join(f"{name} {count:.0f}" for name, count in report.counted.items()),
        "idle before": str(report.before),
        "idle after": str(report.after),
    }
    lines = [f"Two pods, {plan.tier} tier, {report.seconds / 60:.1f} minutes, {plan.clients} clients, seed {plan.seed}"]
    return "\n".join([*lines, *(f"{name:14}{row}" for name, row in rows.items())])
