"""Pods as tokenizers: equal questions once, few calls at once, none to a pod that fails, and every wait an end."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.schema import Breaker, PodConfig, Tokens
from gateway.errors import PodRejected, PodTimeout, PodUnavailable
from gateway.pod import Model, Pod
from gateway.tokens.pod_backend import PodBackend, Unanswered, tokenize
from gateway.upstream import PodApi
from tests.gateway.fleet import until

ANSWER = msgspec.json.encode({"tokens": [1, 2, 3]})


class Api:
    """Pods that answer when a test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.timeouts: list[float] = []
        self.answers: list[asyncio.Future[bytes]] = []

    async def post(self, url: str, path: str, body: bytes, *, timeout: float) -> bytes:  # noqa: ASYNC109
        assert path == "/tokenize"
        self.calls.append((url, body))
        self.timeouts.append(timeout)
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


def pod(number: int = 0) -> Pod:
    made = Pod(PodConfig(url=f"http://10.0.0.{number}:8000"), p2p=None, breaker=Breaker())
    made.joined({"m": Model("m", "m")}, (0,))
    return made


def backend(api: Api, clock: Callable[[], float] = lambda: 0.0, **settings: Any) -> PodBackend:
    breaker = Breaker(failures=2, cooldown=10.0)
    return PodBackend(cast("PodApi", api), Tokens(**settings), breaker, clock)


def asks(tokens: PodBackend, question: bytes, pods: Sequence[Pod], seconds: float = 30.0) -> "asyncio.Task[Any]":
    deadline = asyncio.get_running_loop().time() + seconds
    return asyncio.create_task(tokens.ids(tokenize(question), question, lambda: pods, deadline))


async def refused(task: "asyncio.Task[Any]") -> str:
    with pytest.raises(Unanswered) as failure:
        await task
    return failure.value.reason


async def test_equal_questions_are_one_call() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api)
    tasks = [asks(tokens, b"q", pods) for _ in range(5)]
    other = asks(tokens, b"r", pods)
    await until(lambda: len(api.calls) == 2)
    for answer in api.answers:
        answer.set_result(ANSWER)
    assert [ids.tolist() for ids in await asyncio.gather(*tasks, other)] == [[1, 2, 3]] * 6
    assert sorted(body for _, body in api.calls) == [b"q", b"r"]


async def test_a_failure_is_everybodys_who_waits_for_the_answer() -> None:
    api = Api()
    tokens = backend(api)
    tasks = [asks(tokens, b"q", [pod()]) for _ in range(3)]
    await until(lambda: bool(api.calls))
    for answer in api.answers:
        answer.set_exception(PodRejected("no", code="pod_rejected"))
    assert [await refused(task) for task in tasks] == ["rejected"] * 3


async def test_whoever_waits_asks_itself_when_the_first_client_leaves() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api)
    first, second, third = (asks(tokens, b"q", pods) for _ in range(3))
    await until(lambda: bool(api.calls))
    first.cancel()
    await until(lambda: len(api.calls) == 2)
    api.answers[1].set_result(ANSWER)
    assert (await second).tolist() == (await third).tolist() == [1, 2, 3]
    assert first.cancelled()
    assert len(api.calls) == 2


async def test_one_that_waits_and_leaves_takes_nobody_with_it() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api)
    first, second = asks(tokens, b"q", pods), asks(tokens, b"q", pods)
    await until(lambda: bool(api.calls))
    second.cancel()
    await asyncio.wait([second])
    api.answers[0].set_result(ANSWER)
    assert (await first).tolist() == [1, 2, 3]


async def test_one_that_waits_for_anothers_answer_has_its_own_deadline() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api)
    first, hurried = asks(tokens, b"q", pods), asks(tokens, b"q", pods, seconds=0.05)
    assert await refused(hurried) == "timeout"
    api.answers[0].set_result(ANSWER)
    assert (await first).tolist() == [1, 2, 3]


async def test_calls_are_spread_and_bounded() -> None:
    api, pods = Api(), [pod(0), pod(1)]
    tokens = backend(api, max_concurrent=2)
    tasks = [asks(tokens, b"%d" % number, pods) for number in range(7)]
    await until(lambda: len(api.calls) == 4)
    assert sorted(url for url, _ in api.calls) == [pods[0].url] * 2 + [pods[1].url] * 2
    for number in range(7):
        await until(lambda number=number: len(api.calls) == min(7, number + 4))  # type: ignore[misc]
        api.answers[number].set_result(ANSWER)
    await asyncio.gather(*tasks)
    assert [body for _, body in api.calls] == [b"%d" % number for number in range(7)]


async def test_a_turn_that_comes_to_one_who_leaves_goes_to_the_next() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api, max_concurrent=1)
    first, second, third = (asks(tokens, b"%d" % number, pods) for number in range(3))
    await until(lambda: bool(api.calls))
    tokens.reconfigure(Tokens(max_concurrent=2), Breaker())
    tokens._next()
    second.cancel()
    await until(lambda: len(api.calls) == 2)
    assert api.calls[1][1] == b"2"
    for answer in api.answers:
        answer.set_result(ANSWER)
    await asyncio.gather(first, third)


async def test_one_that_leaves_before_its_turn_is_passed_over() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api, max_concurrent=1)
    first, second, third = (asks(tokens, b"%d" % number, pods) for number in range(3))
    await until(lambda: bool(api.calls))
    second.cancel()
    await asyncio.wait([second])
    api.answers[0].set_result(ANSWER)
    await until(lambda: len(api.calls) == 2)
    assert api.calls[1][1] == b"2"
    api.answers[1].set_result(ANSWER)
    await asyncio.gather(first, third)


async def test_whoever_gets_no_turn_in_time_goes_without() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api, max_concurrent=1)
    first = asks(tokens, b"0", pods)
    assert await refused(asks(tokens, b"1", pods, seconds=0.05)) == "saturated"
    api.answers[0].set_result(ANSWER)
    await first


async def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokens.pod_backend._MOST_WAITING", 1)
    api, pods = Api(), [pod()]
    tokens = backend(api, max_concurrent=1)
    first, second, third = (asks(tokens, b"%d" % number, pods) for number in range(3))
    assert await refused(third) == "saturated"
    api.answers[0].set_result(ANSWER)
    await first
    await until(lambda: len(api.calls) == 2)
    api.answers[1].set_result(ANSWER)
    await second


async def test_a_silent_pod_leaves_the_next_one_half_of_the_time() -> None:
    api, pods = Api(), [pod(0), pod(1)]
    task = asks(backend(api), b"q", pods, seconds=10.0)
    await until(lambda: bool(api.calls))
    api.answers[0].set_exception(PodTimeout("slow", code="pod_timeout"))
    await until(lambda: len(api.calls) == 2)
    assert api.timeouts[0] <= 5.0 < api.timeouts[1] <= 10.0
    api.answers[1].set_exception(PodTimeout("slow", code="pod_timeout"))
    assert await refused(task) == "timeout"


async def test_a_pod_that_keeps_failing_is_left_alone_until_it_answers_again() -> None:
    now = [0.0]
    api, pods = Api(), [pod()]
    tokens = backend(api, clock=lambda: now[0])
    for number in range(2):
        task = asks(tokens, b"%d" % number, pods)
        await until(lambda number=number: len(api.calls) == number + 1)  # type: ignore[misc]
        api.answers[-1].set_exception(PodUnavailable("down", code="pod_unavailable"))
        assert await refused(task) == "unreachable"
    assert tokens.state(pods[0].name) == "open"
    assert await refused(asks(tokens, b"2", pods)) == "breaker"
    now[0] = 10.0
    trial, other = asks(tokens, b"3", pods), asks(tokens, b"4", pods)
    assert await refused(other) == "breaker"
    trial.cancel()
    await asyncio.wait([trial])
    trial = asks(tokens, b"5", pods)
    await until(lambda: len(api.calls) == 4)
    api.answers[-1].set_result(ANSWER)
    await trial
    assert tokens.state(pods[0].name) == "closed"


async def test_a_pod_that_comes_up_again_is_asked_again() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api)
    for number in range(2):
        task = asks(tokens, b"%d" % number, pods)
        await until(lambda number=number: len(api.calls) == number + 1)  # type: ignore[misc]
        api.answers[-1].set_exception(PodUnavailable("down", code="pod_unavailable"))
        await refused(task)
    tokens.joined(pods[0].name)
    assert tokens.state(pods[0].name) == "closed"


async def test_a_reload_bounds_what_comes_next() -> None:
    api, pods = Api(), [pod()]
    tokens = backend(api, max_concurrent=1)
    first = asks(tokens, b"0", pods)
    await until(lambda: bool(api.calls))
    tokens.reconfigure(Tokens(max_concurrent=2), Breaker(failures=1))
    second = asks(tokens, b"1", pods)
    await until(lambda: len(api.calls) == 2)
    api.answers[1].set_exception(PodUnavailable("down", code="pod_unavailable"))
    assert await refused(second) == "unreachable"
    assert tokens.state(pods[0].name) == "open"
    api.answers[0].set_result(ANSWER)
    await first


async def test_nobody_to_ask() -> None:
    assert await refused(asks(backend(Api()), b"q", [])) == "unreachable"


@given(
    st.lists(st.integers(-2, (1 << 32) + 2), max_size=40), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", ":")])
)
def test_ids_are_read_whatever_the_spelling(tokens: list[int], separators: tuple[str, str]) -> None:
    told = {"count": len(tokens), "tokens": tokens, "token_strs": None}
    answer = json.dumps(told, separators=separators).encode()
    if all(0 <= token < 1 << 32 for token in tokens):
        assert tokenize(b"").read(answer, "pod").tolist() == tokens
    else:
        with pytest.raises(PodRejected):
            tokenize(b"").read(answer, "pod")


@pytest.mark.parametrize(
    "answer",
    [
        b'{"tokens":[1,2',
        b'{"tokens":[1,,2]}',
        b'{"tokens":[1,2,]}',
        b'{"tokens":[1.5,2]}',
        b'{"tokens":["1"]}',
        b'{"tokens":[1,null]}',
        b'{"tokens":[1,[2]]}',
        b'{"tokens":[99999999999999999999999]}',
        b'{"tokens":5}',
        b'{"text":"\\"tokens\\":[1]"}',
        b"",
    ],
)
def test_what_is_no_list_of_ids_is_refused(answer: bytes) -> None:
    with pytest.raises(PodRejected):
        tokenize(b"").read(answer, "pod")
