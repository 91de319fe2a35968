"""Pulls: a consumer asks the source a request names for the blocks it lacks, over a TCP connection of its own.

Three messages, each answered: *hello* says who the consumer takes the source for, how it hashes and which session with
this source it believes in (the source refuses whoever names it differently, runs another model or hashes otherwise),
*lookup* asks how many of these blocks the source's CPU tier holds, from the first on, *fetch* moves so many. The source
answers between its engine's steps, as vLLM 0.32 does, so a busy one is slow and a stalled one silent. However a pull
fails, it is a miss: the consumer computes. `loadgen.loads` says who pulls what, and who waits for it.

No bytes of KV travel: the source answers a fetch when both links would have carried them. A transfer goes at its equal
share of the source's outgoing link or of the consumer's incoming one, whichever is less; what it leaves unused of the
other is given to nobody. For every slice of blocks the source asks the consumer (*share*) for its side of that.

A frame is its length (4 bytes, big endian) and a msgpack value.
"""

import asyncio
import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Run
from typing import Any, Final, Literal, Protocol, TypeAlias

import msgspec

from loadgen.ports import reset
from loadgen.profile import PodProfile
from loadgen.sequence import KvSource

# How long a transfer goes on at the shares it began with, when others begin or end.
_SLICE_S: Final = 0.02
_LONGEST_FRAME: Final = 1 << 24
_Direction: TypeAlias = Literal["in", "out"]


class Identity(msgspec.Struct, frozen=True):
    """What two pods must have in common for their blocks to mean the same."""

    model: str
    block_size: int
    hash_algo: str
    none_hash: bytes


class _Failed(Exception):
    """The pull came to nothing."""


def parse_source(params: object) -> KvSource | None:
    """Return the peer that a request's ``kv_transfer_params`` names, None where they name none or incompletely."""
    source = params.get("remote_kv_source") if isinstance(params, dict) else None
    if not isinstance(source, dict):
        return None
    request_id, host, port = (source.get(key) for key in ("kv_request_id", "remote_host", "remote_port"))
    if not (request_id and host and port):
        return None
    return KvSource(str(request_id), str(host), str(port))


class Link:
    """One rank's network link: two directions, each shared equally by the transfers in it.

    ``slowdown`` multiplies what a block takes, from a transfer's next slice on.
    """

    def __init__(self, profile: PodProfile) -> None:
        self.slowdown = 1.0
        self._alone_s = profile.pull_s(profile.block_size)
        self._sharers: Counter[_Direction] = Counter()

    @contextlib.contextmanager
    def shared(self, direction: _Direction) -> Iterator[None]:
        """Count one transfer more while the context lasts."""
        self._sharers[direction] += 1
        try:
            yield
        finally:
            self._sharers[direction] -= 1

    def block_s(self, direction: _Direction) -> float:
        """Seconds a block takes at present for a transfer in this direction."""
        return self._alone_s * self._sharers[direction] * self.slowdown


class Puller:
    """The consumer's side of one rank."""

    def __init__(self, profile: PodProfile, identity: Identity, link: Link) -> None:
        self._profile = profile
        self._identity = identity
        self._link = link
        self._sessions: dict[tuple[str, str], str] = {}

    async def pull(self, source: KvSource, hashes: Run[bytes], reserve: Callable[[int], int]) -> int:
        """Move blocks of the longest prefix of ``hashes`` that the source holds; return how many, 0 for any failure.

        ``reserve`` is told how many blocks of it the source has and returns how many of them are to move.
        """
        try:
            return await self._pull(source, hashes, reserve)
        except (OSError, EOFError, TimeoutError, ValueError, msgspec.DecodeError, _Failed):
            return 0

    async def _pull(self, source: KvSource, hashes: Run[bytes], reserve: Callable[[int], int]) -> int:
        profile = self._profile
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(profile.pull_handshake_deadline_s):
                reader, writer = await asyncio.open_connection(source.host, int(source.port))
                session = await self._greet(source, reader, writer)
            if (source.host, source.port) not in self._sessions:
                await asyncio.sleep(profile.ms(profile.pull_setup_ms))
            self._sessions[source.host, source.port] = session
            async with asyncio.timeout(profile.pull_lookup_deadline_s):
                found = await _ask(reader, writer, ["lookup", hashes])
            count = reserve(min(int(found), len(hashes)))
            if count:
                await asyncio.sleep(profile.ms(profile.pull_fixed_ms))
                async with asyncio.timeout(profile.pull_fetch_deadline_s):
                    await self._fetch(reader, writer, count)
            return count
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _greet(self, source: KvSource, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Return the session that the source knows this rank by."""
        believed = self._sessions.get((source.host, source.port))
        hello = {"to": f"{source.host}:{source.port}", "identity": self._identity, "session": believed}
        match await _ask(reader, writer, ["hello", hello]):
            case str(session):
                return session
            case _:
                raise _Failed

    async def _fetch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        _write(writer, ["fetch", count])
        with self._link.shared("in"):
            while await _read(reader) == "share":
                _write(writer, self._link.block_s("in"))


class _Holder(Protocol):
    """The engine, as far as its peers see it."""

    async def between_steps(self) -> None: ...

    def count_held(self, hashes: Run[bytes]) -> int: ...


class PullServer:
    """The source's side of one rank; ``address`` is the host:port by which consumers must call it."""

    def __init__(self, identity: Identity, address: str, holder: _Holder, link: Link) -> None:
        self._identity = msgspec.to_builtins(identity, builtin_types=(bytes,))
        self._address = address
        self._holder = holder
        self._link = link
        self._sessions: set[str] = set()
        self._stale: set[str] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one consumer until it leaves."""
        self._writers.add(writer)
        session: str | None = None
        try:
            while True:
                match await _read(reader):
                    case ["hello", {"to": to, "identity": identity, "session": None | str() as believed}]:
                        await self._holder.between_steps()
                        known = to == self._address and identity == self._identity
                        session = self._open_session(believed) if known else None
                        _write(writer, session)
                    case ["lookup", [*hashes]] if session:
                        await self._holder.between_steps()
                        if session not in self._stale:
                            _write(writer, self._holder.count_held(hashes))
                    case ["fetch", int(count)] if session:
                        await self._holder.between_steps()
                        await self._send_blocks(reader, writer, count)
                        _write(writer, value=True)
                    case _:
                        return
        except (OSError, EOFError, ValueError, TypeError, msgspec.DecodeError):
            return
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def _open_session(self, believed: str | None) -> str:
        session = believed or uuid.uuid4().hex
        self._sessions.add(session)
        return session

    def forget_sessions(self) -> None:
        """From now on leave lookups unanswered that come in one of the sessions so far: their other side still
        believes in them, this one does not.
        """
        self._stale |= self._sessions

    def remember_sessions(self) -> None:
        """Answer lookups in any session again."""
        self._stale.clear()

    def reset(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            reset(writer.get_extra_info("socket"))
            writer.transport.abort()

    async def _send_blocks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: int) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        with self._link.shared("out"):
            while count > 0:
                block_s = max(float(await _ask(reader, writer, "share")), self._link.block_s("out"))
                blocks = min(count, max(1, int(_SLICE_S / block_s))) if block_s else count
                # By a schedule: what timers and the question are late by does not add up over the slices.
                due += blocks * block_s
                await asyncio.sleep(max(0.0, due - clock()))
                count -= blocks


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: object) -> Any:  # noqa: ANN401
    _write(writer, question)
    return await _read(reader)


def _write(writer: asyncio.StreamWriter, value: object) -> None:
    frame = msgspec.msgpack.encode(value)
    writer.write(len(frame).to_bytes(4, "big") + frame)


async def _read(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401
    """Return the next value. Raises EOFError at the end, ValueError for what is no frame."""
    length = int.from_bytes(await reader.readexactly(4), "big")
    if length > _LONGEST_FRAME:
        raise ValueError("frame too long")
    return msgspec.msgpack.decode(await reader.readexactly(length))
