"""The options of `p2p-loadgen run`, and the structs that they are."""

import argparse
import os
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import msgspec

from loadgen.client.load import Arrival, Load
from loadgen.client.pool import Endpoint
from loadgen.client.request import Api, History, Prompts, Shape
from loadgen.client.runner import Limits
from loadgen.client.schedule import Unit
from loadgen.report.summary import Objectives
from loadgen.workload.datasets import DATASETS
from loadgen.workload.traces import TRACES

_KEY: Final = "OPENAI_API_KEY"


class Options(NamedTuple):
    """A run: where to, what, how, how long, and what becomes of the results."""

    endpoint: Endpoint
    load: Load
    shape: Shape
    limits: Limits
    vocabulary: range
    seeds: range
    insecure: bool
    objectives: Objectives | None
    scenario: str
    label: str
    results: Path | None
    records: Path | None
    quiet: bool


def add_to(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("url", metavar="URL", help="the endpoint, with or without /v1")
    _add_load(parser.add_argument_group("what is sent"))
    _add_times(parser.add_argument_group("when it is sent"))
    _add_shape(parser.add_argument_group("how it is sent"))
    _add_results(parser.add_argument_group("what comes of it"))


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--dataset", choices=DATASETS, default="random", help="synthetic load (default random)")
    group.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a parameter of it, as JSON")
    group.add_argument("--trace", type=Path, metavar="FILE", help="a recorded load instead")
    group.add_argument("--trace-format", choices=TRACES, help="its format (default: by its first line)")
    group.add_argument("--speed-up", type=float, default=1.0, help="divide the load's own times and pauses by this")
    group.add_argument("--requests", type=int, metavar="N", help="end after so many (default: all there are)")
    group.add_argument("--duration", type=float, metavar="S", help="send for so many seconds after the warm-up")
    group.add_argument("--warm-up", default="0", metavar="N|Ns", help="requests or seconds that do not count")
    group.add_argument("--seed", type=int, default=0, help="of prompts, lengths and times (default 0)")
    group.add_argument("--seeds", type=int, default=1, help="repeat with so many seeds, from --seed on")


def _add_times(group: argparse._ArgumentGroup) -> None:
    text = "default: closed with --concurrency, poisson with --rate, else the load's own times"
    group.add_argument("--arrival", choices=get_args(Arrival), help=text)
    group.add_argument("--rate", type=float, help="requests a second")
    group.add_argument("--burstiness", type=float, default=1.0, help="shape of gamma arrivals: below 1 bursts")
    group.add_argument("--concurrency", type=int, metavar="N", help="closed loop: so many at once")
    group.add_argument("--unit", choices=get_args(Unit), default="requests", help="so many of what (default requests)")
    group.add_argument("--ramp", type=float, default=0.0, metavar="S", help="closed loop: reach that within S seconds")
    group.add_argument("--max-concurrency", type=int, metavar="N", help="open loop: hold back what is beyond, as late")
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help="for one request (default 600)")
    group.add_argument("--grace", type=float, default=30.0, metavar="S", help="after --duration (default 30)")


def _add_shape(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", help="default: the first one that the endpoint names")
    group.add_argument("--api", choices=get_args(Api), default="completions", help="default completions")
    group.add_argument("--prompts", choices=get_args(Prompts), default="ids", help="of completions (default ids)")
    group.add_argument("--vocabulary", default="1000:30000", metavar="LOW:HIGH", help="of ids (default 1000:30000)")
    text = "answers in later prompts: made up, of planned length, or what was answered (default synthetic)"
    group.add_argument("--history", choices=get_args(History), default="synthetic", help=text)
    group.add_argument("--no-ignore-eos", action="store_true", help="let the model end its answers")
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="more fields of each body")
    group.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="more of each head")
    group.add_argument("--api-key", default=os.environ.get(_KEY), help=f"default ${_KEY}")
    group.add_argument("--insecure", action="store_true", help="take any certificate")


def _add_results(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--slo", nargs="+", default=[], metavar="NAME:MS", help="for goodput: ttft, tpot, itl, e2el")
    group.add_argument("--scenario", help="its name in results (default: the dataset's or the trace's)")
    group.add_argument("--label", default="", help="the arm's name in results (default: the file's)")
    group.add_argument("--json", type=Path, metavar="FILE", help="where the figures go, a row per seed")
    group.add_argument("--jsonl", type=Path, metavar="FILE", help="where requests go (default: beside --json)")
    group.add_argument("--quiet", action="store_true", help="no progress")


def parse(given: argparse.Namespace) -> Options:
    """The options as structs; ValueError says what is wrong with them."""
    load = Load(
        dataset=given.dataset,
        parameters=_parameters(given.set),
        trace=given.trace,
        trace_format=given.trace_format,
        speed=given.speed_up,
        arrival=given.arrival or ("closed" if given.concurrency else "poisson" if given.rate else "trace"),
        rate=given.rate,
        burstiness=given.burstiness,
        concurrency=given.concurrency,
        unit=given.unit,
        ramp_s=given.ramp,
        most=given.max_concurrency,
        requests=given.requests,
    )
    bounds = dict(_pair(text, ":", "--slo") for text in given.slo)
    return Options(
        endpoint=Endpoint.parse(given.url),
        load=load,
        shape=_shape(given),
        limits=_limits(given),
        vocabulary=_vocabulary(given.vocabulary),
        seeds=range(given.seed, given.seed + given.seeds),
        insecure=given.insecure,
        objectives=Objectives({name: float(bound) for name, bound in bounds.items()}) if bounds else None,
        scenario=given.scenario or load.name,
        label=given.label,
        results=given.json,
        records=given.jsonl or (given.json and given.json.with_suffix(".jsonl")),
        quiet=given.quiet,
    )


def _shape(given: argparse.Namespace) -> Shape:
    headers = {"Authorization": f"Bearer {given.api_key}"} if given.api_key else {}
    extra = msgspec.json.decode(given.extra_body)
    if not isinstance(extra, dict):
        raise ValueError("--extra-body is to be a JSON object")  # noqa: TRY004 (what users get wrong is one kind)
    return Shape(
        model=given.model or "",
        api=given.api,
        prompts=given.prompts,
        history=given.history,
        ignore_eos=not given.no_ignore_eos,
        extra=extra,
        headers=headers | dict(_pair(text, ":", "--header") for text in given.header),
    )


def _limits(given: argparse.Namespace) -> Limits:
    seconds = given.warm_up.endswith("s")
    warm_up = float(given.warm_up.removesuffix("s"))
    return Limits(
        timeout_s=given.timeout,
        grace_s=given.grace,
        warm_up_requests=0 if seconds else int(warm_up),
        warm_up_s=warm_up if seconds else 0.0,
        duration_s=given.duration,
    )


def _parameters(given: list[str]) -> dict[str, Any]:
    """Parameters, a value that is no JSON as the text it is; dots lead into what is nested."""
    parameters: dict[str, Any] = {}
    for text in given:
        path, value = _pair(text, "=", "--set")
        *outer, name = path.split(".")
        inside = parameters
        for key in outer:
            inside = inside.setdefault(key, {})
        try:
            inside[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            inside[name] = value
    return parameters


def _vocabulary(text: str) -> range:
    low, high = _pair(text, ":", "--vocabulary")
    vocabulary = range(int(low), int(high))
    if not vocabulary or vocabulary.start < 0:
        raise ValueError(f"--vocabulary {text} holds no ids")
    return vocabulary


def _pair(text: str, mark: str, option: str) -> tuple[str, str]:
    name, found, value = text.partition(mark)
    if not found or not name:
        raise ValueError(f"{option} {text!r} lacks its {mark!r}")
    return name.strip(), value.strip()
