"""What a request calls its session, and where that was last placed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.openai import Peek, peek
from gateway.sessions import Sessions, session_of
from index import Publisher
from tests.gateway.fleet import MODEL, QUEUE_ONLY, Front, fleet, ids, simulated, text_body
from tests.gateway.reloading import reloadable

BY_SESSION = {"scorers": [{"type": "session-affinity"}]}
HERE, THERE = Publisher("10.0.0.1:8000", 0), Publisher("10.0.0.1:8000", 1)
EVERYWHERE = {
    "prompt_cache_key": "from the key",
    "metadata": {"session_id": "from the metadata"},
    "user": "from the user",
}


def named(headers: dict[str, str] | None = None, **body: Any) -> str | None:
    return session_of(CIMultiDict(headers or {}), peek(msgspec.json.encode(body)))


# What it is called


def test_headers_come_before_the_body_and_each_before_the_next() -> None:
    headers = {"X-Session-Id": "from the header", "X-Correlation-ID": "from the other"}
    found = []
    for name in headers:
        found.append(named(headers, **EVERYWHERE))
        headers = {other: value for other, value in headers.items() if other != name}
    body = dict(EVERYWHERE)
    for name in EVERYWHERE:
        found.append(named(**body))
        del body[name]
    assert found == [
        "from the header",
        "from the other",
        "from the key",
        "from the metadata",
        "from the user",
    ]
    assert named() is None


@pytest.mark.parametrize("unusable", [None, "", 7, [], {}, {"session_id": None}, {"session_id": 7}, True, 1.5e300])
@pytest.mark.parametrize("field", ["prompt_cache_key", "metadata"])
def test_what_is_no_name_leaves_it_to_the_next(field: str, unusable: Any) -> None:
    assert named(**{**EVERYWHERE, "prompt_cache_key": None, "metadata": None, field: unusable}) == "from the user"


@pytest.mark.parametrize("unusable", [None, "", 7, {}])
def test_where_nothing_is_a_name_there_is_no_session(unusable: Any) -> None:
    assert named({"x-session-id": ""}, user=unusable) is None


@pytest.mark.parametrize(
    "raw", [b'"\xff"', b'{"session_id": "\xff"}', b'{"x": "\xff"}', b"[" * 2000 + b"]" * 2000, b'{"session_id":"a}']
)
def test_what_cannot_be_read_is_no_session(raw: bytes) -> None:
    held = msgspec.Raw(raw)
    for field in ("prompt_cache_key", "metadata", "user"):
        assert session_of({}, Peek(**{field: held})) is None


# Where it was


def test_a_session_is_where_it_was_last_placed() -> None:
    sessions = Sessions()
    assert sessions.place("m", "s") is None
    sessions.placed("m", "s", HERE)
    sessions.placed("m", "other", THERE)
    assert (sessions.place("m", "s"), sessions.place("m", "other")) == (HERE, THERE)
    sessions.placed("m", "s", THERE)
    assert sessions.place("m", "s") == THERE


def test_the_same_name_with_another_model_is_another_session() -> None:
    sessions = Sessions()
    sessions.placed("m", "s", HERE)
    assert sessions.place("n", "s") is None


@given(text=st.text(st.characters(), max_size=50))
def test_any_text_is_a_name(text: str) -> None:
    sessions = Sessions()
    sessions.placed("m", text, HERE)
    assert sessions.place("m", text) == HERE


@given(placed=st.lists(st.tuples(st.integers(0, 9), st.sampled_from([HERE, THERE])), max_size=60))
def test_the_ones_placed_longest_ago_are_forgotten(placed: list[tuple[int, Publisher]]) -> None:
    sessions = Sessions(most=3)
    for number, rank in placed:
        sessions.placed("m", str(number), rank)
    latest = dict(reversed(list(dict.fromkeys(number for number, _ in reversed(placed)).items())))
    kept = list(latest)[-3:]
    last = dict(placed)
    assert {number: sessions.place("m", str(number)) for number in range(10)} == {
        number: last[number] if number in kept else None for number in range(10)
    }
    assert len(sessions) == len(kept)


# In a gateway


def numbers() -> Iterator[float]:
    """Ties go to one pod after the other."""
    while True:
        yield from (0.0, 0.5)


@pytest.fixture
def ties_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = numbers()
    monkeypatch.setattr("random.random", lambda: next(drawn))


async def pods_of(front: Front, *, headers: dict[str, str] | None = None, **fields: Any) -> list[str]:
    """Where four requests go, which have no more in common than this."""
    return [(await front.complete(ids(50, salt), headers=headers, **fields)).pod for salt in range(4)]


@pytest.mark.usefixtures("ties_alternate")
@pytest.mark.parametrize(
    "named",
    [
        {"headers": {"x-session-id": "s"}},
        {"headers": {"X-Correlation-ID": "s"}},
        {"prompt_cache_key": "s"},
        {"metadata": {"session_id": "s"}},
        {"user": "s"},
    ],
    ids="-".join,
)
async def test_a_session_stays_on_its_pod(named: Any) -> None:
    async with fleet(2, placement=BY_SESSION) as (front, _):
        assert len(set(await pods_of(front))) == 2
        assert len(set(await pods_of(front, **named))) == 1


@pytest.mark.usefixtures("ties_alternate")
async def test_other_endpoints_are_placed_by_their_headers() -> None:
    async with fleet(2, placement=BY_SESSION) as (front, pods):
        seen = []
        for _ in range(4):
            await front.post("/v1/score", {"model": MODEL, "text_1": "a", "text_2": "b"}, {"x-session-id": "s"})
            seen.append([len([1 for asked in pod.requests if asked.path == "/v1/score"]) for pod in pods])
        assert sorted(seen[-1]) == [0, 4]


@pytest.mark.usefixtures("ties_alternate")
async def test_an_explanation_shows_the_session_and_changes_nothing() -> None:
    async with fleet(2, placement=BY_SESSION) as (front, pods):
        where = (await front.complete(ids(50), user="s")).pod
        for _ in range(3):
            told = await front.explain(ids(50, 7), user="s")
            assert told["chosen"] == where
            assert {each["pod"]: each["scores"]["session-affinity"] for each in told["candidates"]} == {
                pod.url: float(pod.url == where) for pod in pods
            }
        for _ in range(2):
            unknown = await front.explain(ids(50, 8), user="another")
            assert [each["scores"]["session-affinity"] for each in unknown["candidates"]] == [0.5, 0.5]


@pytest.mark.usefixtures("ties_alternate")
async def test_where_no_scorer_reads_sessions_none_are_kept(tmp_path: Path) -> None:
    async with simulated(2) as pods, reloadable(pods, tmp_path / "gateway.yaml", placement=BY_SESSION) as gateway:
        await gateway.front.complete(ids(50), user="s")
        for placement in (QUEUE_ONLY, BY_SESSION):
            assert await gateway.reload(pods, placement=placement) == "ok"
            told = await gateway.front.explain(ids(50), user="s")
        assert [each["scores"]["session-affinity"] for each in told["candidates"]] == [0.5, 0.5]


async def test_a_body_whose_session_is_unusable_is_served_all_the_same() -> None:
    async with fleet(1, placement=BY_SESSION) as (front, _):
        body = {**text_body(ids(20)), "metadata": "none", "user": 7, "prompt_cache_key": {"a": 1}}
        assert (await front.post("/v1/completions", body)).status == 200
