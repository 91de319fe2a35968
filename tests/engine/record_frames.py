"""Record the golden KV-event frames of tests/data/golden from a real pod: `python -m tests.engine.record_frames`.

Per recording one `NAME.msgpack`, a list of frames `[topic, sequence number (8 bytes), payload]` as a subscriber got
them, and one `NAME.json` that says what they mean: the steps, each with its requests and the range of its frames, and
for each prompt the hashes its full blocks must have by vLLM's formula, computed here. `replay.msgpack` holds what the
replay socket answered after `life`, from sequence number 0, end marker included.
"""

import hashlib
import json
import pickle
import random
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zmq

from tests.engine.environment import CHECKOUT, prepare
from tests.engine.pods import Pod

GOLDEN = CHECKOUT / "tests" / "data" / "golden"
BLOCK = 32
SEED = 0
QUIET_MS = 1500  # events of a step come within a few ms of its response; idle pods publish nothing

# Small enough that a handful of prompts pushes blocks out of both tiers: 24 blocks and 20 chunks of 64 KiB.
_SMALL = ("--num-gpu-blocks-override", "24", "--max-model-len", "512")
_CHUNKS = 20 * 64 * 2**10


class Recorder:
    """One pod's frames, and the steps that caused them."""

    def __init__(self, pod: Pod, *, whole_hashes: bool) -> None:
        self.pod = pod
        self.frames: list[list[bytes]] = []
        self.steps: list[dict[str, Any]] = []
        self._whole_hashes = whole_hashes
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(pod.events)
        self._socket.subscribe(b"")
        self._socket.poll(QUIET_MS)  # for the subscription to arrive; `save` sees whether it did

    def step(self, name: str, *requests: dict[str, Any]) -> list[list[int]]:
        """Send the requests one after the other, and take the frames until there are no more; returns the outputs."""
        first = len(self.frames)
        outputs = [self._complete(request) for request in requests]
        self._take(name, first, requests, outputs)
        return outputs

    def reset(self) -> None:
        """Clear the engine's own cache, but not the CPU tier."""
        first = len(self.frames)
        _post(f"{self.pod.url}/reset_prefix_cache", b"")
        self._take("reset", first, (), [])

    def _take(self, name: str, first: int, requests: tuple[dict[str, Any], ...], outputs: list[list[int]]) -> None:
        while self._socket.poll(QUIET_MS):
            self.frames.append(self._socket.recv_multipart())
        described = [
            {
                "prompt": request["prompt"],
                "output": output,
                "cache_salt": request.get("cache_salt"),
                "block_hashes": list(self._hashes(request["prompt"], request.get("cache_salt"))),
            }
            for request, output in zip(requests, outputs, strict=True)
        ]
        self.steps.append({"name": name, "frames": [first, len(self.frames)], "requests": described})

    def _complete(self, request: dict[str, Any]) -> list[int]:
        body = {"model": self.pod.model, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **request}
        answer = _post(f"{self.pod.url}/v1/completions", json.dumps(body).encode())
        output: list[int] = json.loads(answer)["choices"][0]["token_ids"]
        return output

    def _hashes(self, tokens: list[int], salt: str | None) -> Iterator[int | str]:
        parent = hashlib.sha256(pickle.dumps(str(SEED), protocol=5)).digest()
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            extra = (("cache_salt", salt),) if salt and start == 0 else None
            block = (parent, tuple(tokens[start : start + BLOCK]), extra)
            parent = hashlib.sha256(pickle.dumps(block, protocol=5)).digest()
            yield parent.hex() if self._whole_hashes else int.from_bytes(parent[-8:], "big")

    def save(self, name: str, **more: object) -> None:
        """Write the two files of a recording; AssertionError when a frame is missing."""
        numbers = [int.from_bytes(number, "big") for _, number, _ in self.frames]
        assert numbers == list(range(len(numbers))), "frames are missing"
        _write(name, self.frames)
        meaning = {"engine": "vLLM 0.32.0", "block_size": BLOCK, "model": "model", "hash_seed": SEED, **more}
        (GOLDEN / f"{name}.json").write_text(json.dumps({**meaning, "steps": self.steps}) + "\n")


def record_life(pod: Pod) -> None:
    """Two turns, a salted prompt, pressure on both tiers, a reset, a prompt the CPU tier still has; then a replay."""
    recorder = Recorder(pod, whole_hashes=False)
    prompt = fresh_tokens("turn", 100)
    (answer,) = recorder.step("first turn", {"prompt": prompt, "max_tokens": 40})
    second = prompt + answer + fresh_tokens("second turn", 40)
    recorder.step("second turn", {"prompt": second, "max_tokens": 8})
    recorder.step("salted", {"prompt": prompt, "max_tokens": 1, "cache_salt": "tenant"})
    others = [{"prompt": fresh_tokens(f"other {i}", 290), "max_tokens": 1} for i in range(4)]
    recorder.step("pressure", *others)
    recorder.reset()
    recorder.step("after reset", others[-1])
    recorder.save("life")
    _write("replay", _replay(pod))


def record_whole_hashes(pod: Pod) -> None:
    """The same first turn and salted prompt, with hashes of 32 bytes."""
    recorder = Recorder(pod, whole_hashes=True)
    prompt = fresh_tokens("turn", 100)
    recorder.step("first turn", {"prompt": prompt, "max_tokens": 40})
    recorder.step("salted", {"prompt": prompt, "max_tokens": 1, "cache_salt": "tenant"})
    recorder.save("whole-hashes")


def fresh_tokens(name: str, count: int) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(300, 4000) for _ in range(count)]


def _replay(pod: Pod) -> list[list[bytes]]:
    socket: zmq.Socket[bytes]
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.connect(pod.replay)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        answers: list[list[bytes]] = []
        while not answers or answers[-1][-1]:
            answers.append(socket.recv_multipart())
        return answers


def _write(name: str, frames: list[list[bytes]]) -> None:
    (GOLDEN / f"{name}.msgpack").write_bytes(msgspec.msgpack.encode(frames))


def _post(url: str, body: bytes) -> bytes:
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def main() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    engine = prepare()
    development = {"VLLM_SERVER_DEV_MODE": "1"}  # for /reset_prefix_cache
    with tempfile.TemporaryDirectory() as logs:
        with Pod(engine, Path(logs), extra=_SMALL, cpu_bytes=_CHUNKS, variables=development) as pod:
            record_life(pod)
        with Pod(engine, Path(logs), variables={"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}) as pod:
            record_whole_hashes(pod)
    for path in sorted(GOLDEN.iterdir()):
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
