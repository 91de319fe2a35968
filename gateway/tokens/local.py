"""A model's tokenizer and templates in this process: the ids that the engine has, without asking it.

What the engine does (vLLM 0.32 on transformers 5): a conversation is rendered to text and tokenized without the special
tokens that surround a prompt, since templates bring them along (`add_special_tokens` defaults to false); a plain prompt
is tokenized with them (default true). Nothing is padded or truncated here: the engine refuses what is too long. The
tokenizer is the one of tokenizer.json, plus the added tokens that only tokenizer_config.json knows.

All of it may be called from any thread. Tokenizing lets go of the interpreter lock, rendering does not.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from threading import current_thread, main_thread
from typing import Any, NamedTuple

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from gateway.tokens.anthropic import habits
from gateway.tokens.chat import ChatFields, ChatRenderer, EngineChat
from gateway.tokens.cuts import find_cuts
from gateway.tokens.give_way import give_way
from gateway.tokens.model_files import FilesMissing, ModelFiles
from gateway.tokens.prompt import TokenIds
from gateway.tokens.refusal import Reason, Refused
from gateway.tokens.segments import Segmenter

_ALONE_CHARS = 16_384  # in all: a few milliseconds' work
_SURROUNDING = frozenset(("TemplateProcessing", "BertProcessing", "RobertaProcessing"))


class Local(NamedTuple):
    """Ids, or why there are none. `reused` of them came out of memory without being tokenized again."""

    ids: TokenIds | None
    reused: int = 0
    reason: Reason | None = None
    detail: str = ""


class LocalTokenizer:
    """One model's tokenizer. `encode_text` and `encode_chat` never raise for what a request contains."""

    def __init__(self, files: ModelFiles, *, engine: EngineChat | None = None, memo_bytes: int = 1 << 28) -> None:
        """Loads, which takes some tenths of a second for a large vocabulary. Raises `FilesMissing`.

        Each memory (segments and prompts, with and without surrounding special tokens) holds `memo_bytes` at most.
        """
        self.files = files
        self._backend = _load(files)
        engine = engine or EngineChat()
        self._renderer = ChatRenderer(files, engine)
        self._embedder = ChatRenderer(files, msgspec.structs.replace(engine, template_kwargs={}))
        self.habits = habits(files, engine)
        described = self._backend.to_str()
        self._cuts = find_cuts(described, encode_special_tokens=self._backend.encode_special_tokens)
        self._lead, self._trail = _surroundings(described)
        self._plain = Segmenter(self._encode, self._cuts, memo_bytes)
        self._surrounded = Segmenter(self._encode, self._cuts, memo_bytes, self._lead) if self._lead else self._plain

    @property
    def whole_because(self) -> str:
        """Why texts are always tokenized whole; empty where only what is new is."""
        return self._cuts.reason

    def encode_text(self, prompt: str, *, add_special_tokens: bool = True) -> Local:
        """The ids of a text completion's prompt."""
        try:
            return self._tokenized(prompt, surrounded=add_special_tokens)
        except Refused as refused:
            return Local(None, 0, refused.reason, refused.detail)

    def encode_chat(self, ask: ChatFields, *, embedded: bool = False) -> Local:
        """The ids of a conversation; `embedded`: of one for which the server has no template arguments."""
        renderer = self._embedder if embedded else self._renderer
        try:
            return self._tokenized(renderer.render(ask), surrounded=ask.add_special_tokens)
        except Refused as refused:
            return Local(None, 0, refused.reason, refused.detail)

    def encode_before_media(self, ask: ChatFields) -> Local:
        """The ids before the first image or sound of a conversation that has one, up to the last certain place."""
        try:
            text = self._renderer.render_before_media(ask)
            certain = text[: self._cuts.last(text)]
            made = self._tokenized(certain, surrounded=ask.add_special_tokens, trail=False)
        except Refused as refused:
            return Local(None, 0, refused.reason, refused.detail)
        return made._replace(reason="media")

    def render(self, ask: ChatFields) -> str:
        """The text of a conversation. Raises `Refused`."""
        return self._renderer.render(ask)

    def _tokenized(self, text: str, *, surrounded: bool, trail: bool = True) -> Local:
        encoded = (self._surrounded if surrounded else self._plain).encode(text)
        ids = encoded.ids
        if surrounded and trail and self._trail:
            ids = TokenIds.grown(ids, len(ids))
            ids.extend(self._trail)
        return Local(ids, encoded.reused + encoded.segments_reused)

    def _encode(self, texts: list[str]) -> list[Sequence[int]]:
        # A batch of several goes to the library's pool, and waits there for whatever long prompts it works on; one text
        # is encoded by the thread that asks.
        alone = sum(map(len, texts)) <= _ALONE_CHARS or current_thread() is main_thread()
        try:
            # the batch form is the one that releases the interpreter lock; the fast one leaves offsets out
            if alone:
                return [self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
            return [made.ids for made in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        except Exception as error:  # the library raises what it likes, for lone surrogates TypeError
            raise Refused("tokenizer", f"{type(error).__name__}: {error}") from error


def _load(files: ModelFiles) -> Backend:
    give_way()
    try:
        backend = Backend.from_file(str(files.tokenizer))
    except Exception as error:  # the library raises bare Exception
        raise FilesMissing(f"{files.tokenizer} cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(files.config.get("split_special_tokens", False))
    if missing := _missing_tokens(files, backend):
        backend.add_tokens(missing)
    return backend


def _missing_tokens(files: ModelFiles, backend: Backend) -> list[AddedToken]:
    """Added tokens that the configuration has and tokenizer.json has not, in the order of transformers."""
    present = {repr(token) for token in backend.get_added_tokens_decoder().values()}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    missing: list[AddedToken] = []
    decoder = files.config.get("added_tokens_decoder") or {}
    for _, given in sorted(decoder.items(), key=lambda entry: int(entry[0])):
        token = AddedToken(**{name: value for name, value in given.items() if name != "__type"})
        if repr(token) not in present:
            missing.append(token)
            known.add(token.content)
    extra = files.config.get("extra_special_tokens") or files.config.get("additional_special_tokens") or []
    named = [*files.special_tokens.values(), *(extra.values() if isinstance(extra, dict) else extra)]
    for content in (_content(token) for token in named):
        if content and content not in known:
            missing.append(AddedToken(content, special=True))
            known.add(content)
    return missing


def _content(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _surroundings(tokenizer_json: str) -> tuple[array[int], array[int]]:
    """The ids that the post-processor puts before and behind one sequence."""
    step = msgspec.json.decode(tokenizer_json, type=dict[str, Any]).get("post_processor")
    before, behind = array("I"), array("I")
    for processor in step.get("processors", []) if step and step.get("type") == "Sequence" else [step]:
        if processor is None or processor.get("type") not in _SURROUNDING:
            continue
        first, last = _template_ids(processor) if "single" in processor else _cls_sep(processor)
        before, behind = array("I", first) + before, behind + array("I", last)
    return before, behind


def _template_ids(processor: dict[str, Any]) -> tuple[list[int], list[int]]:
    sides: tuple[list[int], list[int]] = ([], [])
    side = 0
    for piece in processor["single"]:
        if "Sequence" in piece:
            side = 1
        else:
            sides[side].extend(processor["special_tokens"][piece["SpecialToken"]["id"]]["ids"])
    return sides


def _cls_sep(processor: dict[str, Any]) -> tuple[list[int], list[int]]:
    return [processor["cls"][1]], [processor["sep"][1]]
