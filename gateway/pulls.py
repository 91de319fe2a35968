"""What becomes of pulls, from the request's side: how long one may take, how it ended, what that says of the pair.

Answers tell: a first byte that is late, or fewer cached tokens than the source was to bring. Where answers do not
report cached tokens, the consumer's own counter of what came from peers does (see `unreported`), and where neither
does, a trial (see `trials`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from math import inf

import structlog

from config.schema import P2P
from gateway.decision import Ask, Decision
from gateway.forecasts import first_token_s
from gateway.hanging import Hanging
from gateway.leases import Lease
from gateway.metrics import Metrics, Record
from gateway.pairs import Pair, Why
from gateway.pod import Load, Pod
from gateway.pods import PodTable
from gateway.retries import RetryBudget
from gateway.unreported import Unreported
from gateway.watchdog import Bounds, Margin, Seen, Watch, patience_s
from scorers import Prefill, Rank, timed

_log = structlog.get_logger("gateway.pulls")
_OK = 200
_NOTHING_SAID = Load()
_STEP_TOKENS = 8192  # what an engine computes in one step at most, by default


class Guard:
    """Watches one request that pulls, until its first byte. `fired`: it was given up."""

    __slots__ = ("_before", "_counts", "_decision", "_lease", "_pulls", "_told", "_watch", "fired")

    def __init__(self, pulls: Pulls, decision: Decision, lease: Lease, watch: Watch) -> None:
        self.fired = self._told = False
        self._pulls = pulls
        self._decision = decision
        self._lease = lease
        self._watch = watch
        self._counts = counts = decision.pod.in_flight[decision.chosen.rank]  # of this incarnation
        self._before = counts.in_line + counts.passed  # of what has passed by now, none was before this one

    def first_s(self) -> float:
        """Seconds until it wants to be asked."""
        return self._watch.first_s(self._pulls.clock(), self._seen().ahead)

    def rings(self) -> float:
        """Seconds until it wants to be asked again; 0.0: the request is given up."""
        look = self._watch.look(self._pulls.clock(), self._seen())
        if look.finding == "poll":
            self._decision.pod.wake.set()
        elif look.finding == "over":
            self._lease.pull_is_over()
            return inf
        elif look.finding == "fire":
            return self._gives_up(look.again_s)
        return look.again_s

    def _gives_up(self, again_s: float) -> float:
        """As `rings`. Where it may not go again now, it may later."""
        first, self._told = not self._told, True
        if first:
            self._pulls.late(self._decision)
        self.fired = self._pulls.may_go_again(asked_before=not first)
        return 0.0 if self.fired else again_s

    def _seen(self) -> Seen:
        pod, counts = self._decision.pod, self._counts
        load = pod.load.get(self._decision.chosen.rank, _NOTHING_SAID)
        ahead = max(0, self._before - counts.passed)
        pulls = counts.pulls + counts.joined
        return Seen(ahead, pulls, self._step_s(), pod.load_at, load.waiting, load.running, load.deferred)

    def _step_s(self) -> float:
        """What the engine takes for as much of the others' prompts as fits into one step."""
        counts, decision = self._counts, self._decision
        tokens, square = counts.tokens - decision.uncached_tokens, counts.square - decision.uncached_square
        if tokens <= 0:
            return 0.0
        prefill = self._pulls.prefill((decision.chosen.pod, decision.chosen.rank))
        return prefill.fixed + min(1.0, _STEP_TOKENS / tokens) * prefill.seconds(tokens, max(0, square), 0.0)


class Pulls:
    """Told of each. `clock` is the pod table's."""

    def __init__(self, pods: PodTable, metrics: Metrics, p2p: P2P) -> None:
        self.clock = pods.clock
        self.margin = Margin()
        self.hanging = Hanging()
        self.budget = RetryBudget(0.0)  # of its own: what pulls cost takes nothing from retries
        self._pods = pods
        self._metrics = metrics
        self._unreported: dict[Rank, Unreported[Pair]] = {}
        self._asked_about: set[Pair] = set()
        self._met: set[Pair] = set()  # have pulled, as far as is known, and may have a connection since
        self._known: set[Pair] = set()  # have pulled or failed to, since the consumer came up
        self.changed: Callable[[], None] = lambda: None
        """Called when there may be a trial to make."""
        self.reconfigure(p2p)

    def reconfigure(self, p2p: P2P) -> None:
        """From now on so."""
        self._p2p = p2p
        self._urls = urls = {pod.url for pod in self._pods}
        self._unreported = {rank: books for rank, books in self._unreported.items() if rank[0] in urls}
        self.hanging.keep(urls)
        for known in (self._asked_about, self._met, self._known):
            known -= {pair for pair in known if not {pair.source[0], pair.consumer[0]} <= urls}
        self._bounds = Bounds(p2p.deadline_floor, max(p2p.deadline_floor, p2p.deadline_cap))
        breaker = p2p.breaker
        self._pods.pairs.reconfigure(
            cooldown=breaker.cooldown, longest=breaker.max_cooldown, consumers=breaker.consumers
        )
        self.changed()

    def prefill(self, rank: Rank) -> Prefill:
        """What computing costs there. O(1)."""
        return self._pods.costs.prefill(rank)

    def guard(self, decision: Decision, ask: Ask, lease: Lease) -> Guard | None:
        """Who watches the request from now on, until `answered`; None: it does not pull, or is not to be watched."""
        deadline, source, chosen = self._p2p.first_byte_deadline, decision.source, decision.chosen
        if source is None:
            return None
        self.budget.began()
        if deadline is None:
            return None
        costs, tokens = self._pods.costs, decision.prompt.tokens or 0
        peer, rank = (source.pod, source.rank), (chosen.pod, chosen.rank)
        computing = decision.uncached_tokens, decision.uncached_square
        wait = timed(costs, chosen, tokens, computing, source, decision.pulled_tokens).wait_s
        if isinstance(deadline, str):
            patience = patience_s(
                first_token_s(decision.request, chosen, None) - wait,
                first_token_s(decision.request, chosen, source) - wait,
                self.margin.seconds,
                self._bounds,
                met=Pair(peer, rank) in self._met or costs.met(peer, rank),
            )
        else:
            patience = deadline
        watch = Watch(self.clock(), wait_s=wait, patience_s=patience, bounds=self._bounds, streams=ask.streams)
        return Guard(self, decision, lease, watch)

    def waits_for(self, decision: Decision) -> list[str]:
        """The names of those from whom blocks hang that the request would wait for where it is placed. As `Hanging`."""
        consumer = decision.pod.url, decision.chosen.rank
        sources = self.hanging.sources(consumer, decision.prompts, self.clock())
        return [pod.name for pod in self._pods if pod.url in sources] if sources else []

    def late(self, decision: Decision) -> None:
        """The pull did not come to an end in time."""
        if decision.source is None or decision.source_pod is None:
            return
        self._metrics.watchdog_fired.labels(decision.pod.name, decision.source_pod.name).inc()
        decision.source_pod.wake.set()  # it may be gone
        pair, size = _pair(decision), decision.block_size
        blocks = (decision.prompt.tokens or 0) // size
        prompts = [keys for keys in decision.prompts if len(keys) == blocks]  # those of the size that the index goes by
        self.hanging.add(pair, prompts, decision.chosen.any_tokens // size, self.clock())
        self._failed(pair, "late")

    def may_go_again(self, *, asked_before: bool) -> bool:
        """Whether a request whose pull is late may. A yes is paid for out of the budget; a first no is counted."""
        may = self.budget.take(self.clock())
        if not may and not asked_before:
            self._metrics.watchdog_refused.labels("budget").inc()
        return may

    def answered(self, decision: Decision, record: Record) -> None:
        """A request has ended that `guard` was asked about. O(1)."""
        source, chosen = decision.source, decision.chosen
        if source is None:
            return
        self.budget.ended(self.clock())
        # What tells is an answer that is whole, or was until its client left.
        failed = record.status != _OK or record.broken or record.engine_error
        if failed or record.first_byte is None:
            return
        pair = _pair(decision)
        if record.reported_cached is None:
            self._known.add(pair)
            until = time.monotonic() if record.predicted_ttft is None else record.first_byte  # the first byte may tell
            self._books(pair.consumer).answered(pair, record.placed, until)
        elif record.reported_cached > chosen.any_tokens:
            if record.predicted_ttft is not None:
                self.margin.observe(record.first_byte - record.placed - record.predicted_ttft)
            self.succeeded(pair)
        elif decision.predicted_cached is not None and decision.predicted_cached > chosen.any_tokens:
            self._failed(pair, "nothing")

    def polled(self, pod: Pod, pulled: Mapping[int, float]) -> None:
        """A poll has found what the ranks' counters of pulls say."""
        for rank in pod.ranks:
            verdict = self._books((pod.url, rank)).polled(pulled.get(rank), pod.load_at)
            for pair in verdict.failed:
                self._failed(pair, "nothing")
            for pair in verdict.succeeded:
                self.succeeded(pair)
            for pair in verdict.unknown:
                self._ask_about(pair)

    def came_up(self, pod: Pod) -> None:
        """A pod is another process now. Who had a connection to the old one is tried before a request is."""
        self.hanging.parted(pod.url)
        self._unreported = {rank: books for rank, books in self._unreported.items() if rank[0] != pod.url}
        self._asked_about -= {pair for pair in self._asked_about if pod.url in (pair.source[0], pair.consumer[0])}
        for known in (self._met, self._known):
            known -= {pair for pair in known if pair.consumer[0] == pod.url}
        self._mistrusted(pod)

    def goes_on(self, pod: Pod) -> None:
        """A pod that stood still moves again; sessions may have ended on its side only."""
        self._mistrusted(pod)

    def succeeded(self, pair: Pair, *, trial: bool = False) -> None:
        """A pull brought something."""
        if not self._exist(pair):
            return
        self._met.add(pair)
        self._known.add(pair)
        if trial:
            self._pods.costs.tried(*pair)
        if self.hanging:
            self.hanging.over(pair)
        pairs = self._pods.pairs
        if pairs.passed(*pair) if trial else pairs.succeeded(*pair):
            _log.info("pulls work again", **_told(pair))
            self.changed()

    def listens(self, pod: Pod, rank: int, *, listening: bool) -> None:
        """Whether anybody listens where a rank serves pulls from."""
        if not self._pods.pairs.listens((pod.url, rank), listening=listening):
            return
        if listening:
            _log.info("pulls are served again", pod=pod.name, rank=rank)
        else:
            _log.warning("nobody listens where pulls are served from: no source", pod=pod.name, rank=rank, p2p=pod.p2p)

    def tried(self, pair: Pair, result: Why | None) -> None:
        """A trial has ended: None, it brought something."""
        if result is None:
            self.succeeded(pair, trial=True)
        else:
            self._failed(pair, result)

    def unclear(self, pair: Pair) -> None:
        """A trial came to nothing from which anything follows."""
        self._pods.pairs.unclear(*pair)

    def _failed(self, pair: Pair, why: Why) -> None:
        if not self._exist(pair):
            return
        self._met.discard(pair)
        self._known.add(pair)
        pairs, pods = self._pods.pairs, {pod.url: pod.name for pod in self._pods}
        self._metrics.pull_failures.labels(pods.get(pair.consumer[0], ""), pods.get(pair.source[0], ""), why).inc()
        was_open = pairs.why(*pair) is not None
        pairs.failed(*pair, why, self.clock())
        if not was_open:
            event = "pull was late" if why == "late" else "pull brought nothing"
            _log.warning(f"{event}: the source is not named until a trial succeeds", **_told(pair))
        self.changed()

    def _exist(self, pair: Pair) -> bool:
        """Whether both are configured. Requests may still be under way on pods that are not."""
        return pair.source[0] in self._urls and pair.consumer[0] in self._urls

    def _books(self, consumer: Rank) -> Unreported[Pair]:
        books = self._unreported.get(consumer)
        if books is None:
            books = self._unreported[consumer] = Unreported()
        return books

    def _ask_about(self, pair: Pair) -> None:
        """Nothing tells whether the pair can pull at all; asked about once, and again when one has restarted."""
        if self._p2p.probe and pair not in self._asked_about:
            self._asked_about.add(pair)
            self._pods.pairs.doubt(*pair, self.clock())
            self.changed()

    def _mistrusted(self, pod: Pod) -> None:
        """Who has pulled from it, or failed to, is tried before any request pulls from it again."""
        known = {pair for pair in self._known if pair.source[0] == pod.url}
        self._met -= known
        if known and self._p2p.probe:
            for pair in known:
                self._pods.pairs.restarted(pair.source, [pair.consumer], self.clock())
            self.changed()


def _pair(decision: Decision) -> Pair:
    source, chosen = decision.source, decision.chosen
    assert source is not None, "asked only of requests that pull"  # noqa: S101 - for mypy
    return Pair((source.pod, source.rank), (chosen.pod, chosen.rank))


def _told(pair: Pair) -> dict[str, object]:
    (source, source_rank), (consumer, rank) = pair
    return {"source": source, "source_rank": source_rank, "consumer": consumer, "rank": rank}
