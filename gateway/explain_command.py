"""`p2p-gateway explain`: where would this prompt go, and why? Asked of a gateway that runs; nothing is forwarded."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec

from config.load import ConfigError
from gateway.asking import Asking, NoAnswer, Refused, add_arguments, aligned, asking

_REFUSED: Final = 1
_CANNOT_ASK: Final = 3
_INTERRUPTED: Final = 130

_WHY: Final = {
    "named": "it holds more of the prompt, and pulling is worth it",
    "self": "nobody holds more of the prompt than the chosen pod",
    "below-floor": "nobody leads the chosen pod by enough",
    "no-holder": "nobody who could serve it holds any of the prompt",
    "cost": "computing is expected to be quicker than pulling",
    "breaker": "pulls from whoever holds more have failed lately",
    "differ": "whoever holds more hashes otherwise, or in other blocks",
    "late": "it has pulled in vain",
    "disabled": "p2p.enabled is false",
    "batch": "a request with several sequences does not pull",
    "endpoint": "requests to this path do not pull",
}


def register(parser: argparse.ArgumentParser) -> None:
    """Its arguments."""
    add_arguments(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("prompt", nargs="?", metavar="PROMPT", help="a text; -: a text or a JSON body on standard input")
    what.add_argument("--body", metavar="FILE", help="what a client would send, as JSON; -: on standard input")
    parser.add_argument("--model", help="default: the body's, or the only one of the fleet")
    parser.add_argument("--path", help="where a client would send it (default: completions or chats, by the body)")
    parser.add_argument("--json", action="store_true", help="the gateway's answer as it is")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: decided, 1: refused by the gateway, 3: it could not be asked, 130: by Ctrl-C."""
    try:
        asked = _asked(args)  # not in the loop, which would keep Ctrl-C from ending a read
        told = asyncio.run(_explained(args, asked))
        output = _output(told, args)
    except Refused as error:
        return _failed(str(error), _REFUSED)
    except (NoAnswer, ConfigError) as error:
        return _failed(str(error), _CANNOT_ASK)
    except KeyboardInterrupt:
        return _INTERRUPTED
    sys.stdout.write(output + "\n")
    return 0


def _failed(reason: str, code: int) -> int:
    sys.stderr.write(f"p2p-gateway: {reason}\n")
    return code


async def _explained(args: argparse.Namespace, asked: dict[str, Any]) -> bytes:
    async with asking(args) as gateway:
        if args.model is not None:
            asked["model"] = args.model
        elif "model" not in asked:
            asked["model"] = await _only_model(gateway)
        try:
            query = "" if args.path is None else f"?path={quote(args.path)}"
            body = msgspec.json.encode(asked)
        except UnicodeEncodeError:
            raise NoAnswer("the prompt, --model or --path: not UTF-8") from None
        return await gateway.post(f"/explain{query}", body)


def _output(told: bytes, args: argparse.Namespace) -> str:
    """What is to be shown of an answer. Raises NoAnswer for one that is no gateway's."""
    try:
        decision = msgspec.json.decode(told)
        return msgspec.json.format(told, indent=2).decode() if args.json else "\n".join(_shown(decision))
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, RuntimeError):
        raise NoAnswer(f"{args.url} is no gateway, or of another version: its answer is no decision") from None


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    """The body. Raises NoAnswer: there is none."""
    if args.body is None:
        return _text_or_body(sys.stdin.buffer.read()) if args.prompt == "-" else {"prompt": args.prompt}
    try:
        data = sys.stdin.buffer.read() if args.body == "-" else Path(args.body).read_bytes()
    except OSError as error:
        raise NoAnswer(f"{args.body}: {error.strerror}") from None
    body = _body(data)
    if body is None:
        raise NoAnswer(f"{'standard input' if args.body == '-' else args.body}: not a JSON object")
    return body


def _text_or_body(data: bytes) -> dict[str, Any]:
    body = _body(data)
    if body is not None:
        return body
    try:
        return {"prompt": data.decode()}
    except UnicodeDecodeError:
        raise NoAnswer("standard input: neither text nor JSON") from None


def _body(data: bytes) -> dict[str, Any] | None:
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


async def _only_model(gateway: Asking) -> str:
    try:
        listed = msgspec.json.decode(await gateway.get("/v1/models"))
        models = [str(card["id"]) for card in listed["data"]]
    except Refused as error:
        if error.status in (401, 403):
            raise
        raise NoAnswer("--model is needed: models are not listed here") from None
    except (msgspec.DecodeError, KeyError, TypeError):
        raise NoAnswer(f"{gateway.url} is no gateway: it does not list models") from None
    if not models:
        raise NoAnswer("no model is served: no pod is ready")
    if len(models) > 1:
        raise NoAnswer(f"--model is needed: there are {', '.join(models)}")
    return models[0]


def _shown(told: dict[str, Any]) -> Iterator[str]:
    """A table of the candidates, what came out, and why."""
    yield from aligned(_table(told), left=2)
    yield ""
    tokens, reason = told["tokens"], told["tokens_reason"]
    where_from = told["tokens_from"] + (f", {reason}" if reason else "")
    known = "its tokens are not known" if tokens is None else f"{tokens} tokens"
    yield f"prompt  {known} ({where_from}), in blocks of {told['block_size']}"
    chosen = next(each for each in told["candidates"] if _is_chosen(each, told))
    expected = chosen["predicted_ttft_ms"]
    held = told["predicted_cached_tokens"]
    facts = [
        *(() if held is None else (f"{held} tokens cached",)),
        *(() if expected is None else (f"first token expected in {expected:,.1f} ms",)),
    ]
    yield f"chosen  {_named(told['chosen'], told['chosen_rank'])}" + (f": {', '.join(facts)}" if facts else "")
    source, why = told["source"], told["source_reason"]
    reason = _WHY.get(why, "")
    if source is None:
        yield f"source  none, {why}" + (f": {reason}" if reason else "")
    else:
        yield f"source  {_named(source['pod'], source['rank'])} holds {source['cached_tokens']} tokens: {reason or why}"
    if told["filters_skipped"]:
        yield f"skipped filters, since they would have left nobody: {', '.join(told['filters_skipped'])}"


def _table(told: dict[str, Any]) -> list[list[str]]:
    scorers = list(dict.fromkeys(name for each in told["candidates"] for name in each["scores"]))
    numbers = ("gpu", "cpu", "reused", "expected", "waiting", "running", "in flight")
    rows = [["", "pod", *numbers, *scorers, "total", "TTFT ms", "by a pull from"]]
    for each in sorted(told["candidates"], key=lambda each: (not _is_chosen(each, told), -(each["total"] or -1.0))):
        cached, total = each["cached_tokens"], each["total"]
        rows.append(
            [
                "→" if _is_chosen(each, told) else "",
                _named(each["pod"], each["rank"]),
                *map(_number, (cached["gpu"], cached["cpu"], cached["any"], each["speculative_tokens"])),
                *map(_number, (each["waiting"], each["running"], each["in_flight_requests"])),
                *(f"{each['scores'][name]:.3f}" if name in each["scores"] else "-" for name in scorers),
                f"{total:.3f}" if total is not None else f"filtered: {each['filtered_by']}",
                "-" if each["predicted_ttft_ms"] is None else f"{each['predicted_ttft_ms']:,.1f}",
                each["predicted_source"] or "-",
            ]
        )
    return rows


def _is_chosen(candidate: dict[str, Any], told: dict[str, Any]) -> bool:
    return (candidate["pod"], candidate["rank"]) == (told["chosen"], told["chosen_rank"])


def _named(pod: str, rank: int) -> str:
    return f"{pod} rank {rank}" if rank else pod


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
