"""The routers that the gateway is compared with: how each is installed, started and known to be ready.

All are in front of the same backends, but Dynamo's frontend, which can only be in front of workers of its own runtime.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tests.bench import environment
from tests.bench.chats import LONG_BYTES, MODEL, chat
from tests.bench.clock import process_tree
from tests.bench.environment import Pin
from tests.bench.processes import free_port, get, running, wait_until
from tests.bench.routers import START_S, Backend, Router
from tests.bench.workload import BLOCK_TOKENS

_HERE: Final = Path(__file__).parent
_CORPUS_PROMPTS: Final = 4


class Peer(NamedTuple):
    """`start` gets the peer's `bin` directory, the backends and a directory for logs and files."""

    pin: Pin
    policy: str
    start: Callable[[Path, list[Backend], Path], AbstractContextManager[Router]]

    def __str__(self) -> str:
        return f"{self.pin} {self.policy}".rstrip()

    def running(self, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
        """Install it if it is not, and start it. Raises PeerMissing, and NotReady on entering."""
        return self.start(environment.peer(self.pin), backends, logs)


@contextmanager
def _served(
    name: str, command: list[str], logs: Path, port: int, ready: str, *, env: Mapping[str, str] | None = None
) -> Iterator[Router]:
    log = logs / f"{name}.log"

    def serves() -> bool:
        page = get(f"http://127.0.0.1:{port}{ready}")
        return page is not None and (ready != "/v1/models" or MODEL.encode() in page)

    with running(command, log=log, cwd=logs, env=env) as process:
        wait_until(serves, process, log=log, deadline_s=START_S)
        yield Router(name, [port], process_tree(process.pid))


def _vllm_router(policy: str, programs: Path, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
    port = free_port()
    command = [str(programs / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    command += ["--worker-urls", *(each.url for each in backends), "--worker-startup-check-interval", "1"]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warning"]
    if policy == "kv_aware":
        for each in backends:
            command += ["--kv-event-source", f"{each.url}=tcp://127.0.0.1:{each.events}"]
        command += ["--kv-event-model", MODEL, "--kv-event-block-size", str(BLOCK_TOKENS)]
    return _served(policy, command, logs, port, "/v1/models")


def _sglang_router(programs: Path, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
    port = free_port()
    command = [str(programs / "sglang-router"), "launch", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--policy", "cache_aware", "--worker-urls", *(each.url for each in backends)]
    command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), "--log-level", "warn"]
    return _served("sglang", command, logs, port, "/readiness")


def _production_stack(programs: Path, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
    port = free_port()
    command = [str(programs / "vllm-router"), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--service-discovery", "static", "--static-backends", ",".join(each.url for each in backends)]
    command += ["--static-models", ",".join(MODEL for _ in backends), "--routing-logic", "prefixaware"]
    return _served("production_stack", command, logs, port, "/v1/models")


def _litellm(programs: Path, backends: list[Backend], logs: Path) -> AbstractContextManager[Router]:
    port, file = free_port(), logs / "litellm.json"
    served = [{"model": f"openai/{MODEL}", "api_base": f"{each.url}/v1", "api_key": "none"} for each in backends]
    models = [{"model_name": MODEL, "litellm_params": parameters} for parameters in served]
    file.write_bytes(msgspec.json.encode({"model_list": models}))
    command = [str(programs / "litellm"), "--host", "127.0.0.1", "--port", str(port), "--config", str(file)]
    env = {
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",  # else it asks for prices elsewhere
        "LITELLM_LOG": "ERROR",
    }
    return _served("litellm", [*command, "--telemetry", "false"], logs, port, "/health/liveliness", env=env)


@contextmanager
def _dynamo(programs: Path, backends: list[Backend], logs: Path) -> Iterator[Router]:
    python, model, corpus = str(programs / "python"), logs / "model", logs / "corpus.txt"
    corpus.write_bytes(b"\n".join(chat(number, LONG_BYTES) for number in range(_CORPUS_PROMPTS)))
    make = [python, str(_HERE / "dynamo_model.py"), str(corpus), str(model)]
    env = {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(logs / "dynamo"),
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_LOG": "warn",
        "HOME": str(logs),  # where it keeps tokenizers
        "HF_HUB_OFFLINE": "1",
    }
    port = free_port()
    command = [python, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    command += ["--router-mode", "kv", "--kv-cache-block-size", str(BLOCK_TOKENS)]
    with ExitStack() as stack:
        with running(make, log=logs / "model.log", cwd=logs) as process:
            wait_until((model / "tokenizer_config.json").exists, process, log=logs / "model.log", deadline_s=START_S)
        for number in range(len(backends)):
            worker = [python, str(_HERE / "dynamo_worker.py"), str(model), MODEL]
            stack.enter_context(running(worker, log=logs / f"worker{number}.log", cwd=logs, env=env))
        yield stack.enter_context(_served("dynamo", command, logs, port, "/v1/models", env=env))


DEFAULT: Final = {
    policy: Peer(environment.VLLM_ROUTER, policy, partial(_vllm_router, policy))
    for policy in ("round_robin", "cache_aware", "kv_aware")
}
ALL: Final = {
    **DEFAULT,
    "sglang": Peer(environment.SGLANG_ROUTER, "cache_aware", _sglang_router),
    "dynamo": Peer(environment.DYNAMO_FRONTEND, "kv", _dynamo),
    "production_stack": Peer(environment.PRODUCTION_STACK, "prefixaware", _production_stack),
    "litellm": Peer(environment.LITELLM, "", _litellm),
}
"""By the name that their rows carry."""
