"""A gateway over real sockets in front of simulated pods, and the questions that tests ask of it.

A test looks like a client, an operator or a pod; where it must wait, it waits for a condition under a deadline.
"""

import asyncio
import inspect
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from yarl import URL

from config.load import Config, decode
from gateway.app import Gateway
from gateway.server import Running, running
from loadgen.pod import SimulatedPod
from loadgen.profile import PodProfile

DEADLINE_S = 30.0
MODEL = "demo-model"
BLOCK = 16
SMALL = PodProfile(block_size=BLOCK, gpu_blocks=512, cpu_blocks=2048, max_model_len=8192, speed=50)
# One token every 20 ms: slow enough to be met in the middle of an answer.
SLOW = msgspec.structs.replace(SMALL, speed=1, decode_ms=20)
PREFIX_ONLY = {"scorers": [{"type": "prefix"}]}
QUEUE_ONLY = {"scorers": [{"type": "queue"}]}
AFFINITY = {"preset": "affinity"}


class Answer(NamedTuple):
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def pod(self) -> str:
        return self.headers["x-gateway-pod"]

    @property
    def source(self) -> str | None:
        return self.headers.get("x-gateway-kv-source")

    @property
    def cached(self) -> int:
        count: int = self.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count


async def until(condition: Callable[[], bool | Awaitable[bool]], *, deadline: float = DEADLINE_S) -> None:
    """Return when `condition` holds."""
    async with asyncio.timeout(deadline):
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await asyncio.sleep(0.005)


class Front:
    """A running gateway, as its clients and its operator see it."""

    def __init__(self, server: Running, http: aiohttp.ClientSession) -> None:
        self.url = server.url
        self.operators_url = server.admin_url or server.url
        self.parts: Gateway = server.gateway
        self.http = http

    async def get(self, path: str, **headers: str) -> Answer:
        async with self.http.get(self.url + path, headers=headers) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """Post bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"content-type": "application/json", **(headers or {})}
        where = URL(self.url + path, encoded=True)
        async with self.http.post(where, data=io.BytesIO(data), headers=sent) as answer:
            return Answer(answer.status, answer.headers, await answer.read())

    async def complete(self, prompt: Any, *, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        """A text completion that must succeed; one token unless told otherwise."""
        answer = await self.post("/v1/completions", text_body(prompt, **fields), headers)
        assert answer.status == 200, answer.body
        return answer

    async def explain(self, prompt: Any, **fields: Any) -> Any:
        answer = await self.post("/explain", text_body(prompt, **fields))
        assert answer.status == 200, answer.body
        return answer.json

    async def pods(self) -> dict[str, Any]:
        """Rows of /pods by pod URL."""
        return {row["url"]: row for row in (await self._operator_gets("/pods")).json["pods"]}

    async def row(self, pod: Any) -> Any:
        return (await self.pods())[pod.url]

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of /metrics that carry these labels."""
        answer = await self._operator_gets("/metrics")
        page = answer.body.decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == f"p2p_gateway_{name}" and labels.items() <= sample.labels.items()
        )

    async def _operator_gets(self, path: str) -> Answer:
        async with self.http.get(self.operators_url + path) as got:
            answer = Answer(got.status, got.headers, await got.read())
        assert answer.status == 200, answer.body
        return answer

    async def until_ready(self, count: int) -> None:
        """Return when so many pods can serve."""

        async def enough() -> bool:
            rows = (await self.pods()).values()
            return [row["state"] for row in rows].count("ready") >= count

        await until(enough)

    async def settled(self, *pods: SimulatedPod) -> None:
        """Return when each pod has announced all it holds, and the gateway knows it."""

        async def known() -> bool:
            rows = await self.pods()
            return all(bool(rows[pod.url]["certain"]) and _counts(rows[pod.url]) == resident(pod) for pod in pods)

        await until(known)

    async def idle(self) -> None:
        """Return when nothing is counted as under way."""

        async def nothing() -> bool:
            rows = (await self.pods()).values()
            return all(row["in_flight_requests"] == row["in_flight_tokens"] == 0 for row in rows)

        await until(nothing)


def _counts(row: Any) -> tuple[int, int]:
    return row["cached_blocks"]["gpu"], row["cached_blocks"]["cpu"]


def resident(pod: SimulatedPod) -> tuple[int, int] | None:
    """Blocks in the pod's GPU and CPU tiers; None while blocks are still on their way to the CPU tier."""
    held = [pod.cached_blocks(rank) for rank in range(pod.options.ranks)]
    if any(not tiers["GPU"] <= tiers["CPU"] for tiers in held):
        return None
    return sum(len(tiers["GPU"]) for tiers in held), sum(len(tiers["CPU"]) for tiers in held)


def text_body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 1, "ignore_eos": True, **fields}


def ids(count: int, salt: int = 0) -> list[int]:
    """`count` token ids, of which those with different `salt` differ from the first on."""
    return [1000 + salt, *range(2000, 2000 + count - 1)]


def name(pod: Any) -> str:
    """What the gateway calls a pod: host and port of its URL."""
    return str(pod.url.removeprefix("http://"))


def spec(pod: Any, **fields: Any) -> dict[str, Any]:
    """The pod's entry in a configuration."""
    return {"url": pod.url, "p2p": f"{pod.p2p_host}:{pod.p2p_port}", **fields}


def configuration(pods: Sequence[Any], **sections: Any) -> Config:
    """A gateway's configuration; pods as simulated pods or as their entries."""
    data = {
        "listen": {"host": "127.0.0.1", "port": 0},
        "pods": [pod if isinstance(pod, dict) else spec(pod) for pod in pods],
        "poll": {"interval": 0.1, "timeout": 2.0},
        # From so many tokens on, whatever a pull costs: these pods are too quick for one to pay.
        "p2p": {"min_cached_token_delta": 64, "source": {"type": "weighted-sampling"}, "probe": False},
        "tokens": {"render_once": False},  # no request of the gateway's own among those that tests count
    }
    for name, section in sections.items():
        data[name] = {**data.get(name, {}), **section}  # type: ignore[dict-item]
    return decode(data, source="test")


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=DEADLINE_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        **options,
    ) as http:
        yield http


@asynccontextmanager
async def serving(
    pods: Sequence[Any],
    *,
    ready: int | None = None,
    restore: str | None = None,
    session: Mapping[str, Any] | None = None,
    **sections: Any,
) -> AsyncIterator[Front]:
    """A gateway in front of `pods`, entered when `ready` of them (by default all) can serve.

    `session`: what the client's session is made with, such as headers that it always sends.
    """
    async with running(configuration(pods, **sections), restore=restore) as server, client(**session or {}) as http:
        front = Front(server, http)
        await front.until_ready(len(pods) if ready is None else ready)
        yield front


@asynccontextmanager
async def simulated(count: int = 1, **options: Any) -> AsyncIterator[list[SimulatedPod]]:
    """Pods that live as long as the context."""
    async with AsyncExitStack() as stack:
        options.setdefault("profile", SMALL)
        yield [await stack.enter_async_context(SimulatedPod(**options)) for _ in range(count)]


@asynccontextmanager
async def fleet(
    count: int = 1, *, pod: Mapping[str, Any] | None = None, **sections: Any
) -> AsyncIterator[tuple[Front, list[SimulatedPod]]]:
    """`count` pods alike, and a gateway in front of them."""
    async with simulated(count, **(pod or {})) as pods, serving(pods, **sections) as front:
        yield front, pods


def posted(body: Any) -> bytes:
    """A completion request as it goes over the wire."""
    data = msgspec.json.encode(body)
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
    )


@asynccontextmanager
async def connection(front: Front) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = front.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def warm(pod: SimulatedPod, prompt: Any, **fields: Any) -> None:
    """Have the pod compute a prompt, behind the gateway's back."""
    async with client() as http, http.post(f"{pod.url}/v1/completions", json=text_body(prompt, **fields)) as answer:
        assert answer.status == 200, await answer.text()


def completions(pod: SimulatedPod) -> list[Any]:
    """The completion requests that arrived at a pod, in order."""
    return [request for request in pod.requests if request.path.startswith("/v1/")]
