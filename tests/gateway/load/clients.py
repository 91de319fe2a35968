"""Readers of streams, each of which knows what it has to get, in a process of their own.

`python -m tests.gateway.load.clients OPTIONS` → the word `ramped` when all streams have begun, then `Tally` as JSON. A
stream that is broken off is asked for again, for what is left of it, as people's clients do.
"""

import asyncio
import random
import socket
import sys
import time
from typing import Final, cast

import msgspec
import uvloop
from httptools import HttpParserError, HttpResponseParser

from tests.gateway.load.script import Asked, events, whole

_SLOW_BYTES: Final = 100  # at once
_SLOW_S: Final = 0.1
_SLOW_BUFFER_BYTES: Final = 4096
_SLOW: Final = Asked(max_tokens=100_000, pace=0, fill=16 * 1024)  # of which no reader comes near the end
_PATIENCE: Final = (0.5, 1.5)  # seconds before a stream that broke is asked for again
_GRACE_S: Final = 60.0
_FAULTS_TOLD: Final = 10


class Options(msgspec.Struct, kw_only=True):
    """`streams` begin within `ramp_s`, take `seconds` each, an event every `pace` seconds; the share `leaving` leaves
    somewhere in between. `slow` more are read at a kilobyte a second, `slow_s` long, again and again.
    """

    port: int
    streams: int
    seconds: float
    ramp_s: float
    pace: float
    leaving: float
    slow: int
    slow_s: float


class Tally(msgspec.Struct, kw_only=True):
    """How the streams ended. `delays_s` are the p50, p99 and maximum of events' delays, pod and reader included."""

    sent: int = 0
    complete: int = 0
    broken: int = 0  # with an error event, after a true beginning
    left: dict[str, float] = {}  # when, by the request's id
    asked_again: int = 0
    slow: dict[str, bool] = {}  # whether they were cut off before they gave up, by the request's id
    faults: list[str] = []
    faulty: int = 0
    delays_s: tuple[float, float, float] = (0.0, 0.0, 0.0)


class Answer:
    """An answer that is being read: httptools' callbacks."""

    def __init__(self) -> None:
        self.parser = HttpResponseParser(self)
        self.body = bytearray()
        self.began = 0.0  # when the pod began
        self.events = 0  # that have arrived, the end marker included
        self.whole = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-began":
            self.began = float(value)

    def on_body(self, piece: bytes) -> None:
        self.body += piece
        self.events += piece.count(b"\n\n")

    def on_message_complete(self) -> None:
        self.whole = True

    @property
    def status(self) -> int:
        """0 before there is one."""
        return self.parser.get_status_code()


def posted(identity: str, asked: Asked) -> bytes:
    """The request."""
    body = msgspec.json.encode(asked)
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        b"x-request-id: %b\r\nContent-Length: %d\r\n\r\n%b" % (identity.encode(), len(body), body)
    )


class Stream(asyncio.Protocol):
    """One request on a connection of its own; `leaves_at`: the time at which its reader goes."""

    def __init__(self, clients: "Clients", identity: str, asked: Asked, leaves_at: float | None) -> None:
        self._clients = clients
        self._identity, self._asked = identity, asked
        self._leaves_at = leaves_at
        self._answer = Answer()
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not derive from it
        self._transport.write(posted(self._identity, self._asked))
        if self._leaves_at is not None:
            self._clients.loop.call_at(self._leaves_at, self._leave)

    def data_received(self, data: bytes) -> None:
        answer, before = self._answer, self._answer.events
        try:
            answer.parser.feed_data(data)
        except HttpParserError as error:
            self._end(f"no HTTP: {error}")
            return
        if answer.events > before:
            self._clients.delays.append(time.monotonic() - answer.began - self._asked.pace * before)
        if answer.whole:
            self._judge()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._over:
            self._broke()

    def _leave(self) -> None:
        if not self._over:
            self._clients.tally.left[self._identity] = time.monotonic()
            self._end(None)

    def _judge(self) -> None:
        answer = self._answer
        if answer.status != 200:
            self._end(f"{answer.status} {bytes(answer.body[:300])!r}")
        elif answer.body != whole(self._identity, self._asked.max_tokens):
            self._end(f"other bytes than were sent: {bytes(answer.body[-300:])!r}")
        else:
            self._clients.tally.complete += 1
            self._end(None)

    def _broke(self) -> None:
        """The only honest end of an answer that is not whole: what the pod said so far, then an error."""
        said, found, last = bytes(self._answer.body).rpartition(b'\n\ndata: {"error":')
        if not found or b"pod_disconnected" not in last or not last.endswith(b"}\n\n"):
            self._end(f"broken off without a word, after {len(self._answer.body)} bytes: {said[-300:]!r}")
            return
        if not whole(self._identity, self._asked.max_tokens).startswith(said):
            self._end(f"other bytes than were sent, then an error: {said[-300:]!r}")
            return
        self._clients.tally.broken += 1
        left = self._asked.max_tokens - said.count(b"data: ")
        if left > 0:
            self._clients.again(self._identity, msgspec.structs.replace(self._asked, max_tokens=left))
        self._end(None)

    def _end(self, fault: str | None) -> None:
        self._over = True
        self._transport.abort()
        if fault is not None:
            self._clients.fault(f"{self._identity}: {fault}")
        self._clients.ended()


class Clients:
    """All readers of this process."""

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.tally = Tally()
        self.delays: list[float] = []
        self._options = options
        self._open = 0
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Tally:
        """Until all streams have ended."""
        options, random_ = self._options, random.Random(1)
        slow = [asyncio.create_task(self._reads_slowly(number)) for number in range(options.slow)]
        began = self.loop.time()
        leaving = set(random_.sample(range(options.streams), round(options.streams * options.leaving)))
        for number in range(options.streams):
            at = began + options.ramp_s * number / options.streams
            if (early := at - self.loop.time()) > 0:
                await asyncio.sleep(early)
            leaves_at = at + options.seconds * random_.uniform(0.1, 0.9) if number in leaving else None
            asked = Asked(max_tokens=round(options.seconds / options.pace), pace=options.pace)
            self._send(f"stream-{number}", asked, leaves_at, 0)
        sys.stdout.write("ramped\n")
        sys.stdout.flush()
        async with asyncio.timeout(options.seconds + _GRACE_S):
            await self._idle.wait()
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        self._sum_up()
        return self.tally

    def again(self, identity: str, asked: Asked) -> None:
        """Ask for the rest of a stream, after a while."""
        self.tally.asked_again += 1
        self._send(f"{identity}-again", asked, None, random.uniform(*_PATIENCE))

    def ended(self) -> None:
        """One stream less."""
        self._open -= 1
        if not self._open:
            self._idle.set()

    def fault(self, text: str) -> None:
        """What must not be."""
        self.tally.faulty += 1
        if len(self.tally.faults) < _FAULTS_TOLD:
            self.tally.faults.append(text)

    def _send(self, identity: str, asked: Asked, leaves_at: float | None, after: float) -> None:
        self.tally.sent += 1
        self._open += 1
        task = asyncio.create_task(self._connect(Stream(self, identity, asked, leaves_at), identity, after))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, stream: Stream, identity: str, after: float) -> None:
        await asyncio.sleep(after)
        try:
            await self.loop.create_connection(lambda: stream, "127.0.0.1", self._options.port)
        except OSError as error:
            self.fault(f"{identity}: no connection: {error}")
            self.ended()

    async def _reads_slowly(self, number: int) -> None:
        """A reader that the pod is always ahead of, then another one."""
        attempt = 0
        while True:
            attempt += 1
            identity, answer = f"slow-{number}-{attempt}", Answer()
            with socket.socket() as reader:
                reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BUFFER_BYTES)
                reader.setblocking(False)
                self.tally.slow[identity] = False
                try:
                    async with asyncio.timeout(self._options.slow_s):
                        await self._read_slowly(reader, posted(identity, _SLOW), answer)
                except ConnectionResetError:
                    self.tally.slow[identity] = True
                except TimeoutError:
                    pass
            said = b"".join(events(identity, 1 + len(answer.body) // _SLOW.fill, fill=_SLOW.fill))
            if answer.whole or answer.status != 200 or not said.startswith(answer.body):
                self.fault(f"{identity}: {answer.status}, {len(answer.body)} bytes, {bytes(answer.body[-300:])!r}")

    async def _read_slowly(self, reader: socket.socket, request: bytes, answer: Answer) -> None:
        await self.loop.sock_connect(reader, ("127.0.0.1", self._options.port))
        await self.loop.sock_sendall(reader, request)
        while piece := await self.loop.sock_recv(reader, _SLOW_BYTES):
            answer.parser.feed_data(piece)
            await asyncio.sleep(_SLOW_S)
            if reader.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # read, it would come after all that is here
                raise ConnectionResetError

    def _sum_up(self) -> None:
        ordered = sorted(self.delays) or [0.0]
        self.tally.delays_s = (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])


if __name__ == "__main__":

    async def _main() -> Tally:
        return await Clients(msgspec.json.decode(sys.argv[1], type=Options)).run()

    sys.stdout.write(msgspec.json.encode(uvloop.run(_main())).decode() + "\n")
