"""`p2p-gateway top`: the fleet in a terminal."""

import asyncio
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gateway.cli import main
from gateway.server import running
from gateway.top.page import page
from gateway.top.rates import Page, quantile, rates
from gateway.top.rates import page as parsed
from gateway.top.view import POD_COLUMNS, Row, View, view
from scorers import Pull
from tests.gateway.fleet import Front, configuration, fleet, ids, simulated, until
from tests.gateway.keyring import ALICE, ENTRIES, ROOT, write

TOP = [sys.executable, "-m", "gateway", "top"]


class Told(NamedTuple):
    code: int
    out: str
    err: str


Top = Callable[..., Coroutine[Any, Any, Told]]


@pytest.fixture
def top(capsys: pytest.CaptureFixture[str]) -> Top:
    """The command in a thread, with a loop of its own, and without a terminal."""

    async def runs(*options: str) -> Told:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["top", *options])
        return Told(code, *capsys.readouterr())

    return runs


# --- what is shown


async def test_without_a_terminal_it_prints_one_table_with_what_happens_meanwhile(top: Top) -> None:
    async with fleet(2) as (front, pods):
        await front.complete(ids(200))
        printing = asyncio.create_task(top("--url", front.url, "--once", "--interval", "1"))
        while not printing.done():
            await front.complete(ids(64), max_tokens=8)
            await asyncio.sleep(0.02)
        code, out, err = printing.result()
        rows = await front.pods()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("2 of 2 pods ready · ")
    rate = float(lines[0].split(" · ")[1].removesuffix(" req/s"))
    assert 1 < rate < 1000
    assert "TTFT p50" in lines[0]
    heads = lines[2].split()
    assert heads[:2] == ["pod", "state"]
    found = {line.split()[0]: line.split() for line in lines[3:5]}
    assert found.keys() == {pod.url.removeprefix("http://") for pod in pods}
    assert all(cells[1] == "ready" for cells in found.values())
    blocks = {pod.url.removeprefix("http://"): str(rows[pod.url]["cached_blocks"]["cpu"]) for pod in pods}
    assert all(blocks[pod] in cells for pod, cells in found.items())
    assert "\x1b" not in out


async def test_pairs_that_have_pulled_are_shown_with_what_it_cost(top: Top) -> None:
    async with fleet(2) as (front, (one, two)):
        pair = (one.url, 0), (two.url, 0)
        front.parts.pods.costs.pulled(*pair, Pull(1.0, 10_000.0, 0.0, 0.0), 0.1, 1.0)
        _, out, _ = await top("--url", front.url, "--once", "--interval", "0.1")
    heads, link = out.splitlines()[-2:]
    assert heads.split()[:2] == ["pulls", "from"]
    assert link.split()[:2] == [pod.url.removeprefix("http://") for pod in (one, two)]


async def test_the_operators_listener_and_keys_are_asked_as_well(
    tmp_path: Path, top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, admin, alice = tmp_path / "keys.yaml", tmp_path / "admin.key", tmp_path / "alice.key"
    write(keys, ENTRIES)
    admin.write_text(ROOT)
    alice.write_text(ALICE)
    async with simulated() as pods, running(configuration(pods, auth={"keys": str(keys)})) as server:
        code, out, _ = await top("--url", server.url, "--once", "--interval", "0.1", "--key-file", str(admin))
        assert (code, out.splitlines()[0].split()[2]) == (0, "1")
        code, out, err = await top("--url", server.url, "--once", "--interval", "0.1", "--key-file", str(alice))
        assert (code, out) == (1, "")
        assert err == f"p2p-gateway: {server.url}/pods: This needs a key with `admin`.\n"
        monkeypatch.setenv("P2P_GATEWAY_KEY", ROOT)
        code, _, err = await top("--url", server.url, "--once", "--interval", "0.1")
        assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--url", "http://127.0.0.1:1"], "http://127.0.0.1:1: Connect call failed"),
        (["--url", "nonsense"], "--url: 'nonsense' is not scheme"),
        (["--interval", "0"], "--interval: from 0.1"),
        (["--key-file", "/nowhere"], "/nowhere: No such file"),
    ],
)
async def test_what_cannot_be_shown_is_told_in_one_line(options: list[str], reason: str, top: Top) -> None:
    code, out, err = await top(*options, "--once")
    assert (code, out) == (3, "")
    (line,) = err.splitlines()
    assert line.startswith(f"p2p-gateway: {reason}")


async def test_what_is_no_gateway_is_told_in_one_line(top: Top) -> None:
    async with simulated() as (pod,):
        code, _, err = await top("--url", pod.url, "--once")
        assert code == 1
        assert err == f"p2p-gateway: {pod.url}/pods: Not Found\n"


# --- in a terminal


class Terminal:
    """A pseudo terminal with a process in it; `text` is all that it wrote."""

    def __init__(self, process: "subprocess.Popen[bytes]", keyboard: int) -> None:
        self.process = process
        self.text = ""
        self._keyboard = keyboard

    def read(self) -> None:
        try:
            self.text += os.read(self._keyboard, 1 << 16).decode(errors="replace")
        except OSError:  # the process has ended
            asyncio.get_running_loop().remove_reader(self._keyboard)

    def press(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def resize(self, lines: int, columns: int) -> None:
        ioctl(self._keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    async def until(self, condition: Callable[[str], bool]) -> None:
        await until(lambda: condition(self.text))

    async def ended(self) -> int:
        await until(lambda: self.process.poll() is not None)
        return self.process.returncode


def _takes_terminal() -> None:
    """So that Ctrl-C reaches it."""
    ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def terminal(*options: str, size: tuple[int, int] = (30, 160)) -> Iterator[Terminal]:
    keyboard, screen = pty.openpty()
    ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    loop = asyncio.get_running_loop()
    process = subprocess.Popen(
        [*TOP, *options],
        stdin=screen,
        stdout=screen,
        stderr=screen,
        env=environment,
        start_new_session=True,
        preexec_fn=_takes_terminal,  # noqa: PLW1509 - a system call and no lock
    )
    os.close(screen)
    shown = Terminal(process, keyboard)
    loop.add_reader(keyboard, shown.read)
    try:
        yield shown
    finally:
        loop.remove_reader(keyboard)
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(keyboard)


_LEFT = "\x1b[?1049l"  # the screen as it was before


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[tuple[Front, Terminal]]:
    async with fleet(1) as (front, _):
        with terminal("--url", front.url, "--interval", "0.1", **options) as shown:
            await shown.until(lambda text: "1 of 1 pods ready" in text and "req/s" in text)
            yield front, shown


async def test_in_a_terminal_it_is_drawn_again_and_again_on_what_room_there_is_until_q_is_pressed() -> None:
    async with watched(size=(5, 40)) as (_, shown):
        drawn = shown.text.count("1 of 1 pods ready")
        await shown.until(lambda text: text.count("1 of 1 pods ready") > drawn + 2)
        assert "CPU blocks" not in shown.text
        shown.resize(30, 200)
        await shown.until(lambda text: "CPU blocks" in text)
        shown.press(b"xq")
        assert await shown.ended() == 0
        await shown.until(lambda text: _LEFT in text)


class Door:
    """What stands between `top` and a gateway; closed, it resets who is there and who comes."""

    def __init__(self, front: Front) -> None:
        self.open = True
        self._host, _, self._port = front.url.removeprefix("http://").rpartition(":")
        self._there: set[asyncio.StreamWriter] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open:
            writer.transport.abort()
            return
        inside, outside = await asyncio.open_connection(self._host, int(self._port))
        self._there |= {writer, outside}
        await asyncio.gather(self._copy(reader, outside), self._copy(inside, writer))
        self._there -= {writer, outside}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    def close(self) -> None:
        self.open = False
        for writer in self._there:
            writer.transport.abort()


async def test_a_gateway_that_goes_away_is_told_of_and_seen_again_when_it_is_back() -> None:
    async with fleet(1) as (front, _):
        door = Door(front)
        server = await asyncio.start_server(door, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            with terminal("--url", url, "--interval", "0.1") as shown:
                await shown.until(lambda text: "req/s" in text)
                door.close()
                await shown.until(lambda text: "trying again" in text)
                seen = len(shown.text)
                door.open = True
                await shown.until(lambda text: "req/s" in text[seen:] and "trying again" not in text[-2000:])
                shown.press(b"\x03")  # Ctrl-C
                assert await shown.ended() == 0
                await shown.until(lambda text: _LEFT in text)


async def test_without_rich_it_says_what_to_install(top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.live", None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    async with fleet(1) as (front, _):
        code, _, err = await top("--url", front.url)
    assert (code, err) == (3, "p2p-gateway: top needs rich: pip install 'p2p-gateway[top]'; --once does without\n")


# --- how it is laid out


def shown(pods: int, *, mood: Any = "good") -> View:
    rows = [Row((f"10.0.0.{n}:8000", "ready", *("1" for _ in POD_COLUMNS[2:])), mood) for n in range(pods)]
    links = [Row((f"10.0.0.{n}:8000", "10.0.0.0:8000", "1 ms", "2 ms", "300", "4")) for n in range(pods)]
    return View("2 of 2 pods ready", rows, links)


@pytest.mark.parametrize("width", [1, 20, 60, 200])
def test_it_never_takes_more_room_than_there_is(width: int) -> None:
    for height in range(1, 50):
        lines = page(shown(20), width=width, height=height, note="a word")
        assert len(lines) <= height
        assert all(len(line.text) <= width for line in lines)


def test_what_does_not_fit_is_counted() -> None:
    lines = [line.text for line in page(shown(20), width=200, height=10)]
    shown_pods = [line for line in lines if line.startswith("10.0.0.")]
    assert lines[-1] == f"… {20 - len(shown_pods)} more pods"


def test_columns_of_less_weight_go_first_and_the_pods_names_never() -> None:
    heads = [page(shown(2), width=width, height=20)[2].text.split() for width in (200, 80, 40, 15)]
    assert [len(each) for each in heads] == sorted([len(each) for each in heads], reverse=True)
    assert heads[-1] == ["pod"]
    assert {"pod", "state", "waiting"} <= set(heads[1])


# --- how it is computed


def counters(at: float, **values: dict[Any, float]) -> Page:
    return Page(at, values)


def labels(**given: str) -> frozenset[tuple[str, str]]:
    return frozenset(given.items())


def test_rates_are_what_moved_by_the_time_between() -> None:
    before = counters(10.0, requests_total={labels(pod="a", status="200"): 5.0})
    now = counters(
        12.0,
        requests_total={labels(pod="a", status="200"): 15.0, labels(pod="b", status="503"): 4.0},
        completion_tokens_total={labels(pod="a"): 100.0},
        pulls_total={labels(outcome="named"): 6.0, labels(outcome="self"): 8.0},
        pod_ttft_seconds_sum={labels(pod="a"): 3.0},
        pod_ttft_seconds_count={labels(pod="a"): 10.0},
    )
    found = rates(before, now)
    assert found is not None
    assert (found.requests, found.failed, found.completion_tokens, found.pulls) == (7.0, 2.0, 50.0, 3.0)
    assert found.pod_requests == {"a": 5.0, "b": 2.0}
    assert found.pod_ttft == {"a": 0.3}


def test_a_gateway_that_began_anew_has_no_rates_yet() -> None:
    before = counters(10.0, requests_total={labels(pod="a"): 5.0})
    assert rates(before, counters(11.0, requests_total={labels(pod="a"): 1.0})) is None
    assert rates(before, before) is None


@pytest.mark.parametrize(("share", "seconds"), [(0.5, 0.1), (0.25, 0.05), (0.75, 0.15), (0.99, 0.2), (1.0, 0.2)])
def test_quantiles_are_linear_within_a_bucket_and_end_at_the_last_bound(share: float, seconds: float) -> None:
    assert quantile({"0.1": 50, "0.2": 98, "+Inf": 100}, share) == pytest.approx(seconds, rel=0.05)


def test_of_nothing_there_is_no_quantile() -> None:
    assert quantile({}, 0.5) is quantile({"0.1": 0.0, "+Inf": 0.0}, 0.5) is None


def test_of_a_page_only_what_is_looked_at_is_parsed() -> None:
    text = (
        "# TYPE p2p_gateway_requests_total counter\n"
        'p2p_gateway_requests_total{pod="a",model="m \\"x\\""} 3.0\n'
        "this is no exposition\n"
    )
    assert parsed(text, 1.0).series == {"requests_total": {labels(pod="a", model='m "x"'): 3.0}}


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85", "\x0b"])
def test_a_name_may_have_letters_that_end_lines_elsewhere(letter: str) -> None:
    text = f'p2p_gateway_requests_total{{model="a{letter}b"}} 3.0\np2p_gateway_pulls_total{{outcome="self"}} 1.0\n'
    assert parsed(text, 1.0).series == {
        "requests_total": {labels(model=f"a{letter}b"): 3.0},
        "pulls_total": {labels(outcome="self"): 1.0},
    }


@pytest.mark.parametrize(
    ("changes", "state", "mood"),
    [
        ({}, "ready", "good"),
        ({"breaker": "open"}, "breaker open", "warn"),
        ({"suspect": True, "stalled": True}, "suspect, stalled", "warn"),
        ({"state": "down", "reason": "no answer"}, "down: no answer", "bad"),
    ],
)
def test_a_pods_state_names_what_is_wrong_with_it(changes: dict[str, Any], state: str, mood: str) -> None:
    row: dict[str, Any] = {
        "url": "http://10.0.0.1:8000",
        "state": "ready",
        "breaker": "closed",
        "cached_blocks": {"gpu": 1, "cpu": 2},
        "certain": False,
        "last_event_age": 75.0,
        **dict.fromkeys(("reason", "kv_usage", "credit", "running", "waiting"), None),
        **dict.fromkeys(("suspect", "stalled"), False),
        **dict.fromkeys(("in_flight_requests", "pulls", "serving"), 0),
        **changes,
    }
    (pod,) = view({"pods": [row], "links": []}, None).pods
    assert (pod.cells[1], pod.mood) == (state, mood)
    assert "1 min?" in pod.cells
