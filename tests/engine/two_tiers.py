"""Two tiers of engine_patch in one process, without engines, over real ZeroMQ and NIXL; each steps when it is told.

Run by `test_p2p_tier.py` with the engine environment's Python. It shows what two pods cannot, where a transfer's bytes
land: a source that hangs between lookup and fetch, and goes on when the consumer has given up, writes nothing into
memory that may have been given to others. And what hardly ever happens between pods: what ends in the very look in
which it is late, and messages of nobody.
"""

import socket
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import numpy as np
import zmq
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.p2p import manager as stock

from engine_patch.p2p_tier import BoundedP2PTier
from engine_patch.p2p_transport import _is_peer as is_peer
from engine_patch.quarantine import LET_GO_S

CHUNKS, CHUNK_BYTES = 64, 4096
DEADLINE_S = 1.0
KEYS = [OffloadKey(b"key %d" % number) for number in range(4)]
OURS = 99


class Pod:
    """A tier, the memory it serves, and what stands around it in an engine. Its own parent, too."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        self.memory = np.zeros((CHUNKS, CHUNK_BYTES), dtype=np.uint8)
        self.held: dict[OffloadKey, int] = {}
        self.free: list[int] = []
        primary = SimpleNamespace(_free_chunk=lambda chunk: self.free.append(chunk.chunk_id), _free_list=self.free)
        self.primary = primary
        self._m = SimpleNamespace(primary_tier=primary)
        self.finished: dict[int, bool] = {}
        self.hangs = False
        self._jobs = 1000
        spec = SimpleNamespace(
            blocks_per_chunk=1, config=SimpleNamespace(parallel=SimpleNamespace(data_parallel_index=0))
        )
        self.tier = BoundedP2PTier(
            offloading_spec=spec,
            primary_kv_view=memoryview(self.memory),
            host="127.0.0.1",
            port=self.port,
            deadline_s=DEADLINE_S,
        )

    def step(self) -> None:
        if not self.hangs:
            self.finished |= {result.job_id: result.success for result in self.tier.get_finished_jobs()}
            self.tier.serve_external_requests(self)
            self.tier.on_schedule_end(ScheduleEndContext(new_req_ids=[], preempted_req_ids=()))

    def on_new_request(self, context: ReqContext) -> None: ...

    def on_request_finished(self, context: ReqContext) -> None: ...

    def lookup(self, key: OffloadKey, _context: ReqContext) -> LookupResult:
        return LookupResult.HIT if key in self.held else LookupResult.MISS

    def create_store_job(self, keys: list[OffloadKey], context: ReqContext) -> TransferJob:
        self._jobs += 1
        return _job(self._jobs, keys, [self.held[key] for key in keys], context)


def _job(number: int, keys: list[OffloadKey], chunks: list[int], context: ReqContext) -> TransferJob:
    return TransferJob(
        job_id=number, keys=keys, chunk_ids=np.array(chunks), is_promotion=number < 1000, req_context=context
    )


class Pair:
    def __init__(self) -> None:
        self.source, self.consumer = Pod(), Pod()
        for chunk, key in enumerate(KEYS):
            self.source.memory[chunk] = chunk + 1
            self.source.held[key] = chunk
        self._requests = 0

    def until(self, condition: Callable[[], object], limit_s: float = 10.0) -> float:
        """Let both step until the condition holds; returns how long it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < limit_s, "it never came to that"
            self.source.step()
            self.consumer.step()
            time.sleep(0.001)
        return time.monotonic() - began

    def request(self) -> ReqContext:
        self._requests += 1
        named = {"kv_request_id": f"r{self._requests}", "remote_host": "127.0.0.1", "remote_port": self.source.port}
        context = ReqContext(req_id=f"r{self._requests}", kv_transfer_params={"remote_kv_source": named})
        self.consumer.tier.on_new_request(context)
        return context

    def found(self, context: ReqContext) -> bool:
        """Whether the source has all blocks, once that is known."""
        results: list[LookupResult] = []

        def known() -> bool:
            results[:] = [self.consumer.tier.lookup(key, context) for key in KEYS]
            return LookupResult.MISS in results or LookupResult.RETRY not in results

        self.until(known)
        return set(results) == {LookupResult.HIT}

    def pulled(self, context: ReqContext, job: int, chunks: list[int]) -> bool:
        self.consumer.tier.submit_load(_job(job, KEYS, chunks, context))
        self.until(lambda: job in self.consumer.finished)
        return self.consumer.finished[job]

    def is_found_again(self) -> bool:
        context = self.request()
        found = self.found(context)
        self.consumer.tier.on_request_finished(context)
        return found

    @property
    def peer(self) -> str:
        return f"127.0.0.1:{self.source.port}"

    def under_way(self, job: int, chunks: list[int]) -> ReqContext:
        """A pull whose source hangs."""
        context = self.request()
        assert self.found(context)
        self.source.hangs = True
        self.consumer.tier.submit_load(_job(job, KEYS, chunks, context))
        return context

    def close(self) -> None:
        for pod in (self.consumer, self.source):
            pod.tier.shutdown()


def main() -> int:
    stock.FileMapper.from_offloading_spec = lambda **_: SimpleNamespace(get_run_config=lambda: {"model": "m"})
    for scene in (
        a_source_that_hangs,
        an_answer_that_has_come_is_not_late,
        a_session_that_ends_with_a_late_pull,
        a_process_that_was_replaced_before,
        an_abort_that_is_acknowledged,
        messages_of_nobody,
    ):
        pair = Pair()
        scene(pair)
        pair.close()
        print(scene.__name__)
    return 0


def an_answer_that_has_come_is_not_late(pair: Pair) -> None:
    context = pair.request()
    assert pair.found(context)
    pair.consumer.tier.submit_load(_job(1, KEYS, [10, 11, 12, 13], context))
    ends = time.monotonic() + DEADLINE_S + 0.5
    while time.monotonic() < ends:
        pair.source.step()
        time.sleep(0.001)
    pair.consumer.step()
    assert pair.consumer.finished == {1: True}
    assert pair.consumer.memory[10:14, 0].tolist() == [1, 2, 3, 4]
    assert pair.is_found_again(), "the source is well"


def a_session_that_ends_with_a_late_pull(pair: Pair) -> None:
    consumer = pair.consumer
    pair.under_way(1, [10, 11, 12, 13])
    time.sleep(DEADLINE_S + 0.1)
    consumer.tier._sessions[pair.peer]._conn.mark_dead()
    _freed(pair, 1)
    for _ in range(10):
        consumer.step()
    assert consumer.free == [], "the source may still write"
    assert 1 in consumer.tier._quarantine


def a_process_that_was_replaced_before(pair: Pair) -> None:
    consumer = pair.consumer
    consumer.tier._control._replaced.add(pair.peer)
    pair.under_way(1, [10, 11, 12, 13])
    _freed(pair, 1)
    consumer.step()
    assert consumer.tier._quarantine._pulls[1].until > time.monotonic() + 60


def an_abort_that_is_acknowledged(pair: Pair) -> None:
    """One of a late pull, and one of a request that has ended: writes of both may land for a moment more."""
    consumer = pair.consumer
    given_up = pair.under_way(1, [10, 11])
    consumer.tier._control._heard_at[pair.peer] = time.monotonic() + 60  # it speaks, and is only slow
    _freed(pair, 1)
    pair.consumer.tier._sessions[pair.peer]._client.on_abort_ack(given_up.req_id, 0)
    pair.source.hangs = False
    assert pair.until(lambda: consumer.free, 20) > LET_GO_S / 2
    consumer.free.clear()
    pair.until(pair.is_found_again, 20)
    ended = pair.under_way(2, [20, 21])
    consumer.tier.on_request_finished(ended)
    consumer.tier._sessions[pair.peer]._client.on_abort_ack(ended.req_id, 0)
    _freed(pair, 2)
    pair.source.hangs = False
    assert pair.until(lambda: len(consumer.free) == 2, 20) > LET_GO_S / 2


def _freed(pair: Pair, job: int) -> None:
    """The consumer is told that the pull has failed, and frees its chunks."""
    consumer = pair.consumer
    pair.until(lambda: job in consumer.finished)
    assert not consumer.finished[job]
    for chunk in (10, 11, 12, 13) if job == 1 else (20, 21):
        consumer.primary._free_chunk(SimpleNamespace(chunk_id=chunk))
    assert job in consumer.tier._quarantine
    consumer.free[:] = [chunk for chunk in consumer.free if consumer.tier._quarantine.hold(chunk)]


def messages_of_nobody(pair: Pair) -> None:
    greeting = msgspec.msgpack.encode({"type": "connect"})
    odd: list[tuple[bytes, bytes]] = [
        (b"127.0.0.1:1", b"\x91" * 200_000),
        (b"127.0.0.1:70000", greeting),
        (b"127.0.0.1:0", greeting),
        (b"no address", greeting),
        (b"*:5", greeting),
        *[(b"", greeting)] * 20,
    ]
    control = pair.consumer.tier._control
    assert not is_peer("\0ab:1")
    with zmq.Context() as context:
        sockets = []
        for name, message in odd:
            sockets.append(context.socket(zmq.DEALER))
            if name:
                sockets[-1].identity = name
            sockets[-1].connect(f"tcp://127.0.0.1:{pair.consumer.port}")
            sockets[-1].send(message)
        pair.until(lambda: control.dropped >= len(odd))
        for each in sockets:
            each.close(linger=0)
    assert control.dropped == len(odd)
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.identity = b"127.0.0.1:1"
        peer.connect(f"tcp://127.0.0.1:{pair.consumer.port}")
        for message in (
            {"type": "connect"},
            {"type": "abort_fetch", "kv_request_id": [], "round_seq": {}},
            {"type": []},
        ):
            peer.send(msgspec.msgpack.encode(message))
        began = time.monotonic()
        pair.until(lambda: time.monotonic() > began + 0.5)
    assert pair.is_found_again()


def a_source_that_hangs(pair: Pair) -> None:
    consumer = pair.consumer

    context = pair.request()
    assert pair.found(context)
    assert pair.pulled(context, 1, [10, 11, 12, 13])
    assert consumer.memory[10:14, 0].tolist() == [1, 2, 3, 4]
    consumer.tier.on_request_finished(context)

    given_up = pair.request()
    assert pair.found(given_up)
    pair.source.hangs = True
    began = time.monotonic()
    assert not pair.pulled(given_up, 2, [20, 21, 22, 23])
    assert time.monotonic() - began < DEADLINE_S + 0.5
    # What vLLM does with a failed pull: it frees the chunks. They must not be given to anybody.
    for chunk in (20, 21, 22, 23):
        consumer.primary._free_chunk(SimpleNamespace(chunk_id=chunk))
    assert consumer.free == []
    consumer.tier.on_request_finished(given_up)
    assert not pair.is_found_again(), "nobody waits for it again"

    consumer.memory[20:24] = OURS
    pair.source.hangs = False
    pair.until(lambda: sorted(consumer.free) == [20, 21, 22, 23], 20)
    assert (consumer.memory[20:24] == OURS).all(), "the source has written"
    pair.until(pair.is_found_again, 20)


if __name__ == "__main__":
    sys.exit(main())
