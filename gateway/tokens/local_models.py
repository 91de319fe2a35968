"""Which models are tokenized in this process, and why the others are not.

    pod comes up ─▶ its model's files ─▶ loaded in a thread ─▶ the probes, here and at the pod ─▶ verdict
    answer ─▶ the engine's count of prompt tokens against ours ─▶ standing

Under `auto` a model's files serve when a pod has confirmed them and none contradicts; under `local` always, and a pod
that contradicts is warned of. Either way they serve no more once answers keep differing from what they said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import structlog

from config.schema import Tokens
from gateway.openai import Peek
from gateway.pod import Pod
from gateway.tokens.chat import EngineChat
from gateway.tokens.hub import fetch
from gateway.tokens.local import Local, LocalTokenizer
from gateway.tokens.model_files import FilesMissing, ModelFiles, find_model, read_text
from gateway.tokens.off_loop import OffLoop
from gateway.tokens.pod_backend import PodBackend, Pods, Unanswered, tokenize
from gateway.tokens.probes import PROBES, Probe, Standing, difference
from gateway.tokens.prompt import TokenIds
from gateway.tokens.questions import body_key, converted_question, text_question
from gateway.tokens.refusal import Reason, Refused

_log = structlog.get_logger("gateway.tokens")
_LOAD_S = 120.0
_PROBE_S = 10.0  # a pod that has just come up may still be busy with itself
_LARGE = 1 << 20  # what is loaded or probed goes to a thread whatever its size
_BYTES_PER_TOKEN = 16  # text, ids, block keys, and the ids as they are sent

# Why a prompt is not made here, and a pod may know it all the same.
_POD_MAY_KNOW: frozenset[Reason | None] = frozenset(
    {"engine-renders", "invalid", "media", "no-files", "no-template", "template", "tokenizer", "untrusted-template"}
)

Backend = Literal["local", "pod", "none"]


class _Model:
    """One base model: its tokenizer or why there is none, and what its pods said of it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.tokenizer: LocalTokenizer | None = None
        self.missing = "not looked for yet"
        self.pods: set[str] = set()  # that serve it
        self.verdicts: dict[str, str] = {}  # by pod; empty: confirmed
        self.standing = Standing()
        self.dropped = ""
        self.serves: LocalTokenizer | None = None
        self.told: tuple[Backend, str] | None = None


class LocalModels:
    """Models by the id of the base model, which is their namespace in the index."""

    def __init__(self, settings: Tokens, pods: PodBackend, off_loop: OffLoop) -> None:
        self._settings = settings
        self._pods = pods
        self._off_loop = off_loop
        self._loading = OffLoop(1)  # apart, so that a slow hub keeps no prompt waiting
        self._models: dict[str, _Model] = {}
        self._bases: dict[str, str] = {}  # by every name that requests have used

    def reconfigure(self, settings: Tokens) -> bool:
        """Files are looked for again, and every verdict with them, where anything about that has changed; whether."""
        before, self._settings = self._settings, settings
        looked = ("backend", "path", "models", "memo_tokens")
        changed = any(getattr(before, name) != getattr(settings, name) for name in looked)
        if changed:
            self._models = {}
        return changed

    def close(self) -> None:
        """What waits to be loaded is dropped."""
        self._loading.close()

    def serving(self, name: str, pods: Pods) -> tuple[str, LocalTokenizer | None]:
        """The base model of what a request names, and the tokenizer that serves it here, if one does.

        An adapter has its base's. O(1), but after a pod has come up O(pods) once per name.
        """
        base = self._bases.get(name)
        if base is None:
            serving = pods()
            if not serving:
                return "", None
            base = self._bases[name] = serving[0].base_model
        model = self._models.get(base)
        return base, model.serves if model is not None else None

    def require_pod(self, reason: Reason | None) -> None:
        """Raises Refused with the `reason` for which a prompt is not made here, where no pod is to be asked for it."""
        if self._settings.backend == "local" or reason not in _POD_MAY_KNOW:
            raise Refused(reason or "invalid", "")

    def compared(self, base: str, *, equal: bool) -> None:
        """An answer told whether a prompt had as many tokens as were made of it here."""
        model = self._models.get(base)
        if model is None or model.dropped or model.standing.compared(equal=equal):
            return
        model.dropped = "answers report other counts of prompt tokens"
        self._tell(base, model)

    def shown(self) -> Iterator[dict[str, Any]]:
        """What operators are shown of each model."""
        for base, model in sorted(self._models.items()):
            backend, why = self._standing(model)
            tokenizer = model.tokenizer
            yield {
                "model": base,
                "backend": backend,
                "reason": why or None,
                "pods": sorted(model.pods),
                "files": str(tokenizer.files.directory) if tokenizer is not None else None,
                "tokenized_whole": (tokenizer.whole_because or None) if tokenizer is not None else None,
            }

    async def verify(self, pod: Pod) -> bool:
        """Load the pod's model and hold it against the pod; whether that came to an end. Never raises for either."""
        base = pod.base_model
        self._bases.clear()
        model = self._models.setdefault(base, _Model())
        model.pods.add(pod.name)
        if self._settings.backend == "pod" or not base:
            self._tell(base, model)
            return True
        try:
            async with model.lock:
                await self._load(base, model, pod)
            ended = model.tokenizer is None or await self._probe(base, model, model.tokenizer, pod)
        except Refused:  # too slow, or too much to do; later perhaps
            ended = False
        if self._models.get(base) is not model:
            return False  # another configuration meanwhile
        self._tell(base, model)
        return ended

    def forget(self, pod: Pod) -> None:
        """The pod is gone; it may come back as another."""
        for base, model in self._models.items():
            model.pods.discard(pod.name)
            if model.verdicts.pop(pod.name, None) is not None:
                self._tell(base, model)

    async def _load(self, base: str, model: _Model, pod: Pod) -> None:
        if model.tokenizer is not None:
            return
        model.missing = "not loaded yet"
        deadline = asyncio.get_running_loop().time() + _LOAD_S
        try:
            model.tokenizer = await self._loading.run(_LARGE, partial(load, self._settings, base, pod), deadline)
        except FilesMissing as error:
            model.missing = str(error)

    async def _probe(self, base: str, model: _Model, tokenizer: LocalTokenizer, pod: Pod) -> bool:
        """Ask the pod each probe; no verdict where it does not answer."""
        compared = 0
        for probe in PROBES:
            ours = await self._off_loop.run(_LARGE, partial(_local, tokenizer, probe))
            if ours.ids is None:
                continue  # what is refused here is asked of a pod
            try:
                theirs = await self._ask(base, probe, pod)
            except Unanswered as failure:
                if failure.reason != "rejected":
                    return False
                if not compared:
                    _log.warning("pod does not tokenize: what it makes of prompts cannot be compared", pod=pod.name)
                    return True
                model.verdicts[pod.name] = f"{pod.name} refuses the {probe.name}, which is tokenized here"
                return True
            if differs := difference(probe.name, ours.ids, theirs):
                model.verdicts[pod.name] = f"{pod.name} differs in the {differs}"
                return True
            compared += 1
        if compared:
            model.verdicts[pod.name] = ""
        return True

    async def _ask(self, base: str, probe: Probe, pod: Pod) -> TokenIds:
        prompt = probe.prompt
        question = text_question(prompt, Peek(), base) if isinstance(prompt, str) else converted_question(prompt, base)
        deadline = asyncio.get_running_loop().time() + _PROBE_S
        return await self._pods.ids(tokenize(question), body_key(question, pod.name), lambda: [pod], deadline)

    def _refusal(self, model: _Model) -> str:
        """Why a model is not tokenized here; empty: it is."""
        if self._settings.backend == "pod":
            return "configured"
        if model.tokenizer is None:
            return model.missing
        if model.dropped:
            return model.dropped
        if self._settings.backend == "local":
            return ""
        contradicted = next((verdict for verdict in model.verdicts.values() if verdict), "")
        return contradicted or ("" if model.verdicts else "no pod has confirmed it yet")

    def _standing(self, model: _Model) -> tuple[Backend, str]:
        refusal = self._refusal(model)
        if not refusal:
            return "local", next((verdict for verdict in model.verdicts.values() if verdict), "")
        return ("none" if self._settings.backend == "local" else "pod"), refusal

    def _tell(self, base: str, model: _Model) -> None:
        now = backend, why = self._standing(model)
        model.serves = model.tokenizer if backend == "local" else None
        if now == model.told:
            return
        model.told = now
        files = str(model.tokenizer.files.directory) if model.tokenizer is not None else None
        named = self._settings.files(base).path is not None and self._settings.backend != "pod"
        unexpected = model.dropped or (why and (named or self._settings.backend == "local"))
        tell = _log.warning if unexpected else _log.info
        tell("prompts of a model are tokenized", model=base, by=backend, reason=why or None, files=files)


def load(settings: Tokens, base: str, pod: Pod) -> LocalTokenizer:
    """A model's tokenizer, from where the configuration or the pod says. Raises FilesMissing. Takes some 0.1 s."""
    configured = settings.files(base)
    files: ModelFiles | None = None
    missing: list[str] = []
    roots = (model.root for model in pod.models.values() if not model.adapter)
    for name in filter(None, dict.fromkeys([configured.path] if configured.path else [*roots, base])):
        try:
            files = find_model(name, revision=configured.revision)
            break
        except FilesMissing as error:
            missing.append(str(error))
    if files is None and configured.path and not Path(configured.path).is_absolute():
        # What an operator names may be fetched; what a pod says may not.
        fetch(configured.path, configured.revision)
        files = find_model(configured.path, revision=configured.revision)
    if files is None:
        raise FilesMissing("; ".join(missing) or "nobody says where they are")
    engine = EngineChat(
        chat_template=None if configured.chat_template is None else read_text(Path(configured.chat_template)),
        content_format=configured.content_format,
        template_kwargs=configured.template_kwargs,
        trust_request_chat_template=configured.trust_request_chat_template,
        exclude_tools_when_tool_choice_none=configured.exclude_tools_when_tool_choice_none,
    )
    return LocalTokenizer(files, engine=engine, memo_bytes=settings.memo_tokens * _BYTES_PER_TOKEN)


def _local(tokenizer: LocalTokenizer, probe: Probe) -> Local:
    prompt = probe.prompt
    return tokenizer.encode_text(prompt) if isinstance(prompt, str) else tokenizer.encode_chat(prompt)
