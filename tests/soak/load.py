"""A steady load with reuse: sessions whose every turn repeats all that came before, several at a time."""

import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from tests.engine.asking import Told, ask_gateway
from tests.engine.pulling import BLOCK_TOKENS, fresh_ids

_TURNS: Final = 5
_FIRST_TOKENS: Final = (800, 1800)
_MORE_TOKENS: Final = 150
_ANSWER_TOKENS: Final = 24
_STREAMED: Final = 0.8
_PAUSE_S: Final = 0.3
_KEPT: Final = 12  # prompts, of the latest sessions
_EDGE_TOKENS: Final = 2 * BLOCK_TOKENS  # of what a pull was to bring, may be on its way into the source's tier


class Asked(NamedTuple):
    """One request: when it began and ended on the monotonic clock, what came back, and whether it ended a session.

    `expects`: tokens that the turn before has left on its pod. `repeats`: the text that the same prompt had before.
    """

    began: float
    ended: float
    told: Told
    expects: int
    repeats: str | None

    @property
    def pulled(self) -> bool:
        """Whether a source was named and has brought what it led by, which is more than an edge."""
        return bool(self.told.source) and not self.told.error and self.told.cached >= self.expects - _EDGE_TOKENS > 0


class Load:
    """Runs as long as its block lasts; at the end what is under way is waited for. `asked` grows.

    `latest`: prompts whose blocks were left on both pods, some of them by pulls.
    """

    def __init__(self, url: str, model: str, seed: object, clients: int) -> None:
        self.asked: list[Asked] = []
        self.latest: deque[list[int]] = deque(maxlen=_KEPT)
        self._url, self._model = url, model
        self._ends = threading.Event()
        self._clients = [
            threading.Thread(target=self._run, args=(random.Random(repr((seed, number))),), name=f"client {number}")
            for number in range(clients)
        ]

    def since(self, when: float) -> Iterator[Asked]:
        """The requests that began from then on, and have ended."""
        return (each for each in list(self.asked) if each.began >= when)

    def _run(self, rng: random.Random) -> None:
        while not self._ends.is_set():
            self._session(rng)

    def _session(self, rng: random.Random) -> None:
        prompt = fresh_ids(rng.random(), rng.randrange(*_FIRST_TOKENS))
        expects, text = 0, ""
        for _ in range(_TURNS):
            text = self._ask(rng, prompt, expects, None)
            if self._ends.wait(rng.uniform(0.0, _PAUSE_S)):
                return
            expects = len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS
            prompt = prompt + fresh_ids(rng.random(), _MORE_TOKENS)
        self._ask(rng, prompt[:-_MORE_TOKENS], 0, text)
        self.latest.append(prompt[:-_MORE_TOKENS])

    def _ask(self, rng: random.Random, prompt: list[int], expects: int, repeats: str | None) -> str:
        began = time.monotonic()
        stream = rng.random() < _STREAMED
        told = ask_gateway(self._url, self._model, prompt, stream=stream, tokens=_ANSWER_TOKENS)
        self.asked.append(Asked(began, time.monotonic(), told, expects, repeats))
        return told.text

    def __enter__(self) -> Self:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for client in self._clients:
            client.join()
