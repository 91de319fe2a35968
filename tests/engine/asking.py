"""Completions asked of a gateway, with what it tells of where they came from, and what is wrong with them."""

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple

_PATIENCE_S = 60.0


class Told(NamedTuple):
    """What one request came to. `pod` and `source` are URLs, as the answer's head names them.

    `ttft`: seconds to the first token, of an answer in one piece to its end. `error`: why it is no whole answer.
    `broken`: that came behind its first bytes.
    """

    ttft: float
    text: str = ""
    cached: int = 0
    pod: str = ""
    source: str = ""
    error: str = ""
    broken: bool = False


def ask_gateway(url: str, model: str, prompt: list[int], *, stream: bool = True, tokens: int = 8) -> Told:
    """Complete the prompt greedily. What goes wrong is in the result."""
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    head = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
    began = time.monotonic()
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE_S)
    except urllib.error.HTTPError as error:
        with error:
            return Told(time.monotonic() - began, error=f"{error.code} {error.read()!r}")
    except OSError as error:
        return Told(time.monotonic() - began, error=f"no answer: {error!r}")
    with answer:
        told = Told(0.0, pod=answer.headers["x-gateway-pod"], source=answer.headers["x-gateway-kv-source"] or "")
        return _streamed(answer, told, began) if stream else _whole(answer, told, began)


def _whole(answer: http.client.HTTPResponse, told: Told, began: float) -> Told:
    try:
        said = json.load(answer)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return told._replace(ttft=time.monotonic() - began, error=f"broken off: {error!r}", broken=True)
    text = "".join(choice["text"] for choice in said["choices"])
    return told._replace(ttft=time.monotonic() - began, text=text, cached=_cached(said["usage"]))


def _streamed(answer: http.client.HTTPResponse, told: Told, began: float) -> Told:
    done = False
    try:
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            told = told if told.ttft else told._replace(ttft=time.monotonic() - began)
            done = line.startswith(b"data: [DONE]")
            if not done:
                told = _with_event(told, json.loads(line.removeprefix(b"data: ")))
    except (OSError, http.client.HTTPException) as error:
        return told._replace(error=f"broken off: {error!r}", broken=True)
    return told if done or told.error else told._replace(error="broken off: the stream has no end", broken=True)


def _with_event(told: Told, event: dict[str, Any]) -> Told:
    if "error" in event:
        return told._replace(error=f"in the stream: {event['error']}", broken=True)
    text = told.text + "".join(choice["text"] for choice in event["choices"])
    return told._replace(text=text, cached=_cached(event["usage"]) if event.get("usage") else told.cached)


def _cached(usage: dict[str, Any]) -> int:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
