"""The tasks that keep the pod table and the index true: one supervisor per pod, so that one pod's trouble is its own.

supervise: until up ──▶ watch + one subscriber per rank ──▶ gone (down, or restarted) ──▶ forget its blocks ──▶ again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import structlog

from config.schema import Poll
from gateway.errors import PodError
from gateway.intake import tell_disagreements
from gateway.metrics import Metrics
from gateway.pod import Pod
from gateway.pods import PodTable
from gateway.poller import EventSource, Poller
from gateway.poller import Metrics as PodMetrics
from gateway.pulling import Pulling
from index import Publisher, RadixIndex

_log = structlog.get_logger("gateway.fleet")
_MODELS_EVERY_POLLS = 10  # adapters come and go while a pod runs
_RESTART_AFTER_FAULT_S = 1.0
_LOOK_AGAIN_S = 1.0
_GAP_S = 0.2  # between two polls, at least, where the interval is no shorter

Subscribe = Callable[[Pod, EventSource], Coroutine[Any, Any, None]]
Follow = Callable[[Pod], Coroutine[Any, Any, None]]
"""What else goes on as long as a pod is up."""


class PodGone(Exception):
    """The pod's present incarnation is over."""


class Fleet:
    """Owns every background task about pods."""

    def __init__(
        self,
        *,
        pods: PodTable,
        poller: Poller,
        index: RadixIndex,
        subscribe: Subscribe,
        metrics: Metrics,
        poll: Poll,
        follow: Follow,
        pulling: Pulling,
    ) -> None:
        self._pods = pods
        self._poller = poller
        self._index = index
        self._subscribe = subscribe
        self._follow = follow
        self._pulling = pulling
        self._pulls = pulling.pulls
        self._metrics = metrics
        self._group: asyncio.TaskGroup | None = None
        self._supervisors: dict[str, asyncio.Task[None]] = {}
        self.reconfigure(poll)

    def reconfigure(self, poll: Poll) -> None:
        """Polls from now on."""
        self._poll = poll

    async def run(self) -> None:
        """Supervise all pods until cancelled."""
        async with asyncio.TaskGroup() as self._group:
            for beside in self._pulling.beside:
                self._group.create_task(self._kept(beside), name=beside.__qualname__)
            self.supervise()
            await asyncio.get_running_loop().create_future()  # pods come and go meanwhile

    async def _kept(self, beside: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A fault in it is nobody else's."""
        while True:
            try:
                await beside()
            except Exception as fault:  # noqa: BLE001 - as in `_supervise`
                self._metrics.task_failures.labels("").inc()
                _log.exception("task failed", task=beside.__qualname__, exc_info=fault)
                await asyncio.sleep(_RESTART_AFTER_FAULT_S)

    def supervise(self) -> None:
        """Begin with every pod of the table that nobody supervises; before `run`, that is for `run` to do."""
        if self._group is None:
            return
        for pod in self._pods:
            if pod.name not in self._supervisors:
                task = self._group.create_task(self._supervise(pod), name=f"supervise {pod.name}")
                self._supervisors[pod.name] = task

    async def stop(self, names: Iterable[str]) -> None:
        """End the tasks of these pods. What is known of them stays."""
        tasks = [self._supervisors.pop(name) for name in names if name in self._supervisors]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def forget(self, names: Collection[str], removed: Iterable[Pod]) -> None:
        """Nothing is known any more of what these pods hold; `removed` are not in the table any more either."""
        for name in names:
            self._index.remove_pod(name)
            self._pods.forget(name)
        self._pods.prune()
        for pod in removed:
            _log.info("pod removed", pod=pod.name, requests=pod.requests)
            if self._group is not None:
                self._group.create_task(self._part(pod), name=f"part {pod.name}")

    async def _part(self, pod: Pod) -> None:
        """Requests under way on a pod that is not configured any more still count; then its metrics end as well."""
        while pod.requests:  # noqa: ASYNC110 - a look now and then is cheaper than a word at the end of each request
            await asyncio.sleep(_LOOK_AGAIN_S)
        if pod.name not in self._pods:
            self._metrics.forget(pod.name)
            self._pods.prune()

    async def _supervise(self, pod: Pod) -> None:
        task = asyncio.current_task()
        while True:
            try:
                sources, started = await self._until_up(pod)
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._follow(pod), name=f"tokens {pod.name}")
                    group.create_task(self._identify(pod), name=f"identity {pod.name}")
                    for source in sources:
                        group.create_task(self._subscribe(pod, source), name=f"events {pod.name}/{source.rank}")
                        if self._pulling.probes:
                            group.create_task(self._probe(pod, source.rank), name=f"probe {pod.name}/{source.rank}")
                    # In the body, not as a task: a group takes back only there the cancellation it makes itself.
                    await self._watch(pod, started)
            except* PodGone as gone:
                self._forget(pod, str(gone.exceptions[0]))
            except* Exception as fault:  # noqa: BLE001 - whatever it is, the other pods must not suffer for it
                self._metrics.task_failures.labels(pod.name).inc()
                _log.exception("pod task failed", pod=pod.name, exc_info=fault)
                self._forget(pod, f"internal fault: {fault.exceptions[0]!r}")
                await asyncio.sleep(_RESTART_AFTER_FAULT_S)
            # Before Python 3.13 a group that ends in failure loses a cancellation from outside that comes meanwhile.
            if task is not None and task.cancelling():
                raise asyncio.CancelledError

    def _forget(self, pod: Pod, reason: str) -> None:
        _log.warning("pod left", pod=pod.name, reason=reason)
        self._index.remove_pod(pod.name)
        self._pods.forget(pod.name)
        pod.left(reason)
        self._pods.changed(pod)

    async def _until_up(self, pod: Pod) -> tuple[list[EventSource], float | None]:
        while True:
            try:
                await self._poller.health(pod.url)
                models = await self._poller.models(pod.url)
                sources = await self._poller.event_sources(pod.spec)
                metrics = await self._poller.metrics(pod.url)
            except PodError as error:
                self._metrics.polls.labels(pod.name, error.code).inc()
                pod.left(error.message)
                await self._pause(pod)
                continue
            self._metrics.polls.labels(pod.name, "ok").inc()
            ranks = tuple(s.rank for s in sources) or tuple(range(pod.spec.data_parallel_size))
            pod.joined(models, ranks, publishes=bool(sources))
            pod.load, pod.load_at = metrics.load, self._pods.clock()
            pod.started = metrics.started
            for rank in pod.ranks:
                self._index.add_publisher(Publisher(pod.name, rank), pod.base_model)
            self._resume(pod, sources)
            self._pulls.came_up(pod)
            self._pods.changed(pod)
            _log.info("pod ready", pod=pod.name, models=list(models), event_streams=len(sources))
            if not sources:
                _log.warning("pod publishes no KV events: placed by load alone, and never a source", pod=pod.name)
            return sources, metrics.started

    def _resume(self, pod: Pod, sources: list[EventSource]) -> None:
        """Go on from a restored record where the pod is still the process it speaks of; drop it where it is not."""
        restored, pod.restored = pod.restored, None
        if restored is None:
            return
        same = restored.started is not None and restored.started == pod.started
        replays = {source.rank: source.replay is not None for source in sources}
        for rank, position in restored.positions.items():
            if not same or rank not in replays or (position is None and replays[rank]):
                # Another engine, or a record with holes beside a replay that has none.
                self._index.clear(Publisher(pod.name, rank))
            else:
                pod.streams[rank].last_seq = position

    async def _watch(self, pod: Pod, started: float | None) -> None:
        """Poll until the pod has failed too often, or has become another process. Raises PodGone."""
        failed = polled = 0
        while True:
            await self._pause(pod)
            try:
                await self._poller.health(pod.url)
                moves = pod.moves()
                metrics = await self._poller.metrics(pod.url)
                if (polled := polled + 1) % _MODELS_EVERY_POLLS == 0:
                    pod.models = await self._poller.models(pod.url)
            except PodError as error:
                self._metrics.polls.labels(pod.name, error.code).inc()
                failed += 1
                if pod.suspect or failed >= self._poll.failures:
                    raise PodGone(error.message) from error
                continue
            self._metrics.polls.labels(pod.name, "ok").inc()
            if metrics.started != started:
                raise PodGone("restarted")
            failed = 0
            pod.suspect = False
            pod.load, pod.load_at = metrics.load, self._pods.clock()
            self._note_progress(pod, metrics)
            self._pulls.polled(pod, metrics.pulled)
            self._pods.changed(pod)
            for verdict in pod.audited(moves, metrics.counted, pod.load_at):
                self._metrics.audits.labels(pod.name, verdict).inc()

    def _note_progress(self, pod: Pod, found: PodMetrics) -> None:
        before = pod.stalled
        pod.progressed(found.work, pod.load_at, self._poll.stall_after)
        if pod.stalled and not before:
            _log.warning("pod stalled: requests run on it, and nothing moves", pod=pod.name, requests=pod.requests)
        elif before and not pod.stalled:
            self._pulls.goes_on(pod)
            _log.info("pod goes on", pod=pod.name)

    async def _identify(self, pod: Pod) -> None:
        """What it must have in common with its peers, as far as it says so."""
        try:
            facts = await self._poller.identity(pod.url, pod.models)
        except PodError as error:
            self._metrics.identities.labels(pod.name, error.code).inc()
            return
        self._metrics.identities.labels(pod.name, "ok").inc()
        tell_disagreements(self._pods.agreement.identified(pod.name, pod.base_model, facts))

    async def _probe(self, pod: Pod, rank: int) -> None:
        """Have the pod compute a prompt that all pods are given, so that their events show whether they agree."""
        try:
            await self._poller.probe(pod.url, pod.base_model, rank if len(pod.ranks) > 1 else None)
        except PodError as error:
            self._metrics.probes.labels(pod.name, error.code).inc()
        else:
            self._metrics.probes.labels(pod.name, "ok").inc()

    async def _pause(self, pod: Pod) -> None:
        """One poll interval, cut short when somebody wants to know sooner, though not for everybody anew."""
        gap = min(_GAP_S, self._poll.interval)
        await asyncio.sleep(gap)
        try:
            async with asyncio.timeout(self._poll.interval - gap):
                await pod.wake.wait()
        except TimeoutError:
            pass
        pod.wake.clear()
