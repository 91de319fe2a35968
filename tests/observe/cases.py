"""For each alert the series of a fault that begins and ends, and when the alert has to come and to be gone.

Time is in minutes. Before the fault all is well; a check is that there is no alert at its end.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_A_MINUTE = 4  # samples
_POD = '{instance="gateway",job="p2p-gateway",pod="pod:1"'
_IDLE = '{instance="gateway",job="p2p-gateway",pod="pod:2"'
_GATEWAY = '{instance="gateway",job="p2p-gateway"'


class Phases(NamedTuple):
    """A series before, during and after the fault.

    A gauge's values; or a counter's growth in a minute, which begins at `start`. `start` None: there is no series until
    the fault, and then it is 1 at once.
    """

    before: float
    during: float
    after: float
    counter: bool = False
    start: float | None = 0.0

    def values(self, minutes: Sequence[int]) -> str:
        """As promtool reads them."""
        told: list[str] = []
        value = self.start
        for phase, length in zip((self.before, self.during, self.after), minutes, strict=True):
            for number in range(length * _A_MINUTE):
                if not self.counter:
                    value = phase
                elif value is not None:
                    value += phase / _A_MINUTE
                elif phase and not number:
                    value = 1.0
                told.append("_" if value is None else f"{value:g}")
        return " ".join(told)


def gauge(before: float, during: float) -> Phases:
    return Phases(before, during, before)


def counter(before: float, during: float) -> Phases:
    return Phases(before, during, before, counter=True)


ONCE = Phases(0.0, 1e-9, 0.0, counter=True, start=None)
"""A failure's counter: there is none before the first, which is the only one."""


class Case(NamedTuple):
    """`comes` and `gone` are minutes after the fault's beginning and end; at `not_before` of it there is none yet."""

    alert: str
    series: Mapping[str, Phases]
    comes: float
    gone: float
    fault: int = 20
    not_before: float = 0.0
    before: int = 10

    def test(self) -> dict[str, Any]:
        """For `promtool test rules`."""
        minutes = (self.before, self.fault, int(self.gone) + 2)
        checks = [(self.before - 0.5, 0), (self.before + self.comes, 1), (self.before + self.fault + self.gone, 0)]
        if self.not_before:
            checks.append((self.before + self.not_before, 0))
        asked = f'count(ALERTS{{alertname="{self.alert}",alertstate="firing"}}) or vector(0)'
        return {
            "name": self.alert,
            "interval": "15s",
            "input_series": [{"series": name, "values": each.values(minutes)} for name, each in self.series.items()],
            "promql_expr_test": [
                {"expr": asked, "eval_time": f"{int(at * 60)}s", "exp_samples": [{"labels": "{}", "value": count}]}
                for at, count in sorted(checks)
            ],
        }

    def missed(self, window: int) -> dict[str, Any]:
        """For `promtool test rules`: of failures long ago one scrape is missed, and nothing comes of it, then or later.

        `window` is that of the alert, in minutes. A missed scrape ends the series until the next.
        """
        missed = 3 * window + 5
        series = f"1x{missed * _A_MINUTE - 1} stale 1x{(window + 5) * _A_MINUTE}"
        asked = f'count(ALERTS{{alertname="{self.alert}"}}) or vector(0)'
        checks = (missed - 0.5, missed, missed + 0.5, *(missed + window + late for late in (-0.5, 0, 0.5, 1)))
        return {
            "name": f"{self.alert}, a missed scrape",
            "interval": "15s",
            "input_series": [{"series": name, "values": series} for name in self.series],
            "promql_expr_test": [
                {"expr": asked, "eval_time": f"{int(at * 60)}s", "exp_samples": [{"labels": "{}", "value": 0}]}
                for at in checks
            ],
        }


def histogram(name: str, labels: str, quick: Phases, all_: Phases, bound: str) -> dict[str, Phases]:
    """One with a bound, below which are the quick ones."""
    return {
        f'{name}_bucket{labels},le="{bound}"}}': quick,
        f'{name}_bucket{labels},le="+Inf"}}': all_,
        f"{name}_count{labels}}}": all_,
    }


def failed(metric: str, labels: str) -> dict[str, Phases]:
    return {f"p2p_gateway_{metric}{labels}}}": ONCE}


_WELL = {f'p2p_gateway_requests_total{_POD},model="m",status="200",reason=""}}': counter(600, 600)}
_SERVED = {
    f'p2p_gateway_answers_total{_GATEWAY},class="ok"}}': counter(600, 600),
    f'p2p_gateway_answers_total{_GATEWAY},class="client"}}': counter(6000, 6000),
}
_REASON = ',reason="error"'

CASES = (
    Case("P2PGatewayDown", {f"up{_GATEWAY}}}": gauge(1, 0)}, comes=1.5, gone=0.5, not_before=0.75),
    Case(
        "P2PGatewayEventLoopLate",
        histogram("p2p_gateway_event_loop_lag_seconds", _GATEWAY, counter(600, 500), counter(600, 600), "0.1")
        | {f'p2p_gateway_event_loop_lag_seconds_bucket{_GATEWAY},le="0.25"}}': counter(600, 600)},
        comes=7,
        gone=6,
        not_before=4,
    ),
    Case(
        "P2PGatewayFilesRunOut",
        {f"process_open_fds{_GATEWAY}}}": gauge(100, 900), f"process_max_fds{_GATEWAY}}}": gauge(1024, 1024)},
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case("P2PGatewayFault", failed("task_failures_total", _POD), comes=0.5, gone=61, fault=1),
    Case(
        "P2PGatewayScorerFails", failed("scorer_faults_total", f'{_GATEWAY},scorer="mine"'), comes=0.5, gone=16, fault=1
    ),
    Case(
        "P2PGatewayConfigurationNotUsed",
        failed("config_reloads_total", f'{_GATEWAY},result="failed"'),
        comes=0.5,
        gone=61,
        fault=1,
    ),
    Case(
        "P2PGatewayFileNotUsed",
        failed("file_reloads_total", f'{_GATEWAY},file="keys",result="failed"'),
        comes=0.5,
        gone=61,
        fault=1,
    ),
    Case(
        "P2PGatewayCostsNotKept",
        failed("costs_file_total", f'{_GATEWAY},action="save",result="failed"'),
        comes=0.5,
        gone=61,
        fault=1,
    ),
    Case("P2PGatewayLogIncomplete", {f"p2p_gateway_log_lost_lines_total{_GATEWAY}}}": counter(0, 10)}, comes=1, gone=6),
    Case(
        "P2PGatewayAccessLogIncomplete",
        {f"p2p_gateway_access_log_dropped_lines_total{_GATEWAY}}}": counter(0, 10)},
        comes=1,
        gone=6,
    ),
    Case(
        "P2PGatewayNoPodReady",
        {f"p2p_gateway_pod_ready{_POD}}}": gauge(1, 0)},
        comes=1,
        gone=0.5,
        not_before=0.25,
    ),
    Case("P2PGatewayPodDown", {f"p2p_gateway_pod_ready{_POD}}}": gauge(1, 0)}, comes=5.5, gone=0.5, not_before=4.5),
    Case(
        "P2PGatewayPodStalled", {f"p2p_gateway_pod_stalled{_POD}}}": gauge(0, 1)}, comes=1.5, gone=0.5, not_before=0.5
    ),
    Case(
        "P2PGatewayPodLeftOut",
        {f"p2p_gateway_pod_breaker_open{_POD}}}": gauge(0, 1)},
        comes=10.5,
        gone=5.5,
        not_before=9,
    ),
    Case("P2PGatewayEnginesFail", failed("engine_errors_total", _POD + _REASON), comes=0.5, gone=6, fault=1),
    Case("P2PGatewayAnswersBreak", failed("broken_answers_total", _POD + _REASON), comes=0.5, gone=6, fault=1),
    Case(
        "P2PGatewayRetriesUsedUp",
        {f'p2p_gateway_retries_refused_total{_GATEWAY},reason="budget"}}': counter(0, 4)},
        comes=1,
        gone=6,
        fault=5,
    ),
    Case(
        "P2PGatewayErrorsBurnFast",
        # Each failure is the first of its series among the requests: of another pod, or for another reason.
        _SERVED
        | {f'p2p_gateway_answers_total{_GATEWAY},class="failed"}}': counter(0, 60)}
        | {
            f'p2p_gateway_requests_total{{pod="pod:{n}",model="m",status="502",reason="pod_timeout"}}': ONCE
            for n in range(30)
        },
        comes=18,
        gone=7,
        fault=30,
        not_before=2,
    ),
    Case(
        "P2PGatewayErrorsBurn",
        # A hundredth of all but what clients did wrong.
        _SERVED | {f'p2p_gateway_answers_total{_GATEWAY},class="failed"}}': counter(0, 6)},
        comes=120,
        gone=30,
        fault=130,
        not_before=60,
        before=60,
    ),
    Case(
        "P2PGatewayFirstTokensLate",
        histogram("p2p_gateway_ttft_seconds", _GATEWAY + ',model="m"', counter(600, 400), counter(600, 600), "2.5"),
        comes=20,
        gone=7,
        fault=30,
        not_before=5,
    ),
    Case(
        "P2PGatewayRequestsTurnedAway",
        {f'p2p_gateway_admission_rejected_total{_GATEWAY},reason="timeout"}}': counter(0, 5)},
        comes=6,
        gone=6,
        not_before=4,
    ),
    Case(
        "P2PGatewayLimitsReached",
        {f'p2p_gateway_refused_total{_GATEWAY},reason="pod_limit"}}': counter(0, 5)},
        comes=6,
        gone=6,
        not_before=4,
    ),
    Case(
        "P2PGatewayKeysTried",
        {f'p2p_gateway_refused_total{_GATEWAY},reason="unknown_key"}}': counter(6, 600)},
        comes=2,
        gone=6,
    ),
    Case(
        "P2PGatewayPlacedBlindly",
        {
            f'p2p_gateway_prompts_total{_GATEWAY},tokens_from="local",reason=""}}': counter(600, 600),
            f'p2p_gateway_prompts_total{_GATEWAY},tokens_from="none",reason="timeout"}}': counter(0, 120),
            f'p2p_gateway_prompts_total{_GATEWAY},tokens_from="none",reason="endpoint"}}': counter(6000, 6000),
            f'p2p_gateway_prompts_total{_GATEWAY},tokens_from="none",reason="stored-response"}}': counter(6000, 6000),
        },
        comes=9,
        gone=6,
        not_before=4,
    ),
    Case(
        "P2PGatewayTokensWrong",
        failed("token_mismatches_total", f'{_GATEWAY},model="m",tokens_from="local"'),
        comes=0.5,
        gone=61,
        fault=1,
    ),
    Case(
        "P2PGatewayTokenizersFail",
        {f"p2p_gateway_pod_tokenizer_breaker_open{_POD}}}": gauge(0, 1)},
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case(
        "P2PGatewayEventsMissing",
        {
            f'p2p_gateway_kv_stream_certain{_POD},rank="0"}}': gauge(1, 0),
            f'p2p_gateway_kv_event_age_seconds{_POD},rank="0"}}': gauge(1, 1),
            f'p2p_gateway_kv_stream_certain{_IDLE},rank="0"}}': gauge(0, 0),
            f"p2p_gateway_pod_ready{_POD}}}": gauge(1, 1),
            f"p2p_gateway_pod_ready{_IDLE}}}": gauge(1, 1),
        },
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case(
        "P2PGatewayClaimsFail",
        {f'p2p_gateway_pod_credit{_POD},rank="0"}}': gauge(0.97, 0.5)},
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case(
        "P2PGatewayPullsFail",
        _WELL | {f'p2p_gateway_mispredicted_requests_total{_POD},direction="over"}}': counter(6, 300)},
        comes=12,
        gone=16,
        not_before=4,
    ),
    Case(
        "P2PGatewayPullsHang",
        failed("watchdog_fired_total", f'{_POD},source="pod:2"'),
        comes=0.5,
        gone=6,
        fault=1,
    ),
    Case(
        "P2PGatewayPullPortClosed",
        {f'p2p_gateway_pod_p2p_port_closed{_POD},rank="0"}}': gauge(0, 1)},
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case(
        "P2PGatewayPodsDisagree",
        {f"p2p_gateway_pod_disagreements{_POD}}}": gauge(0, 2)},
        comes=5.5,
        gone=0.5,
        not_before=4,
    ),
    Case(
        "P2PGatewayLinkSlow", {f"p2p_gateway_slow_links{_GATEWAY}}}": gauge(0, 1)}, comes=15.5, gone=0.5, not_before=14
    ),
    Case(
        "P2PGatewayPredictionsOff",
        {
            f'p2p_gateway_ttft_error_ratio_bucket{_GATEWAY},pull="none",le="{bound}"}}': each
            for bound, each in (
                ("0.25", counter(0, 600)),
                ("0.9", counter(100, 600)),
                ("1.1", counter(600, 600)),
                ("+Inf", counter(600, 600)),
            )
        },
        comes=70,
        gone=30,
        fault=80,
        not_before=35,
    ),
)
