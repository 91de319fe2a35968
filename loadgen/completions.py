"""POST /v1/chat/completions and /v1/completions: from a body to sequences, and from their tokens to an answer or a
stream.

A client that leaves cancels its handler, and that aborts its sequences in the engine. As in vLLM a stream's headers
leave at once and its first chunk with the first token.
"""

import asyncio
from collections.abc import Sequence as Run
from http import HTTPStatus

from aiohttp import web

from loadgen import protocol, responses, tokens
from loadgen.answer import answer
from loadgen.engine import Engine
from loadgen.events import Lora
from loadgen.options import PodOptions, Received
from loadgen.protocol import ApiError, ChatRequest, CompletionRequest
from loadgen.pulls import parse_source
from loadgen.responses import sse
from loadgen.sequence import Sequence


class Completions:
    """The two completion routes of one pod over its ``engines``; ``loras``: its adapters, with their paths."""

    def __init__(self, options: PodOptions, engines: Run[Engine], loras: dict[str, tuple[Lora, str]]) -> None:
        self._options = options
        self._engines = engines
        self._loras = loras
        self._names = [options.model, *loras]
        self._fail_status, self._fail_count = HTTPStatus.OK, 0

    def fail_next(self, status: int, count: int) -> None:
        """Answer the next ``count`` completions with this error."""
        self._fail_status, self._fail_count = HTTPStatus(status), count

    async def chat(self, request: web.Request, received: Received) -> web.StreamResponse:
        """Answer a chat."""
        body = self._parse(request, received, ChatRequest)
        ids = (body.kv_transfer_params or {}).get("prompt_token_ids")
        if ids is None or body.echo:
            ids = protocol.render(body)
        elif not protocol.are_ids(ids) or not ids:
            param = "kv_transfer_params.prompt_token_ids"
            raise protocol.invalid(f"`{param}` must be a non-empty list of non-negative integers.", param)
        requested = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        return await self._generate(request, received, body, [ids], requested)

    async def text(self, request: web.Request, received: Received) -> web.StreamResponse:
        """Answer a prompt, or a batch of them."""
        body = self._parse(request, received, CompletionRequest)
        prompts = [
            prompt
            if isinstance(prompt, list)
            else tokens.render_prompt(prompt, add_special_tokens=body.add_special_tokens)
            for prompt in protocol.split_prompts(body.prompt)
        ]
        return await self._generate(
            request, received, body, prompts, 16 if body.max_tokens is None else body.max_tokens
        )

    async def prefill(self, request: web.Request, received: Received, body: ChatRequest) -> Sequence:
        """Compute a chat's prompt and one token, for answers in another shape than a completion's."""
        ids = (body.kv_transfer_params or {}).get("prompt_token_ids") or protocol.render(body)
        model = protocol.check_model(body.model, self._names)
        sequence = self._sequence(body, model, ids, 1)
        engine = self._submit(sequence, self._requested_rank(request))
        received.rank = list(self._engines).index(engine)
        try:
            async for _ in sequence.outputs():
                pass
        finally:
            received.cached_tokens = responses.cached_tokens(sequence)
            engine.abort(sequence)
        return sequence

    def _parse(self, request: web.Request, received: Received, kind: type[protocol.Body]) -> protocol.Body:
        if self._fail_count:
            self._fail_count -= 1
            raise ApiError(self._fail_status, "injected failure")
        return protocol.parse(received.body, request.content_type, kind)

    async def _generate(
        self,
        request: web.Request,
        received: Received,
        body: ChatRequest | CompletionRequest,
        prompts: list[list[int]],
        requested: int | None,
    ) -> web.StreamResponse:
        model = protocol.check_model(body.model, self._names)
        if body.n not in (None, 1):
            raise protocol.invalid("a simulated pod answers with n=1 only", "n")
        sequences = [self._sequence(body, model, prompt, requested) for prompt in prompts]
        reply = responses.Reply.new(
            request.headers.get("x-request-id") or body.request_id,
            model,
            chat=isinstance(body, ChatRequest),
            token_ids=bool(body.return_token_ids),
        )
        rank = self._requested_rank(request)
        engines = [self._submit(sequence, rank) for sequence in sequences]
        received.rank = list(self._engines).index(engines[0])
        try:
            if body.stream:
                return await self._stream(request, body, reply, sequences)
            for sequence in sequences:
                async for _ in sequence.outputs():
                    pass
            return responses.json(responses.whole(reply, sequences, details=self._options.prompt_tokens_details))
        finally:
            received.cached_tokens = responses.cached_tokens(sequences[0])
            for engine, sequence in zip(engines, sequences, strict=True):
                engine.abort(sequence)

    def _sequence(
        self, body: ChatRequest | CompletionRequest, model: str, prompt: list[int], requested: int | None
    ) -> Sequence:
        longest = self._options.profile.max_model_len
        if body.truncate_prompt_tokens is not None:
            prompt = prompt[-(longest - 1 if body.truncate_prompt_tokens == -1 else body.truncate_prompt_tokens) :]
        param = "max_completion_tokens" if isinstance(body, ChatRequest) else "max_tokens"
        room = protocol.room_for_answer(len(prompt), requested, longest, param)
        protocol.check_ids(prompt, "prompt")
        lora, path = self._loras.get(model, (None, ""))
        return Sequence(
            prompt,
            answer(prompt, room, ignore_eos=body.ignore_eos, stop=body.stops),
            self._engines[0].hasher,
            source=parse_source(body.kv_transfer_params),
            salt=body.cache_salt,
            lora=lora,
            lora_path=path,
        )

    def _requested_rank(self, request: web.Request) -> int | None:
        try:
            rank = int(request.headers["x-data-parallel-rank"])
        except (KeyError, ValueError):
            return None
        if not 0 <= rank < len(self._engines):
            raise protocol.invalid(f"data_parallel_rank {rank} is out of range [0, {len(self._engines)}).")
        return rank

    def _submit(self, sequence: Sequence, rank: int | None) -> Engine:
        if rank is None:
            # vLLM's own choice: a waiting sequence weighs as much as four running ones.
            engine = min(self._engines, key=lambda engine: 4 * engine.waiting + engine.running)
        else:
            engine = self._engines[rank]
        engine.submit(sequence)
        return engine

    async def _stream(
        self,
        request: web.Request,
        body: ChatRequest | CompletionRequest,
        reply: responses.Reply,
        sequences: list[Sequence],
    ) -> web.StreamResponse:
        options = body.stream_options or protocol.StreamOptions()
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)

        async def send(index: int, sequence: Sequence) -> None:
            async for due in sequence.outputs():
                if reply.chat and due.start == 0:
                    await response.write(sse(responses.first_chunk(reply, sequence)))
                chunk = responses.chunk(reply, index, sequence, due, fingerprint=not options.include_usage)
                if options.continuous_usage_stats and options.include_usage:
                    chunk["usage"] = responses.running_usage(sequence, due.stop)
                await response.write(sse(chunk))

        left = False
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, sequence in enumerate(sequences):
                    tasks.create_task(send(index, sequence))
        except* ConnectionResetError:
            left = True
        if left:
            raise ConnectionResetError("the client has left")
        if options.include_usage:
            details = self._options.prompt_tokens_details
            await response.write(sse(responses.usage_chunk(reply, sequences, details=details)))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response
