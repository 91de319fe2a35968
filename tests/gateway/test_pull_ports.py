"""Where nobody listens nobody pulls from, and not between pods that differ in what they must have in common."""

import asyncio
import socket
from typing import Any

import pytest
import zmq
import zmq.asyncio

from gateway.ports import connect
from tests.gateway.fleet import (
    DEADLINE_S,
    MODEL,
    ids,
    name,
    serving,
    simulated,
    spec,
    until,
)
from tests.gateway.pulling import (
    COMPUTES,
    PATIENT,
    breakers,
    is_named,
    reason,
    served,
    streamed,
)
from tests.gateway.scripted import says, scripted


async def test_a_pod_that_does_not_listen_where_it_serves_pulls_is_no_source_until_it_does() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with simulated(2, profile=PATIENT) as (consumer, holder):
            entries = spec(consumer, **COMPUTES), spec(holder, p2p=f"127.0.0.1:{port}")
            async with served(*entries, holder=holder) as front:

                async def shut() -> bool:
                    return await front.metric("pod_p2p_port_closed", pod=name(holder)) == 1

                await until(shut)
                assert await reason(front, 0) == "breaker"
                assert (await streamed(front, 0)).source is None
                assert await breakers(front) == [(holder.url, None, "port")]
                assert await front.metric("pod_p2p_port_closed", pod=name(consumer)) == 0
                assert await front.metric("watchdog_fired_total") == 0
                closed.listen()
                await until(lambda: is_named(front, 1))
                assert await front.metric("port_probes_total", pod=name(holder), result="refused") > 0


async def test_ports_are_not_looked_at_where_that_is_not_wanted() -> None:
    async with simulated(2, profile=PATIENT) as (consumer, holder):
        entries = spec(consumer, **COMPUTES), spec(holder, p2p="127.0.0.1:1")
        async with served(*entries, holder=holder, p2p={"port_probe_interval": None}) as front:
            assert await reason(front, 0) == "named"
            assert await front.metric("port_probes_total") == 0


@pytest.mark.parametrize("different", [{"root": "/models/other"}, {"seed": "1"}], ids=["model path", "seed"])
async def test_pods_that_can_never_pull_from_each_other_are_not_paired(different: dict[str, Any]) -> None:
    async with simulated(profile=PATIENT) as (consumer,), simulated(profile=PATIENT, **different) as (holder,):
        entries = spec(consumer, **COMPUTES), spec(holder)
        async with served(*entries, holder=holder, p2p={"probe": True}) as front:

            async def differ() -> bool:
                return await reason(front, 0) == "differ"

            await until(differ)
            answer = await front.complete(ids(200))
            assert (answer.source, answer.cached) == (None, 0)
            assert await front.metric("pulls_total", outcome="differ") == 1
            assert await front.metric("pod_disagreements", pod=name(consumer)) == 1


async def test_what_pods_say_of_themselves_is_compared_where_they_say_it() -> None:
    async with scripted() as one, scripted() as other, scripted() as silent:
        one.scripts["/kv/identity"] = says({"dtype": "bfloat16", "tensor_parallel": 2, "p2p_tier": None})
        other.scripts["/kv/identity"] = says({"dtype": "float16", "tensor_parallel": 2, "p2p_tier": "x"})
        other.scripts["/version"] = says({"version": "0.32.1"})
        silent.scripts["/version"] = says({"version": "0.33.0+cpu"})
        async with serving([one, other, silent]) as front:

            async def known() -> bool:
                return await front.metric("identities_total", result="ok") == 3

            await until(known)
            rows = await front.pods()
            assert rows[one.url]["cannot_pull_from"] == {name(other): "dtype"}
            assert rows[other.url]["cannot_pull_from"] == {name(one): "dtype", name(silent): "version"}


async def test_a_pod_that_cannot_say_what_it_is_serves_all_the_same() -> None:
    async with scripted(completions=says({"ok": True})) as pod:
        pod.scripts["/kv/identity"] = says({"detail": "no"}, 500)
        async with serving([pod]) as front:

            async def failed() -> bool:
                return await front.metric("identities_total", pod=name(pod), result="pod_unavailable") == 1

            await until(failed)
            assert (await front.post("/v1/completions", {"model": MODEL, "prompt": [1]})).status == 200


async def test_what_listens_there_takes_no_harm_from_being_looked_at() -> None:
    with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        for _ in range(50):
            assert await connect("127.0.0.1", port) == "listening"
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(f"tcp://127.0.0.1:{port}")
            await dealer.send(b"hello")
            async with asyncio.timeout(DEADLINE_S):
                peer, said = await router.recv_multipart()
                await router.send_multipart([peer, b"well"])
                assert (said, await dealer.recv()) == (b"hello", b"well")
            dealer.linger = router.linger = 0
    assert await connect("127.0.0.1", port) == "refused"
    assert await connect("no.such.host.invalid", 1) == "unreachable"


async def test_a_name_with_several_addresses_is_refused_where_each_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def several(_: str, __: int) -> list[str]:
        return ["127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr("gateway.ports._addresses", several)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        assert await connect("several.invalid", port) == "refused"
        closed.listen()
        assert await connect("several.invalid", port) == "listening"


async def test_where_there_can_be_no_port_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert await connect("127.0.0.1", 65536 + other.getsockname()[1]) == "refused"
