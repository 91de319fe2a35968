"""Pulls: a consumer asks the source a request names for the blocks it lacks, over a TCP connection of its own.

Three messages, each answered: *hello* says who the consumer takes the source for and how it hashes (the source refuses
whoever names it differently, runs another model or hashes otherwise), *lookup* asks how many of these blocks the
source's CPU tier holds, from the first on, *fetch* moves so many. No bytes of KV travel: the source answers a fetch
when its link would have carried them, and concurrent fetches share the link. The source answers between its engine's
steps, as vLLM 0.32 does, so a busy one is slow and a stalled one silent. However a pull fails, it is a miss: the
consumer computes.

A frame is its length (4 bytes, big endian) and a msgpack value.
"""

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Run
from typing import Any, Final, Protocol

import msgspec

from loadgen.ports import reset
from loadgen.profile import PodProfile
from loadgen.sequence import KvSource

# A fetch re-reads how many share the link after each so many blocks.
_SLICE_BLOCKS: Final = 64
_LONGEST_FRAME: Final = 1 << 24


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


class Puller:
    """The consumer's side of one rank."""

    def __init__(self, profile: PodProfile, identity: Identity) -> None:
        self._profile = profile
        self._identity = identity
        self._known: set[tuple[str, str]] = set()

    async def pull(self, source: KvSource, hashes: Run[bytes], reserve: Callable[[int], int]) -> int:
        """Move the longest prefix of ``hashes`` that the source holds; return its length, 0 for any failure.

        ``reserve`` is told how many blocks will come and returns how many there is room for.
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
                peer = (source.host, source.port)
                hello = {"to": f"{source.host}:{source.port}", "identity": self._identity}
                if not await _ask(reader, writer, ["hello", hello]):
                    raise _Failed
            if peer not in self._known:
                await asyncio.sleep(profile.ms(profile.pull_setup_ms))
                self._known.add(peer)
            async with asyncio.timeout(profile.pull_lookup_deadline_s):
                found = await _ask(reader, writer, ["lookup", hashes])
            count = reserve(min(int(found), len(hashes)))
            if count:
                await asyncio.sleep(profile.ms(profile.pull_fixed_ms))
                async with asyncio.timeout(profile.pull_fetch_deadline_s):
                    await _ask(reader, writer, ["fetch", count])
            return count
        finally:
            if writer is not None:
                writer.transport.abort()


class _Holder(Protocol):
    """The engine, as far as its peers see it."""

    async def between_steps(self) -> None: ...

    def count_held(self, hashes: Run[bytes]) -> int: ...


class PullServer:
    """The source's side of one rank; ``address`` is the host:port by which consumers must call it."""

    def __init__(self, profile: PodProfile, identity: Identity, address: str, holder: _Holder) -> None:
        self._profile = profile
        self._identity = msgspec.to_builtins(identity, builtin_types=(bytes,))
        self._address = address
        self._holder = holder
        self._fetches = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one consumer until it leaves."""
        self._writers.add(writer)
        try:
            welcome = False
            while True:
                match await _read(reader):
                    case ["hello", {"to": to, "identity": identity}]:
                        await self._holder.between_steps()
                        welcome = to == self._address and identity == self._identity
                        _write(writer, welcome)
                    case ["lookup", [*hashes]] if welcome:
                        await self._holder.between_steps()
                        _write(writer, self._holder.count_held(hashes))
                    case ["fetch", int(count)] if welcome:
                        await self._holder.between_steps()
                        await self._send_blocks(count)
                        _write(writer, value=True)
                    case _:
                        return
        except (OSError, EOFError, ValueError, msgspec.DecodeError):
            return
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def reset(self) -> None:
        """Reset every connection."""
        for writer in list(self._writers):
            reset(writer.get_extra_info("socket"))
            writer.transport.abort()

    async def _send_blocks(self, count: int) -> None:
        self._fetches += 1
        try:
            while count > 0:
                blocks = min(count, _SLICE_BLOCKS)
                await asyncio.sleep(self._profile.pull_s(blocks * self._profile.block_size) * self._fetches)
                count -= blocks
        finally:
            self._fetches -= 1


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
