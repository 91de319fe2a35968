"""Faults, each on a gateway and pods of its own: `well` is traffic as it should be, `strike` what goes wrong.

A scene names the alerts that its fault has to raise. `strike` is called again and again until they have come; `mend`
ends the fault, and `well` goes on.
"""

import asyncio
import os
import resource
import signal
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import yaml

from loadgen.faults import StaleSession
from loadgen.pod import SimulatedPod
from scorers import Candidate, PlacementRequest, Prefill, Pull
from tests.gateway.fleet import (
    PREFIX_ONLY,
    SLOW,
    SMALL,
    Front,
    client,
    configuration,
    ids,
    serving,
    spec,
    text_body,
    until,
    warm,
)
from tests.gateway.keyring import ENTRIES, ROOT, bearer, write
from tests.gateway.raw import (
    CHUNKED,
    DONE,
    EVENT,
    FAILED,
    GOOD,
    OK,
    SSE,
    Act,
    RawPod,
    answered,
    chunk,
    raw,
    sends,
    stream,
    then_resets,
)
from tests.gateway.reloading import Reloadable, reloadable
from tests.gateway.scripted import ScriptedPod, says, scripted
from tests.gateway.test_trust import PROMPT, claim

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACED = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
# Some twenty gateways, their pods and clients share what the machine has left.
COMMON: dict[str, Any] = {
    "poll": {"interval": 0.25, "timeout": 10.0},
    "limits": {"connect_timeout": 20.0},
    "p2p": {"port_probe_interval": None},
    "access_log": {"enabled": False},
}
_WELL = answered(GOOD)
_AT_ONCE = 30
_STOPPED_S = 1.5
_LIES = 6
_PULL_S = 5.0
_REST_S = 0.001


def common(sections: Mapping[str, Any]) -> dict[str, Any]:
    """These sections of a configuration, on top of what all have."""
    return COMMON | {
        name: {**COMMON.get(name, {}), **section} if isinstance(section, dict) else section
        for name, section in sections.items()
    }


class Scene(ABC):
    """Made within `stack`, which ends it."""

    alerts: ClassVar[frozenset[str]]

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder
        self.tasks: set[asyncio.Task[Any]] = set()
        self.targets: list[str] = []  # host:port

    @abstractmethod
    async def begin(self) -> None:
        """Start pods and gateway."""

    async def well(self) -> None:
        """Traffic as it should be, if there is any."""
        await asyncio.sleep(0)

    @abstractmethod
    async def strike(self) -> None:
        """The fault, or a bit of it."""

    async def mend(self) -> None:
        """End it, where it does not by itself."""
        await asyncio.sleep(0)

    async def served(self, pods: list[Any], **sections: Any) -> Front:
        front = await self.stack.enter_async_context(serving(pods, **common(sections)))
        self.targets.append(front.url.removeprefix("http://"))
        return front

    async def pod(self, **options: Any) -> SimulatedPod:
        options.setdefault("profile", SMALL)
        return await self.stack.enter_async_context(SimulatedPod(**options))

    def aside(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that may take its time, and fail."""

        async def quietly() -> None:
            with suppress(Exception):
                await work

        task = asyncio.create_task(quietly())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


class Switched:
    """Does as told while `bad`, and answers well otherwise."""

    def __init__(self, bad: Act) -> None:
        self.bad = False
        self._bad = bad
        self._good = sends(_WELL, goes_on=True)

    async def __call__(self, pod: RawPod, writer: asyncio.StreamWriter) -> bool:
        return await (self._bad if self.bad else self._good)(pod, writer)


async def ask(front: Front, body: Any = None, headers: dict[str, str] | None = None) -> int:
    """The status of an answer, however it ends."""
    try:
        return (await front.post("/v1/completions", body or text_body([1, 2, 3], stream=True), headers)).status
    except Exception:  # noqa: BLE001 - it was broken off: that is the scene
        return 0


class Healthy(Scene):
    """Pulls, streams, chats, traces; nothing goes wrong. A filter is skipped, since it would leave nobody."""

    alerts = frozenset()

    async def begin(self) -> None:
        self.pods = [await self.pod() for _ in range(2)]
        self.silent = await self.pod(prompt_tokens_details=False)
        placement = {
            "scorers": [{"type": "active-requests"}],
            "filters": [{"type": "label", "key": "x", "values": ["y"]}],
        }
        self.front = await self.served(
            [spec(pod) for pod in self.pods], placement=placement, tokens={"render_once": True}, p2p={"probe": True}
        )
        self.audited = await self.served([self.silent])
        self.salt = 0

    async def well(self) -> None:
        self.salt += 1
        prompt = ids(256, salt=self.salt)
        await self.front.complete(prompt, headers=TRACED, stream=True, max_tokens=4)
        await asyncio.sleep(0.1)  # its events are on their way
        usage = {"include_usage": True}
        asked = (self.front.complete(prompt, stream=True, max_tokens=8, stream_options=usage) for _ in range(4))
        await asyncio.gather(*asked)
        chat = {"model": "demo-model", "max_tokens": 2, "messages": [{"role": "user", "content": f"Hello {self.salt}"}]}
        assert (await self.front.post("/v1/chat/completions", chat)).status == 200
        await self.audited.complete(prompt)

    async def strike(self) -> None:
        await self.well()


class Broken(Scene):
    """Streams that reset, engines that fail after their 200, pods that send garbage."""

    alerts = frozenset(
        {
            "P2PGatewayAnswersBreak",
            "P2PGatewayEnginesFail",
            "P2PGatewayPodLeftOut",
            "P2PGatewayRetriesUsedUp",
            "P2PGatewayErrorsBurnFast",
            "P2PGatewayErrorsBurn",
        }
    )

    async def begin(self) -> None:
        self.switches = [
            Switched(then_resets(OK + SSE + CHUNKED + b"\r\n", chunk(EVENT))),
            Switched(stream(FAILED, DONE)),
            Switched(sends(b"garbage\r\n\r\n")),
            Switched(sends(b"garbage\r\n\r\n")),
        ]
        pods = [await self.stack.enter_async_context(raw(switch)) for switch in self.switches]
        quick = {"breaker": {"failures": 2, "cooldown": 0.3}}
        self.fronts = [
            await self.served(pods[:1], **quick),
            await self.served(pods[1:2], **quick),
            await self.served(pods[2:], **quick),
        ]

    async def well(self) -> None:
        for front in self.fronts:
            for _ in range(2):
                await ask(front)

    async def strike(self) -> None:
        for switch in self.switches:
            switch.bad = True
        for front in self.fronts:
            await ask(front)
        await asyncio.gather(*(ask(self.fronts[2]) for _ in range(_AT_ONCE)))

    async def mend(self) -> None:
        for switch in self.switches:
            switch.bad = False


class Slow(Scene):
    """First bytes that take three seconds: limits are reached, and who cannot wait is turned away."""

    alerts = frozenset(
        {
            "P2PGatewayFirstTokensLate",
            "P2PGatewayRequestsTurnedAway",
            "P2PGatewayLimitsReached",
        }
    )

    async def begin(self) -> None:
        async def slowly(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
            await asyncio.sleep(2.7)
            return await sends(_WELL, goes_on=True)(pod, writer)

        self.switch = Switched(slowly)
        pod = await self.stack.enter_async_context(raw(self.switch))
        self.plain = await self.served([pod])
        self.admitting = await self.served([pod], admission={"enabled": True, "max_in_flight": 1, "queue": 1})
        self.limited = await self.served([pod], limits={"max_concurrent": 1})

    async def well(self) -> None:
        await asyncio.gather(*(ask(self.admitting) for _ in range(2)))
        await ask(self.plain)

    async def strike(self) -> None:
        self.switch.bad = True
        for front in (self.plain, self.admitting, self.limited):
            for _ in range(3):
                self.aside(ask(front))

    async def mend(self) -> None:
        self.switch.bad = False
        if self.tasks:
            await asyncio.wait(self.tasks)


class Gone(Scene):
    """The only pod is lost."""

    alerts = frozenset({"P2PGatewayNoPodReady", "P2PGatewayPodDown"})

    async def begin(self) -> None:
        self.only = await self.pod()
        self.front = await self.served([self.only])

    async def strike(self) -> None:
        if self.only.alive:
            await self.only.kill()

    async def mend(self) -> None:
        await self.only.restart()
        await self.front.until_ready(1)


class Hangs(Scene):
    """An engine stands still with a request on it."""

    alerts = frozenset({"P2PGatewayPodStalled"})

    async def begin(self) -> None:
        self.only = await self.pod(profile=SLOW)
        self.front = await self.served([self.only], poll={"interval": 0.1, "stall_after": 0.5})
        self.stands = False

    async def strike(self) -> None:
        if not self.stands:
            self.stands = True
            self.aside(ask(self.front, text_body([1, 2, 3], stream=True, max_tokens=100)))
            await until(lambda: self.only.engines[0].running == 1)
            self.only.stall()

    async def mend(self) -> None:
        self.only.resume()
        if self.tasks:
            await asyncio.wait(self.tasks)


class Prompts(Scene):
    """Prompts without ids, ids that are not the pod's, a pod that does not tokenize."""

    alerts = frozenset({"P2PGatewayPlacedBlindly", "P2PGatewayTokensWrong", "P2PGatewayTokenizersFail"})
    _IDS: ClassVar = {"count": 3, "max_model_len": 8192, "tokens": [1, 2, 3]}

    async def begin(self) -> None:
        self.counts = await self._counting(3)
        self.fails = await self._counting(3)
        quick = {"breaker": {"failures": 2, "cooldown": 4.0}, "tokens": {"backend": "pod"}}
        self.fronts = [await self.served([self.counts], **quick), await self.served([self.fails], **quick)]
        self.number = 0

    async def _counting(self, tokens: int) -> ScriptedPod:
        return await self.stack.enter_async_context(
            scripted(tokenize=says(self._IDS), completions=says(self._usage(tokens)))
        )

    def _usage(self, tokens: int) -> dict[str, Any]:
        return {"object": "text_completion", "choices": [], "usage": {"prompt_tokens": tokens, "completion_tokens": 1}}

    async def well(self) -> None:
        for front in self.fronts:
            self.number += 1
            assert await ask(front, text_body(f"prompt {self.number}")) == 200

    async def strike(self) -> None:
        self.counts.scripts["/v1/completions"] = says(self._usage(9))
        self.fails.scripts["/tokenize"] = says({}, status=500)
        await self.well()
        for _ in range(3):
            await ask(self.fronts[0], text_body([1, 2, 3], truncate_prompt_tokens=2))

    async def mend(self) -> None:
        self.counts.scripts["/v1/completions"] = says(self._usage(3))
        self.fails.scripts["/tokenize"] = says(self._IDS)


class Deaf(Scene):
    """Events are lost where there is no replay port, and a pod promises what it does not hold."""

    alerts = frozenset({"P2PGatewayEventsMissing", "P2PGatewayClaimsFail", "P2PGatewayPullsFail"})

    async def begin(self) -> None:
        self.losing, self.lying = await self.pod(), await self.pod()
        self.deaf = await self.served([spec(self.losing, kv_events=self.losing.events[0])])
        self.believing = await self.served([self.lying], placement=PREFIX_ONLY)
        self.salt = 0

    async def well(self) -> None:
        self.salt += 1
        await self.deaf.complete(ids(64, salt=self.salt))
        await self.believing.complete(ids(64, salt=self.salt))

    async def strike(self) -> None:
        self.losing.drop_events(1)
        self.salt += 1
        await self.deaf.complete(ids(64, salt=self.salt))
        await self.deaf.complete(ids(64, salt=self.salt + 500))
        await asyncio.gather(*(self._lie(1000 + _LIES * self.salt + number) for number in range(_LIES)))

    async def _lie(self, salt: int) -> None:
        prompt = ids(PROMPT, salt=salt)
        claim(self.lying, prompt, salt)

        async def believed() -> bool:
            return bool((await self.believing.explain(prompt))["predicted_cached_tokens"])

        await until(believed)
        await self.believing.complete(prompt)

    async def mend(self) -> None:
        """They start anew, and so do their streams."""
        for pod, front in ((self.losing, self.deaf), (self.lying, self.believing)):
            await pod.kill()
            await until(lambda f=front: not f.parts.pods.ready)  # type: ignore[misc]
            await pod.restart()
            await front.until_ready(1)


class Pulling(Scene):
    """Two pods, of which one holds prompts, and the other one computes and so pulls them."""

    p2p: ClassVar[Mapping[str, Any]]
    _PROMPTS = 300
    _TOKENS = 80

    async def begin(self) -> None:
        self.source, self.consumer = await self.pod(profile=SLOW), await self.pod()
        placement = {"scorers": [{"type": "label-affinity", "key": "pulls", "values": ["yes"]}]}
        pods = [spec(self.source), spec(self.consumer, labels={"pulls": "yes"})]
        self.front = await self.served(pods, placement=placement, p2p=self.p2p)
        for salt in range(self._PROMPTS):
            await warm(self.source, ids(self._TOKENS, salt=salt))
        await self.front.settled(self.source)
        self.salt = 0

    async def well(self) -> None:
        prompt = ids(self._TOKENS, salt=self.salt % self._PROMPTS)
        self.salt += 1
        with suppress(TimeoutError):  # a pull over a link that is slow, on a machine that is busy
            async with asyncio.timeout(_PULL_S):
                await ask(self.front, text_body(prompt, stream=True))


class Link(Pulling):
    """A link gets slow."""

    alerts = frozenset({"P2PGatewayLinkSlow"})
    p2p: ClassVar = {"first_byte_deadline": None}
    struck = False

    async def begin(self) -> None:
        await super().begin()
        costs, now = self.front.parts.pods.costs, self.front.parts.pods.clock()
        for number in range(100, 0, -1):  # what it usually takes, as learned before: few tokens and many
            tokens, seconds = (self._TOKENS, 0.045) if number % 2 else (16_384, 0.055)
            terms = Pull(1.0, float(tokens), 0.0, 0.0)
            costs.pulled((self.source.url, 0), (self.consumer.url, 0), terms, seconds, now - number)
            # What is left of a quick pull's request, too: else it is next to nothing, which is no sample.
            costs.computed((self.consumer.url, 0), Prefill(1.0, 1.0, 1.0), _REST_S, now - number)

    async def well(self) -> None:
        """Only after the fault: what it usually takes is not to be what it takes on a busy machine."""
        if self.struck:
            await super().well()

    async def strike(self) -> None:
        self.struck = True
        self.source.slow_link(600)
        for _ in range(3):
            await super().well()

    async def mend(self) -> None:
        self.source.slow_link(1)


class Stuck(Pulling):
    """A source answers nobody that knew it, and one has nobody left where it serves pulls."""

    alerts = frozenset({"P2PGatewayPullsHang", "P2PGatewayPullPortClosed"})
    p2p: ClassVar = {"deadline_floor": 2.0, "deadline_cap": 2.0}

    async def begin(self) -> None:
        await super().begin()
        self.port = await self._listening(0)
        closing = await self.stack.enter_async_context(raw(sends(_WELL, goes_on=True)))
        self.served_port = closing.p2p_port = self.port.sockets[0].getsockname()[1]
        await self.served([closing, self.consumer], p2p={"port_probe_interval": 0.5})
        self.stack.callback(self._close)

    def _close(self) -> None:
        self.port.close()

    async def well(self) -> None:
        """Once: they know each other then."""
        if not self.salt:
            await super().well()

    @staticmethod
    async def _listening(port: int) -> asyncio.Server:
        return await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)

    async def strike(self) -> None:
        self.source.stale_session()
        self.port.close()
        await super().well()

    async def mend(self) -> None:
        self.source.inject(StaleSession(seconds=0.01))
        self.port = await self._listening(self.served_port)


class Strangers(Scene):
    """A pod joins that hashes differently; what was learned cannot be written; a configuration cannot be read."""

    alerts = frozenset({"P2PGatewayPodsDisagree", "P2PGatewayCostsNotKept", "P2PGatewayConfigurationNotUsed"})

    async def begin(self) -> None:
        self.one, self.other = await self.pod(), await self.pod(seed="1")
        (self.folder / "directory").mkdir()
        sections = common({"p2p": {"probe": True}})
        self.file: Reloadable = await self.stack.enter_async_context(
            reloadable([self.one], self.folder / "strangers.yaml", **sections)
        )
        self.targets.append(self.file.front.url.removeprefix("http://"))
        self.joined = False

    async def strike(self) -> None:
        if not self.joined:
            self.joined = True
            costs = {"path": str(self.folder / "directory"), "save_interval": 0.3}
            self.other.fail_next(503)  # the gateway's own question, by which it would find out
            assert await self.file.reload([self.one, self.other], costs=costs) == "ok"
            await self.file.front.until_ready(2)
            await warm(self.one, ids(64))
            await warm(self.other, ids(64))
        self.file.file.write_text("pods: {}")
        assert await self.file.again() == "failed"

    async def mend(self) -> None:
        assert await self.file.reload([self.one], costs={"path": None}) == "ok"


class Keys(Scene):
    """Somebody guesses keys, and the file of keys has a mistake."""

    alerts = frozenset({"P2PGatewayKeysTried", "P2PGatewayFileNotUsed"})

    async def begin(self) -> None:
        self.keys = self.folder / "keys.yaml"
        write(self.keys, ENTRIES)
        pod = await self.pod()
        self.front = await self.served(
            [pod], auth={"keys": str(self.keys), "open_metrics": True}, session={"headers": bearer(ROOT)}
        )
        self.changes = 0

    async def well(self) -> None:
        await self.front.complete([1, 2, 3])

    async def strike(self) -> None:
        for _ in range(5):
            assert await ask(self.front, headers=bearer("sk-guessed")) == 401
        self.changes += 1
        self.keys.write_text(f"keys: {'x' * self.changes}")

    async def mend(self) -> None:
        write(self.keys, ENTRIES)


class Faulty(Scene):
    """The gateway's own fault, and that of somebody's scorer."""

    alerts = frozenset({"P2PGatewayFault", "P2PGatewayScorerFails"})

    async def begin(self) -> None:
        pod = await self.pod()
        scorer = {"type": f"{__name__}:Moody"}
        self.front = await self.served([pod], placement={"scorers": [scorer]})
        self.only = pod
        self.follow = self.front.parts.fleet._follow

    async def well(self) -> None:
        await self.front.complete([1, 2, 3])

    async def strike(self) -> None:
        Moody.fails = True
        with suppress(Exception):
            await self.front.complete([1, 2, 3])
        if self.front.parts.fleet._follow is self.follow:
            self.front.parts.fleet._follow = _a_bug
            await self.only.kill()
            await until(lambda: not self.front.parts.pods.ready)
            await self.only.restart()

    async def mend(self) -> None:
        Moody.fails = False
        self.front.parts.fleet._follow = self.follow
        await self.front.until_ready(1)


async def _a_bug(_: object) -> None:
    raise RuntimeError("a bug")


class Moody:
    """A scorer of somebody's own."""

    fails = False

    def score(self, _: PlacementRequest, candidates: list[Candidate]) -> list[float]:
        if self.fails:
            raise RuntimeError("not today")
        return [0.5] * len(candidates)


class Surprised(Scene):
    """Nothing was learned of a pod yet, and it is far from what is usual."""

    alerts = frozenset({"P2PGatewayPredictionsOff"})

    async def begin(self) -> None:
        async def slowly(pod: RawPod, writer: asyncio.StreamWriter) -> bool:
            await asyncio.sleep(1.5)
            return await sends(_WELL, goes_on=True)(pod, writer)

        self.front = await self.served([await self.stack.enter_async_context(raw(slowly))])
        self.asked = False

    async def strike(self) -> None:
        if not self.asked:
            self.asked = True
            await ask(self.front)


class Process(Scene):
    """Gateways as processes: nobody reads the log, a disk is full, files run out, one is killed, one stands still."""

    alerts = frozenset(
        {
            "P2PGatewayLogIncomplete",
            "P2PGatewayAccessLogIncomplete",
            "P2PGatewayFilesRunOut",
            "P2PGatewayEventLoopLate",
            "P2PGatewayDown",
        }
    )
    _FILES = 200

    async def begin(self) -> None:
        self.switch = Switched(sends(b"garbage\r\n\r\n"))
        pods = [await self.stack.enter_async_context(raw(self.switch)) for _ in range(2)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.doomed_port, self.halting_port = self._free(), self._free()
        self.command = self._command(pods, port, "gateway.yaml", access_log={"enabled": True, "path": "/dev/full"})
        self.doomed_command = self._command(pods, self.doomed_port, "doomed.yaml")
        self.gateway, self.reader = await self._started(self.command, piped=True)
        self.doomed, _ = await self._started(self.doomed_command)
        # One of its own: while it stands still nothing is scraped, so no other alert would last.
        self.halting, _ = await self._started(self._command(pods, self.halting_port, "halting.yaml"))
        self.stack.push_async_callback(self._ended)
        self.url = f"http://127.0.0.1:{port}"
        self.targets += [f"127.0.0.1:{each}" for each in (port, self.doomed_port, self.halting_port)]
        self.http = await self.stack.enter_async_context(client())
        self.open: list[asyncio.StreamWriter] = []
        for target in self.targets:
            await until(lambda t=target: self._ready(t))  # type: ignore[misc]
        self.port = port

    @staticmethod
    def _free() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    def _command(self, pods: list[RawPod], port: int, name: str, **sections: Any) -> list[str]:
        quick = {"breaker": {"failures": 100_000}, "limits": {"drain_timeout": 0.1}}
        made = configuration(pods, **common({"listen": {"port": port}} | quick | sections))
        file = self.folder / name
        file.write_text(yaml.safe_dump(msgspec.to_builtins(made)))
        return [sys.executable, "-m", "gateway", "--config", str(file)]

    async def _started(
        self, command: list[str], *, piped: bool = False
    ) -> tuple[asyncio.subprocess.Process, int | None]:
        reader, writer = os.pipe() if piped else (None, None)
        limit = self._FILES

        def bounded() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        process = await asyncio.create_subprocess_exec(
            *command, stderr=writer if writer is not None else asyncio.subprocess.DEVNULL, preexec_fn=bounded
        )
        if writer is not None:
            os.close(writer)
        return process, reader

    async def _ready(self, target: str) -> bool:
        with suppress(Exception):
            async with self.http.get(f"http://{target}/ready") as answer:
                return answer.status == 200
        return False

    async def strike(self) -> None:
        self.switch.bad = True
        if self.reader is not None:
            os.close(self.reader)
            self.reader = None
        if self.doomed.returncode is None:
            self.doomed.kill()
            await self.doomed.wait()
        already = len(list(Path(f"/proc/{self.gateway.pid}/fd").iterdir()))  # it closes those that say nothing for long
        for _ in range(int(0.88 * self._FILES) - already):
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            self.open.append(writer)
        with suppress(Exception):
            async with self.http.post(f"{self.url}/v1/completions", json=text_body([1, 2])) as answer:
                await answer.read()
        self.halting.send_signal(signal.SIGSTOP)  # as a machine does that has something else to do
        await asyncio.sleep(_STOPPED_S)
        self.halting.send_signal(signal.SIGCONT)

    async def mend(self) -> None:
        self.switch.bad = False
        for writer in self.open:
            writer.close()
        self.open.clear()
        self.doomed, _ = await self._started(self.doomed_command)
        await until(lambda: self._ready(f"127.0.0.1:{self.doomed_port}"))

    async def _ended(self) -> None:
        for process in (self.gateway, self.doomed, self.halting):
            if process.returncode is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                await process.wait()


SCENES: tuple[Callable[[AsyncExitStack, Path], Scene], ...] = (
    Healthy,
    Broken,
    Slow,
    Gone,
    Hangs,
    Prompts,
    Deaf,
    Link,
    Stuck,
    Strangers,
    Keys,
    Faulty,
    Surprised,
    Process,
)
