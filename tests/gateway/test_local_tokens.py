"""Prompts tokenized with the model's own files: when they are used, when not, and who is told."""

import asyncio
import threading
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.tokens.local import LocalTokenizer
from gateway.tokens.local_models import load
from loadgen import model_files
from loadgen.tokens import render_chat, render_prompt
from tests.gateway.fleet import (
    MODEL,
    PREFIX_ONLY,
    configuration,
    fleet,
    serving,
    simulated,
    text_body,
    until,
    warm,
)
from tests.gateway.scripted import says, scripted
from tests.gateway.tokenizing import TOOLS, TURNS, asked, explained, local, model_row, tokenizes

CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tools": {"tools": TOOLS},
    "no generation prompt": {"add_generation_prompt": False},
    "continued": {"add_generation_prompt": False, "continue_final_message": True},
}


@pytest.mark.parametrize("fields", CHATS.values(), ids=CHATS)
async def test_a_chat_has_the_ids_that_its_pod_has(files: Path, fields: dict[str, Any]) -> None:
    async with local(files, 2, placement=PREFIX_ONLY) as (front, pods):
        told = await explained(front, messages=TURNS, **fields)
        ids = render_chat(TURNS, **fields)
        assert (told["tokens"], told["tokens_from"]) == (len(ids), "local")
        await warm(pods[1], [*ids, *range(2000, 2016)])
        await front.settled(*pods)
        told = await explained(front, messages=TURNS, **fields)
        assert told["chosen"] == pods[1].url
        assert told["candidates"][1]["cached_tokens"]["any"] == len(ids) // 16 * 16
        assert not asked(pods[0])
        assert not asked(pods[1])


async def test_texts_and_batches_of_them_are_tokenized_here(files: Path) -> None:
    async with local(files) as (front, (pod,)):
        for prompt, special in (("a text", True), (["one", "two!", [5, 6]], True), ("a text", False)):
            told = await front.explain(prompt, add_special_tokens=special)
            texts = [prompt] if isinstance(prompt, str) else [each for each in prompt if isinstance(each, str)]
            tokens = sum(len(render_prompt(text, add_special_tokens=special)) for text in texts)
            assert (told["tokens"], told["tokens_from"]) == (tokens + 2 * isinstance(prompt, list), "local")
        assert not asked(pod)
        assert (await front.explain("odd", add_special_tokens="yes"))["tokens_reason"] == "rejected"


async def test_what_the_files_do_not_tell_is_asked_of_a_pod(files: Path) -> None:
    async with local(files) as (front, (pod,)):
        told = await explained(front, messages=TURNS, reasoning_effort="unheard of")
        assert told["tokens_from"] == "pod"
        assert len(asked(pod)) == 1


async def test_an_answer_counts_the_prompt_tokens_that_were_predicted(files: Path) -> None:
    async with local(files) as (front, _):
        body = {"model": MODEL, "messages": TURNS, "max_tokens": 1, "tools": TOOLS}
        for _ in range(3):
            answer = await front.post("/v1/chat/completions", body)
            assert answer.json["usage"]["prompt_tokens"] == len(render_chat(TURNS, tools=TOOLS))
        assert await front.metric("prompts_total", tokens_from="local") == 3
        again = 2 * len(render_chat(TURNS, tools=TOOLS))  # and of the first what it shares with the probes
        assert again <= await front.metric("reused_tokens_total", tokens_from="local") < 1.5 * again
        assert await front.metric("token_mismatches_total") == 0
        assert await front.metric("tokenization_seconds_count", tokens_from="local") == 3
        assert await front.metric("model_tokenized_here", model=MODEL) == 1


async def test_where_the_pod_says_its_model_lies_needs_no_configuration(files: Path) -> None:
    async with simulated(1, root=str(files)) as pods, serving(pods) as front:

        async def in_use() -> bool:
            return bool((await model_row(front))["backend"] == "local")

        await until(in_use)
        assert (await front.get("/ready")).json["tokens"] == {MODEL: "local"}
        assert (await model_row(front))["files"] == str(files)


async def test_an_adapter_has_the_tokenizer_of_its_base(files: Path) -> None:
    async with local(files, pod={"loras": {"poet": "/adapters/poet"}}) as (front, _):
        told = await explained(front, model="poet", messages=TURNS)
        assert (told["tokens_from"], told["tokens"]) == ("local", len(render_chat(TURNS)))


async def test_the_pods_are_asked_where_the_configuration_says_so(files: Path) -> None:
    async with fleet(tokens={"path": str(files), "backend": "pod"}) as (front, (pod,)):
        assert (await explained(front, messages=TURNS))["tokens_from"] == "pod"
        assert len(asked(pod)) == 1
        assert await model_row(front) == {
            "model": MODEL,
            "backend": "pod",
            "reason": "configured",
            "pods": [pod.url.removeprefix("http://")],
            "files": None,
            "tokenized_whole": None,
        }


async def test_files_that_are_nowhere_leave_it_to_the_pods() -> None:
    async with fleet() as (front, _):
        assert (await explained(front, messages=TURNS))["tokens_from"] == "pod"

        async def looked_for() -> bool:
            return "no directory" in (await model_row(front))["reason"]

        await until(looked_for)
        assert (await model_row(front))["backend"] == "pod"
        assert await front.metric("model_tokenized_here", model=MODEL) == 0


async def test_files_that_are_nowhere_and_no_pod_to_ask(tmp_path: Path) -> None:
    async with fleet(tokens={"backend": "local"}) as (front, (pod,)):
        told = await explained(front, messages=TURNS)
        assert (told["tokens_from"], told["tokens_reason"]) == ("none", "no-files")
        assert (await front.explain("text"))["tokens_reason"] == "no-files"
        assert (await front.complete("text")).status == 200
        assert (await front.get("/ready")).json["tokens"][MODEL].startswith("none: ")
        assert not asked(pod)


async def test_files_that_differ_from_what_a_pod_says_are_not_used(files: Path, tmp_path: Path) -> None:
    other = model_files.write(tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|tools|>", "<|settings|>"))
    async with fleet(tokens={"path": str(other)}) as (front, (pod,)):

        async def contradicted() -> bool:
            return "differs in the chat with tools" in ((await model_row(front))["reason"] or "")

        await until(contradicted)
        pod.requests.clear()
        assert (await explained(front, messages=TURNS))["tokens_from"] == "pod"
        assert len(asked(pod)) == 1


async def test_files_that_are_to_be_used_are_used_although_a_pod_contradicts(tmp_path: Path) -> None:
    other = model_files.write(tmp_path / "other")
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|tools|>", "<|settings|>"))
    async with fleet(tokens={"path": str(other), "backend": "local"}) as (front, _):

        async def contradicted() -> bool:
            row = await model_row(front)
            return row["backend"] == "local" and "differs in the chat with tools" in (row["reason"] or "")

        await until(contradicted)
        assert (await explained(front, messages=TURNS))["tokens_from"] == "local"


async def test_files_are_dropped_when_answers_keep_differing(files: Path) -> None:
    """The pod confirms the probes, and renders what it is then asked in another way."""
    async with local(files) as (front, (pod,)):
        settings = {
            "chat_template_kwargs": {"style": "short"}
        }  # which the simulated pod's template shows, not the files'
        body = {"model": MODEL, "messages": TURNS, "max_tokens": 1, **settings}
        for _ in range(3):
            assert (await explained(front, messages=TURNS, **settings))["tokens_from"] == "local"
            assert (await front.post("/v1/chat/completions", body)).status == 200
        assert await front.metric("token_mismatches_total", tokens_from="local", model=MODEL) == 3
        assert (await explained(front, messages=TURNS, **settings))["tokens_from"] == "pod"
        row = await model_row(front)
        assert (row["backend"], row["reason"]) == ("pod", "answers report other counts of prompt tokens")
        answer = await front.post("/v1/chat/completions", body)
        assert answer.json["usage"]["prompt_tokens"] == len(render_chat(TURNS, settings={"style": "short"}))
        assert await front.metric("token_mismatches_total") == 3
        del pod


async def test_a_pod_that_is_silent_at_first_confirms_later(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tokens.tokenizer._AGAIN_S", 0.05)
    async with scripted(completions=says({"ok": True}), tokenize=says({}, 503)) as pod:
        config = {"path": str(files)}
        async with serving([pod], tokens=config, breaker={"failures": 1, "cooldown": 0.05}) as front:
            await until(lambda: bool(asked(pod)))
            assert (await model_row(front))["reason"] == "no pod has confirmed it yet"
            pod.scripts["/tokenize"] = tokenizes

            async def in_use() -> bool:
                return bool((await model_row(front))["backend"] == "local")

            await until(in_use)


async def test_a_pod_that_cannot_tokenize_confirms_nothing(files: Path) -> None:
    async with scripted(completions=says({"ok": True})) as pod, serving([pod], tokens={"path": str(files)}) as front:
        await until(lambda: bool(asked(pod)))
        assert (await front.explain("text"))["tokens_reason"] == "rejected"
        assert (await model_row(front))["reason"] == "no pod has confirmed it yet"


async def test_a_pod_that_refuses_a_probe_contradicts(files: Path) -> None:
    async def texts_only(request: web.Request) -> web.StreamResponse:
        return web.Response(status=400) if "messages" in await request.json() else await tokenizes(request)

    async with (
        scripted(completions=says({"ok": True}), tokenize=texts_only) as pod,
        serving([pod], tokens={"path": str(files)}) as front,
    ):

        async def contradicted() -> bool:
            return "refuses the chat" in ((await model_row(front))["reason"] or "")

        await until(contradicted)


async def test_a_reload_looks_again(files: Path) -> None:
    async with fleet() as (front, pods):
        assert (await explained(front, messages=TURNS))["tokens_from"] == "pod"
        await front.parts.reconfigure(configuration(pods, tokens={"path": str(files)}))

        async def in_use() -> bool:
            return bool((await model_row(front))["backend"] == "local")

        await until(in_use)
        assert (await explained(front, messages=TURNS))["tokens_from"] == "local"


async def test_what_stands_before_an_image_is_matched(files: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    before = [{"role": "system", "content": "You look at pictures. " * 10}]
    turns = [*before, {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    async with local(files) as (front, (pod,)):
        known = render_chat(before, add_generation_prompt=False)
        await warm(pod, [*known, *range(2000, 2016)])
        await front.settled(pod)
        told = await explained(front, messages=turns)
        assert (told["tokens_from"], told["tokens_reason"]) == ("local", "media")
        assert told["tokens"] == len(known)
        assert told["candidates"][0]["cached_tokens"]["any"] == len(known) // 16 * 16 > 0
        assert not asked(pod)
        await front.post("/v1/chat/completions", {"model": MODEL, "messages": turns})
        assert await front.metric("prompts_total", tokens_from="local", reason="media") == 1


async def test_a_long_prompt_is_tokenized_in_a_thread_and_a_short_one_is_not(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Callable[[], Any]] = []
    async with local(files) as (front, _):
        pool = front.parts.tokenizer._off_loop._pool
        submit = pool.submit
        monkeypatch.setattr(pool, "submit", lambda work: ran.append(work) or submit(work))
        await front.explain("short")
        assert not ran
        long = "word " * 1000
        assert (await front.explain(long))["tokens"] == len(render_prompt(long))
        assert len(ran) == 1


async def test_a_dead_tokenizer_costs_the_first_requests_their_deadline_and_no_others(files: Path) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    sections: Any = {"tokens": {"timeout": 0.2}, "breaker": {"failures": 2, "cooldown": 3600}}
    async with scripted(completions=says({"ok": True}), tokenize=silent) as pod, serving([pod], **sections) as front:
        for number in range(2):
            assert (await front.post("/v1/completions", text_body(f"text {number}"))).status == 200
        assert await front.metric("prompts_total", reason="timeout") == 2
        assert (await front.post("/v1/completions", text_body("text"))).status == 200
        assert await front.metric("prompts_total", reason="breaker") == 1
        assert await front.metric("pod_tokenizer_breaker_open") == 1
        assert (await front.row(pod))["tokenizer"] == "open"
        ready = await front.get("/ready")
        assert (ready.status, ready.json["tokens"][MODEL]) == (200, "none: every pod has failed at it lately")
        pod.scripts["/tokenize"] = tokenizes
        sections["breaker"]["cooldown"] = 0.01
        await front.parts.reconfigure(configuration([pod], **sections))

        async def back() -> bool:
            return bool((await front.explain("text"))["tokens_from"] == "pod")

        await until(back)
        assert (await front.row(pod))["tokenizer"] == "closed"


DEEP = "[" * 200_000


async def test_arguments_that_nest_without_end_cost_the_request_its_prefix_term_and_nothing_else(files: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": DEEP}}
    body = {"model": MODEL, "messages": [*TURNS, {"role": "assistant", "tool_calls": [call]}]}
    chat, refuses = says({"ok": True}), says({}, 400)
    async with scripted(chat=chat, tokenize=tokenizes) as pod, serving([pod], tokens={"path": str(files)}) as front:

        async def in_use() -> bool:
            return bool((await model_row(front))["backend"] == "local")

        await until(in_use)
        pod.scripts["/tokenize"] = refuses
        assert (await front.post("/v1/chat/completions", body)).status == 200
        assert await front.metric("prompts_total", tokens_from="none", reason="rejected") == 1


async def test_a_fault_while_tokenizing_costs_the_request_its_prefix_term_and_is_logged_once(
    files: Path, monkeypatch: pytest.MonkeyPatch, log: list[MutableMapping[str, Any]]
) -> None:
    def fails(*_: object) -> None:
        raise LookupError("a fault")

    async with local(files) as (front, _):
        monkeypatch.setattr("gateway.tokens.chats.conversation_of", fails)
        body = {"model": MODEL, "messages": TURNS, "max_tokens": 1}
        for _ in range(3):
            assert (await front.post("/v1/chat/completions", body)).status == 200
        assert await front.metric("prompts_total", tokens_from="none", reason="fault") == 3
        (told,) = [entry for entry in log if entry["log_level"] == "error"]
        assert isinstance(told["exc_info"], LookupError)
        log.remove(told)


async def test_a_model_that_takes_long_to_load_keeps_no_prompt_waiting(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*given: Any) -> LocalTokenizer:
        begun.set()
        go_on.wait(30)
        return load(*given)

    monkeypatch.setattr("gateway.tokens.local_models.load", slowly)
    monkeypatch.setattr("gateway.tokens.local_models._LOAD_S", 0.05)
    monkeypatch.setattr("gateway.tokens.tokenizer._AGAIN_S", 0.05)
    try:
        async with fleet(tokens={"path": str(files), "threads": 1}) as (front, _):
            await until(begun.is_set)
            told = await explained(front, messages=[{"role": "user", "content": "long " * 1000}])
            assert told["tokens_from"] == "pod"
            assert (await model_row(front))["reason"] == "not loaded yet"
            monkeypatch.setattr("gateway.tokens.local_models._LOAD_S", 30)
            go_on.set()

            async def in_use() -> bool:
                return bool((await model_row(front))["backend"] == "local")

            await until(in_use)
    finally:
        go_on.set()


async def test_a_reload_gives_prompts_as_many_threads_as_it_says(files: Path) -> None:
    async with local(files) as (front, pods):
        tokenizer = front.parts.tokenizer
        before = tokenizer._off_loop._pool
        tokens = {"path": str(files), "threads": 5}
        await front.parts.reconfigure(configuration(pods, tokens=tokens))
        after = tokenizer._off_loop._pool
        assert after is not before
        assert after._max_workers == 5
        assert (await explained(front, messages=[{"role": "user", "content": "long " * 1000}]))[
            "tokens_from"
        ] == "local"
        await front.parts.reconfigure(configuration(pods, tokens={**tokens, "max_batch": 3}))
        assert tokenizer._off_loop._pool is after
