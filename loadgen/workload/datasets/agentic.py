"""Agents: long prompts that are read again almost word for word at every step, and work that is handed on.

A session's prompt begins with tools and instructions that all sessions share, then what those about one project share,
then what it has read itself. Each step adds a tool's result and the answer before it. A tool mostly takes a second or
two; now and then a person is asked, and that takes half a minute. The defaults are those of aiperf's `agentic-code`
synthesis.

Sub-agents begin with all that their parent knows, several at once, the moment the parent has answered: the pod that
holds the parent's prefix is asked for all of them, and no other has any of it. 43 children of one 40K parent are
`sessions: 1, turns: 1, forks: {children: 43}`.
"""

from collections.abc import Iterator
from itertools import accumulate, count
from random import Random

import msgspec

from loadgen.workload import Piece, Request
from loadgen.workload.datasets.distributions import (
    LogNormal,
    Seconds,
    Tokens,
    Uniform,
    check_range,
    draw_seconds,
    draw_tokens,
)
from loadgen.workload.datasets.session import Session


class Forks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """After a turn, with this `probability`, `children` sub-agents start, each with a task and some turns of its own.

    The first turn adds `task_tokens` to what the parent has said, each later one `new_tokens` to that.
    """

    probability: float = 1.0
    children: Tokens = 4
    turns: Tokens = 1
    task_tokens: Tokens = 256
    new_tokens: Tokens = LogNormal(median=1_800, mean=3_500)
    output_tokens: Tokens = LogNormal(median=300, mean=500)

    def __post_init__(self) -> None:
        """Refuse what makes no sub-agent."""
        check_range(0, 1, probability=self.probability)
        check_range(1, children=self.children, turns=self.turns, task_tokens=self.task_tokens)
        check_range(1, new_tokens=self.new_tokens, output_tokens=self.output_tokens)


class Agentic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`sessions` sessions (None: endless), each of `turns` turns or as many as `max_prompt_tokens` allows.

    All prompts begin with the same `tool_tokens`, then with the `project_tokens` of one of `projects` (the k-th in
    proportion to k**-`project_exponent`), then with the session's `own_tokens`. A turn adds `new_tokens`, and comes
    `tool_pause` seconds after the answer before it or, with the probability `human_share`, `human_pause` seconds.
    Phases: "first" is a session's first turn, "next" each later one, "fork" a sub-agent's.
    """

    sessions: int | None = None
    tool_tokens: int = 32_000
    projects: int = 50
    project_exponent: float = 1.2
    project_tokens: int = 20_000
    own_tokens: Tokens = LogNormal(median=5_000, mean=10_000)
    turns: Tokens = Uniform(low=2, high=40)
    new_tokens: Tokens = LogNormal(median=1_800, mean=3_500)
    output_tokens: Tokens = LogNormal(median=300, mean=500)
    tool_pause: Seconds = LogNormal(median=1.8, mean=2.5)
    human_pause: Seconds = LogNormal(median=25, mean=40)
    human_share: float = 0.3
    max_prompt_tokens: int = 200_000
    forks: Forks | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no session."""
        check_range(1, sessions=self.sessions, projects=self.projects, turns=self.turns)
        check_range(1, output_tokens=self.output_tokens, max_prompt_tokens=self.max_prompt_tokens)
        check_range(1, new_tokens=self.new_tokens)
        check_range(0, tool_tokens=self.tool_tokens, project_tokens=self.project_tokens, own_tokens=self.own_tokens)
        check_range(0, tool_pause=self.tool_pause, human_pause=self.human_pause)
        check_range(0, 1, human_share=self.human_share)
        check_range(0, project_exponent=self.project_exponent)

    def requests(self, seed: int) -> Iterator[Request]:
        """The sessions, each turn's sub-agents behind it. The first prompt of one is sent however long it is."""
        rng = Random(seed)
        numbers = count()
        tools = Piece(rng.getrandbits(64), self.tool_tokens, "system")
        projects = [Piece(rng.getrandbits(64), self.project_tokens, "system") for _ in range(self.projects)]
        weights = list(accumulate((place + 1) ** -self.project_exponent for place in range(self.projects)))
        for number in count() if self.sessions is None else range(self.sessions):
            (project,) = rng.choices(projects, cum_weights=weights)
            own = Piece(rng.getrandbits(64), draw_tokens(self.own_tokens, rng))
            yield from self._session(Session(f"agentic-{number}", [tools, project, own]), numbers, rng)

    def _session(self, session: Session, numbers: Iterator[int], rng: Random) -> Iterator[Request]:
        for turn in range(draw_tokens(self.turns, rng)):
            new = Piece(rng.getrandbits(64), draw_tokens(self.new_tokens, rng))
            if turn and session.tokens + new.tokens > self.max_prompt_tokens:
                return
            yield session.turn(
                next(numbers),
                [new],
                draw_tokens(self.output_tokens, rng),
                pause=draw_seconds(self.human_pause if rng.random() < self.human_share else self.tool_pause, rng),
                phase="next" if turn else "first",
            )
            if self.forks is not None and rng.random() < self.forks.probability:
                for _ in range(draw_tokens(self.forks.children, rng)):
                    yield from self._child(self.forks, session.fork(), numbers, rng)

    def _child(self, forks: Forks, session: Session, numbers: Iterator[int], rng: Random) -> Iterator[Request]:
        for turn in range(draw_tokens(forks.turns, rng)):
            new = Piece(rng.getrandbits(64), draw_tokens(forks.new_tokens if turn else forks.task_tokens, rng))
            if turn and session.tokens + new.tokens > self.max_prompt_tokens:
                return
            yield session.turn(
                next(numbers),
                [new],
                draw_tokens(forks.output_tokens, rng),
                pause=draw_seconds(self.tool_pause, rng) if turn else 0.0,
                phase="fork",
            )
