"""Sources that fail, seen through the gateway, on two real pods with vLLM's own P2P tier, which waits without an end.

In each case the request is answered as if it had been computed, later than a computed one by the watchdog's deadline at
most, and the next request does not name the source. Where a source that stopped goes on, pulls come back after a trial.
A consumer with vLLM's own tier may hang at a source that was killed and came back, too, until it is restarted itself.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.engine.asking import Told, ask_gateway
from tests.engine.environment import CHECKOUT, EngineEnvironment
from tests.engine.front import Gateway, in_front_of, until
from tests.engine.pods import Pod, free_ports, running
from tests.engine.pulling import computed, fresh_ids, recompute_s, stopped_at
from tests.engine.severing import sever

pytestmark = pytest.mark.engine

PROMPT_TOKENS = 2000
PULLED_TOKENS = 1900  # and more
CAP_S = 4.0  # p2p.deadline_cap
LATE_S = CAP_S + 1.0  # with a poll, and what the pod does beside it
IN_ONE_PIECE_S = 3 * LATE_S  # for an answer that may be nothing but long
AT_ONCE_S = 1.0  # a pod that does not wait, on cores that others use, too
RETURN_S = 60.0
FIRED = "p2p_gateway_watchdog_fired_total"
TO_CONSUMER = {"filters": [{"type": "label", "key": "side", "values": ["consumer"]}]}


class Pair(NamedTuple):
    source: Pod
    consumer: Pod
    gateway: Gateway
    stop_at: Path
    """Where the source stops next, see `stopping_tier`."""
    recompute: float
    """Seconds that a fresh prompt takes."""

    def ask(self, prompt: list[int], *, stream: bool = True) -> Told:
        return ask_gateway(self.gateway.url, self.consumer.model, prompt, stream=stream)


@pytest.fixture(scope="module")
def pair(engine: EngineEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("watched")
    stop_at = directory / "stop-at"
    with running(stopping_pod(engine, directory, stop_at), Pod(engine, directory)) as (source, consumer):
        recompute = recompute_s(consumer, "watched", PROMPT_TOKENS)
        with in_front_of((source, consumer), directory, **watched(source, consumer)) as gateway:
            made = Pair(source, consumer, gateway, stop_at, recompute)
            wait_for_pulls(made, "first")
            yield made


def stopping_pod(engine: EngineEnvironment, directory: Path, stop_at: Path) -> Pod:
    """A pod with vLLM's own tier, which stops where it is told to."""
    (directory / "stopping_tier.py").symlink_to(CHECKOUT / "tests/engine/stopping_tier.py")
    return Pod(
        engine,
        directory,
        replaced={'{"type":"p2p",': '{"type":"StoppingStockTier","module_path":"stopping_tier",'},
        variables={"PYTHONPATH": f"{engine.search_path}:{directory}", "STOP_AT": str(stop_at)},
    )


def watched(source: Pod, consumer: Pod, *, p2p_port: int | None = None, **p2p: Any) -> dict[str, Any]:
    """Sections of a gateway that sends everything to the consumer. Deadlines and breakers are the default ones."""
    port = source.parameters.p2p_port if p2p_port is None else p2p_port
    return {
        "pods": [
            {"url": source.url, "p2p": f"127.0.0.1:{port}", "labels": {"side": "source"}},
            {
                "url": consumer.url,
                "p2p": f"127.0.0.1:{consumer.parameters.p2p_port}",
                "labels": {"side": "consumer"},
            },
        ],
        "placement": TO_CONSUMER,
        "p2p": {"source": {"type": "weighted-sampling"}, "min_cached_token_delta": 256, **p2p},
    }


def wait_for_pulls(pair: Pair, seed: object) -> None:
    """Return when requests pull again, of themselves; each of them is right."""
    deadline = time.monotonic() + RETURN_S
    for number in range(1000):
        prompt = fresh_ids(("again", seed, number), 512)
        expected = computed(pair.source, prompt)
        pair.gateway.wait_until_cached({"model": pair.source.model, "prompt": prompt}, pair.source, 512)
        answer = pair.ask(prompt)
        assert (answer.error, answer.text) == ("", expected)
        if answer.source == pair.source.url and answer.cached >= 480:
            return
        assert time.monotonic() < deadline, f"no pull within {RETURN_S:.0f} s: {pair.gateway.pod(pair.source)}"
        time.sleep(0.5)


class Case:
    """One fault: two prompts that the source holds, as the gateway knows, and what a request may cost."""

    def __init__(self, pair: Pair, name: str, gateway: Gateway | None = None) -> None:
        self.pair, self.name, self.gateway = pair, name, gateway or pair.gateway
        self.first, self.second = (fresh_ids((name, number), PROMPT_TOKENS) for number in range(2))
        self.expected = [computed(pair.source, prompt) for prompt in (self.first, self.second)]
        for prompt in (self.first, self.second):
            self.gateway.wait_until_cached(self._body(prompt), pair.source, PULLED_TOKENS)
        assert self.explained(self.first)["source"], "the source is not named to begin with"
        self.fired = self.gateway.metric(FIRED)

    def ask(self, prompt: list[int], *, stream: bool = True) -> Told:
        return ask_gateway(self.gateway.url, self.pair.consumer.model, prompt, stream=stream)

    def explained(self, prompt: list[int]) -> dict[str, Any]:
        return self.gateway.explain(self._body(prompt))

    def check(self, first: Told, *reasons: str, late_s: float = LATE_S) -> None:
        """`first` has met the fault; the next request does not, for one of these reasons."""
        explained = self.explained(self.second)
        second = self.ask(self.second)
        print(
            f"\n{self.name}: recompute {self.pair.recompute:.3f} s, first {first.ttft:.3f} s ({first.cached} cached),"
            f" second {second.ttft:.3f} s (no source: {explained['source_reason']})"
        )
        assert [first.error, second.error] == ["", ""]
        assert [first.text, second.text] == self.expected
        assert {first.pod, second.pod} == {self.pair.consumer.url}
        assert first.ttft <= self.pair.recompute + late_s
        assert (explained["source"], second.source) == (None, "")
        assert explained["source_reason"] in reasons
        assert second.ttft <= self.pair.recompute + AT_ONCE_S
        assert self.gateway.metric(FIRED) - self.fired <= 1

    def _body(self, prompt: list[int]) -> dict[str, Any]:
        return {"model": self.pair.consumer.model, "prompt": prompt}


@pytest.mark.parametrize("where", ["lookup", "answered"])
def test_a_source_that_stops_costs_one_deadline_and_comes_back(pair: Pair, where: str) -> None:
    case = Case(pair, f"stopped at {where}")
    with stopped_at(where, pair.source, pair.stop_at):
        case.check(case.ask(case.first), "breaker")
    assert pair.gateway.metric(FIRED) == case.fired + 1
    wait_for_pulls(pair, where)


def test_an_answer_in_one_piece_waits_three_times_as_long_for_a_source_that_hangs_as_a_whole(pair: Pair) -> None:
    case = Case(pair, "paused, not streamed")
    pair.source.pause()
    try:
        case.check(case.ask(case.first, stream=False), "breaker", "no-holder", late_s=IN_ONE_PIECE_S)
    finally:
        pair.source.resume()
    assert pair.gateway.metric(FIRED) == case.fired + 1
    wait_for_pulls(pair, "paused")


def test_a_port_with_nobody_behind_it_is_found_before_a_request_names_it(pair: Pair, tmp_path: Path) -> None:
    sections = watched(pair.source, pair.consumer, p2p_port=free_ports(1)[0])
    prompt = fresh_ids("nobody", PROMPT_TOKENS)
    expected = computed(pair.source, prompt)
    body = {"model": pair.source.model, "prompt": prompt}
    with in_front_of((pair.source, pair.consumer), tmp_path, **sections) as gateway:
        gateway.wait_until_cached(body, pair.source, PULLED_TOKENS)
        until(lambda: gateway.explain(body)["source_reason"] == "breaker", 5, "the port looked at")
        answer = ask_gateway(gateway.url, pair.consumer.model, prompt)
        assert gateway.metric(FIRED) == 0
    assert (answer.error, answer.text, answer.source) == ("", expected, "")
    assert answer.ttft <= pair.recompute + AT_ONCE_S


def test_a_port_with_nobody_behind_it_that_nobody_looks_at_costs_one_deadline(pair: Pair, tmp_path: Path) -> None:
    sections = watched(pair.source, pair.consumer, p2p_port=free_ports(1)[0], port_probe_interval=None)
    with in_front_of((pair.source, pair.consumer), tmp_path, **sections) as gateway:
        case = Case(pair, "nobody there", gateway)
        case.check(case.ask(case.first), "breaker")


def test_a_half_open_pair_costs_one_deadline(pair: Pair) -> None:
    """The source loses the connection on which it speaks, and with it the session; the consumer loses nothing."""
    case = Case(pair, "half open")
    sever(pair.source, pair.consumer.parameters.p2p_port)
    case.check(case.ask(case.first), "breaker")


@pytest.mark.parametrize("where", ["", "lookup", "answered"], ids=["before", "during", "after"])
def test_a_source_that_is_killed_costs_one_deadline(pair: Pair, where: str) -> None:
    """Before, during and after the lookup. Last in this file."""
    renew(pair)
    case = Case(pair, f"killed {where or 'before'}")
    if where:
        pair.stop_at.write_text(where)
        first = _killed_while_asked(pair, case)
    else:
        pair.source.kill()
        first = case.ask(case.first)
    case.check(first, "breaker", "no-holder")


def renew(pair: Pair) -> None:
    """Both pods anew, and pulls between them."""
    both = pair.source, pair.consumer
    for pod in both:
        pod.kill()
    for pod in both:
        pod.start()
    for pod in both:
        pod.wait_ready()
    until(lambda: all(pair.gateway.pod(pod)["state"] == "ready" for pod in both), 20, "both known to be back")
    wait_for_pulls(pair, ("renewed", pair.source.process_group))


def _killed_while_asked(pair: Pair, case: Case) -> Told:
    answers: list[Told] = []
    asking = threading.Thread(target=lambda: answers.append(case.ask(case.first)))
    asking.start()
    until(lambda: not pair.stop_at.exists(), 20, "the source where it is killed")
    pair.source.kill()
    asking.join(60)
    (answer,) = answers
    return answer
