from typing import Any

import msgspec
import pytest

from config.listeners import Listen
from config.load import ConfigError, decode
from config.schema import P2P, Breaker, Config, Costs, Limits, Log, Placement, PodConfig, Poll, Tokens
from scorers import (
    ExpectedSource,
    ExpectedTtft,
    KvUtilization,
    MaxScore,
    Prefix,
    Queue,
    RandomPick,
    Softmax,
    WeightedSampling,
)

URL = "http://10.0.0.1:8000"


def pod(**fields: Any) -> PodConfig:
    return PodConfig(**{"url": URL, **fields})


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        decode(data, source="f.yaml")
    line = str(caught.value)
    assert "\n" not in line
    return line


def refused_pod(**fields: Any) -> str:
    return refusal({"pods": [{"url": URL, **fields}]})


def refused_beside_a_pod(**sections: Any) -> str:
    return refusal({"pods": [{"url": URL}], **sections})


# --- defaults


def test_only_pods_has_no_default() -> None:
    assert decode({"pods": [{"url": URL}]}, source="") == Config(
        pods=(PodConfig(url=URL),),
        listen=Listen(host="0.0.0.0", port=8080),
        tokens=Tokens(backend="auto", timeout=2.0, memo_tokens=8_000_000, max_batch=16),
        placement=Placement(
            scorers=(ExpectedTtft(weight=1.0, foresight=1.0, patience=0.1, slack_ms=5.0),),
            picker=Softmax(temperature=0.02),
        ),
        p2p=P2P(enabled=True, port=5710, source=ExpectedSource(foresight=1.0, patience=0.1)),
        costs=Costs(path=None, save_interval=60.0),
        poll=Poll(interval=1.0, timeout=3.0, failures=2, max_age=10.0),
        limits=Limits(
            max_body=64 * 2**20,
            attempts=3,
            connect_timeout=2.0,
            first_byte_timeout=600.0,
            idle_timeout=300.0,
            drain_timeout=30.0,
        ),
        breaker=Breaker(failures=3, cooldown=5.0),
        log=Log(level="info", format="text"),
    )


def test_a_pod_is_known_by_its_url_alone() -> None:
    assert pod() == PodConfig(
        url=URL, role="both", kv_events=None, kv_replay=None, p2p=None, data_parallel_size=1, labels={}
    )
    assert pod().name == "10.0.0.1:8000"


def test_a_section_that_is_given_in_part_keeps_its_other_defaults() -> None:
    config = decode({"pods": [{"url": URL}], "p2p": {"port": 7000}}, source="")
    assert config.p2p == P2P(port=7000)


def test_by_default_costs_say_from_how_many_tokens_on_a_pull_pays() -> None:
    for p2p, floor in (({}, None), ({"min_cached_token_delta": "auto"}, None), ({"min_cached_token_delta": 64}, 64)):
        assert decode({"pods": [{"url": URL}], "p2p": p2p}, source="").p2p.floor == floor
    told = refused_beside_a_pod(p2p={"min_cached_token_delta": "never"})
    assert told == "f.yaml: $.p2p.min_cached_token_delta: Invalid enum value 'never'"


def test_a_source_is_chosen_by_name() -> None:
    sampled = decode({"pods": [{"url": URL}], "p2p": {"source": {"type": "weighted-sampling"}}}, source="").p2p
    assert sampled == P2P(source=WeightedSampling())


def test_a_list_of_scorers_replaces_the_default_as_a_whole() -> None:
    given = {"pods": [{"url": URL}], "placement": {"scorers": [{"type": "queue", "weight": 1}]}}
    assert decode(given, source="").placement == Placement(scorers=(Queue(weight=1.0),))


def test_beside_scorers_of_ones_own_the_highest_sum_is_picked_unless_it_is_said_otherwise() -> None:
    def picker(**placement: object) -> object:
        return decode({"pods": [{"url": URL}], "placement": placement}, source="").placement.picker

    queue = [{"type": "queue"}]
    assert picker(scorers=queue) == MaxScore()
    assert picker(scorers=queue, picker={"type": "softmax"}) == Softmax()
    assert picker(picker={"type": "random"}) == RandomPick()
    assert picker(filters=[{"type": "role"}]) == picker() == Softmax()


def test_no_scorers_at_all_leave_placement_to_the_draw() -> None:
    assert decode({"pods": [{"url": URL}], "placement": {"scorers": []}}, source="").placement.scorers == ()


def test_a_configuration_survives_being_written_and_read() -> None:
    config = Config(
        pods=(
            pod(
                kv_events="tcp://10.0.0.1:5557",
                kv_replay="tcp://10.0.0.1:5561",
                p2p="10.0.0.1:5710",
                data_parallel_size=4,
            ),
            pod(url="https://[fd00::2]", labels={"zone": "a"}),
        ),
        listen=Listen(host="::", port=0),
        placement=Placement(scorers=(KvUtilization(weight=0.0), Prefix(cpu_weight=1.0))),
        p2p=P2P(enabled=False),
        log=Log(level="debug", format="json"),
    )
    assert decode(msgspec.to_builtins(config), source="") == config
    assert decode(msgspec.json.decode(msgspec.json.encode(config)), source="") == config


def test_the_json_schema_covers_every_section() -> None:
    schema = msgspec.json.schema(Config)
    assert set(schema["$defs"]["Config"]["properties"]) == set(Config.__struct_fields__)
    assert msgspec.json.encode(schema)


# --- refusals, with their paths


def test_an_unknown_key_at_the_top_is_refused() -> None:
    assert refused_beside_a_pod(pullls={}) == "f.yaml: $: Object contains unknown field `pullls`"


def test_an_unknown_nested_key_is_refused_with_its_path() -> None:
    assert refused_beside_a_pod(p2p={"prot": 1}) == "f.yaml: $.p2p: Object contains unknown field `prot`"
    assert refused_pod(kv_event="x") == "f.yaml: $.pods[0]: Object contains unknown field `kv_event`"
    assert refused_beside_a_pod(placement={"scorers": [{"type": "queue", "wait": 1}]}) == (
        "f.yaml: $.placement.scorers[0]: Object contains unknown field `wait`"
    )


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ({"listen": {"port": "80"}}, "$.listen.port"),
        ({"listen": {"port": True}}, "$.listen.port"),
        ({"listen": {"port": 65536}}, "$.listen.port"),
        ({"listen": {"port": -1}}, "$.listen.port"),
        ({"p2p": {"port": 0}}, "$.p2p.port"),
        ({"p2p": {"min_cached_token_delta": 0}}, "$.p2p.min_cached_token_delta"),
        ({"p2p": {"enabled": "yes"}}, "$.p2p.enabled"),
        ({"p2p": None}, "$.p2p"),
        ({"poll": {"interval": 0}}, "$.poll.interval"),
        ({"poll": {"interval": float("nan")}}, "$.poll.interval"),
        ({"limits": {"first_byte_timeout": float("inf")}}, "$.limits.first_byte_timeout"),
        ({"limits": {"attempts": 0}}, "$.limits.attempts"),
        ({"admission": {"max_in_flight": 0}}, "$.admission.max_in_flight"),
        ({"admission": {"max_kv_usage": 0}}, "$.admission.max_kv_usage"),
        ({"admission": {"max_kv_usage": 1.01}}, "$.admission.max_kv_usage"),
        ({"admission": {"queue": -1}}, "$.admission.queue"),
        ({"admission": {"timeout": 0}}, "$.admission.timeout"),
        ({"admission": {"priority_header": "x: y"}}, "$.admission.priority_header"),
        ({"breaker": {"failures": 0}}, "$.breaker.failures"),
        ({"tokens": {"memo_tokens": -1}}, "$.tokens.memo_tokens"),
        ({"tokens": {"backend": "estimate"}}, "$.tokens.backend"),
        ({"log": {"level": "loud"}}, "$.log.level"),
        ({"placement": {"scorers": [{"type": "prefix", "weight": -1}]}}, "$.placement.scorers[0].weight"),
        ({"placement": {"scorers": [{"type": "prefix", "weight": float("nan")}]}}, "$.placement.scorers[0].weight"),
        ({"placement": {"scorers": [{"type": "prefix", "weight": float("inf")}]}}, "$.placement.scorers[0]"),
        ({"placement": {"scorers": [{"type": "prefix", "cpu_weight": 1.5}]}}, "$.placement.scorers[0].cpu_weight"),
        ({"placement": {"scorers": [{"type": "prefix"}, {"type": "fastest"}]}}, "$.placement.scorers[1].type"),
        ({"placement": {"scorers": [{"weight": 1}]}}, "$.placement.scorers[0]"),
        ({"placement": {"picker": {"type": "astrology"}}}, "$.placement.picker.type"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(section: dict[str, Any], path: str) -> None:
    assert refused_beside_a_pod(**section).startswith(f"f.yaml: {path}: ")


def test_a_key_that_is_no_text_is_refused_with_the_path_of_its_mapping() -> None:
    assert refused_pod(labels={1: "a"}) == "f.yaml: $.pods[0].labels: a key: Expected `str`, got `int`"
    assert refusal({"pods": [{"url": URL}], True: 1}) == "f.yaml: $: a key: Expected `str`"  # type: ignore[dict-item]


def test_bounds_of_pulls_have_to_be_in_order() -> None:
    assert refused_beside_a_pod(p2p={"deadline_floor": 5.0}) == "f.yaml: $.p2p: deadline_floor is over deadline_cap"
    assert refused_beside_a_pod(p2p={"breaker": {"cooldown": 301.0}}) == (
        "f.yaml: $.p2p: breaker: cooldown is over max_cooldown"
    )
    assert refused_beside_a_pod(p2p={"first_byte_deadline": 0}).startswith("f.yaml: $.p2p.first_byte_deadline: ")
    p2p = decode({"pods": [{"url": URL}], "p2p": {"first_byte_deadline": None}}, source="").p2p
    assert p2p.first_byte_deadline is None


def test_a_scorer_listed_twice_is_refused() -> None:
    twice = {"scorers": [{"type": "queue"}, {"type": "prefix"}, {"type": "queue", "weight": 1}]}
    assert refused_beside_a_pod(placement=twice) == "f.yaml: $.placement: scorer 'queue' is listed twice"


@pytest.mark.parametrize(
    "bound", [{"max_in_flight": 1}, {"max_in_flight_tokens": 1}, {"max_waiting": 1}, {"max_kv_usage": 0.5}]
)
def test_admission_needs_a_bound_and_any_will_do(bound: dict[str, Any]) -> None:
    assert refused_beside_a_pod(admission={"enabled": True}).startswith("f.yaml: $.admission: enabled needs max_in_fl")
    assert decode({"pods": [{"url": URL}], "admission": {"enabled": True, **bound}}, source="").admission.enabled


def test_a_role_that_does_not_exist_yet_is_refused() -> None:
    assert refused_pod(role="prefill") == "f.yaml: $.pods[0].role: Invalid enum value 'prefill'"


def test_the_second_pod_is_named_as_such() -> None:
    data = {"pods": [{"url": URL}, {"url": "http://10.0.0.2:8000/v1"}]}
    assert refusal(data) == (
        "f.yaml: $.pods[1]: 'http://10.0.0.2:8000/v1' is not scheme, host and port such as http://10.0.0.1:8000"
    )


@pytest.mark.parametrize("other", [URL, URL + "/", "HTTP://10.0.0.1:8000", "https://10.0.0.1:8000"])
def test_a_pod_listed_twice_is_refused_however_its_url_is_spelt(other: str) -> None:
    assert refusal({"pods": [{"url": URL}, {"url": other}]}) == "f.yaml: $: pod 10.0.0.1:8000 is listed twice"


# --- endpoints


def test_a_replay_endpoint_needs_the_events_it_belongs_to() -> None:
    assert refused_pod(kv_replay="tcp://10.0.0.1:5558") == "f.yaml: $.pods[0]: kv_replay needs kv_events beside it"


def test_every_rank_needs_a_port_of_its_own_for_replays() -> None:
    endpoints = {"kv_events": "tcp://10.0.0.1:5557", "kv_replay": "tcp://10.0.0.1:5558"}
    assert pod(**endpoints).kv_replay == "tcp://10.0.0.1:5558"
    assert refused_pod(**endpoints, data_parallel_size=2) == (
        "f.yaml: $.pods[0]: kv_events and kv_replay share ports: each takes 2, upwards from its own"
    )
    pod(**{**endpoints, "kv_replay": "tcp://10.0.0.9:5558"}, data_parallel_size=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_events": "tcp://10.0.0.1:65535"},
        {"kv_events": "tcp://10.0.0.1:5557", "kv_replay": "tcp://10.0.0.1:65535"},
        {"p2p": "10.0.0.1:65535"},
    ],
)
def test_the_last_rank_needs_a_port_too(fields: dict[str, str]) -> None:
    pod(**fields)
    assert refused_pod(**fields, data_parallel_size=3) == (
        "f.yaml: $.pods[0]: port 65535 leaves rank 2 none: 65537 is over 65535"
    )


def test_the_last_rank_of_a_pod_without_p2p_needs_a_port_above_the_common_one() -> None:
    ranks = [{"url": URL, "data_parallel_size": 2}]
    assert refusal({"pods": ranks, "p2p": {"port": 65535}}) == (
        "f.yaml: $: port 65535 leaves rank 1 none: 65536 is over 65535"
    )
    decode({"pods": [{**ranks[0], "p2p": "10.0.0.1:5710"}], "p2p": {"port": 65535}}, source="")


@pytest.mark.parametrize(
    "endpoint", ["10.0.0.1:5557", "", "ipc:///tmp/events", "tcp://10.0.0.1", "tcp://:5557", "tcp://a:0"]
)
@pytest.mark.parametrize("field", ["kv_events", "kv_replay"])
def test_a_bad_endpoint_is_refused(field: str, endpoint: str) -> None:
    line = refused_pod(**{"kv_events": "tcp://10.0.0.1:5557", field: endpoint})
    assert line.startswith("f.yaml: $.pods[0]: ")
    assert repr(endpoint.removeprefix("tcp://")) in line


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "", "10.0.0.1:", ":5710", "10.0.0.1:x", "a b:1", "[]:5710", "[a:1", "a/b:1"]
)
def test_a_bad_p2p_address_is_refused(address: str) -> None:
    assert refused_pod(p2p=address) == f"f.yaml: $.pods[0]: {address!r} is not host:port"


def test_a_bare_ipv6_host_is_told_about_brackets() -> None:
    assert refused_pod(p2p="fd00::1:5710") == (
        "f.yaml: $.pods[0]: 'fd00::1:5710' is not host:port; an IPv6 host needs brackets"
    )


# --- urls


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.0.1:8000",
        "ftp://10.0.0.1:8000",
        "http://",
        "http://:8000",
        "http://10.0.0.1:8000/v1",
        "http://10.0.0.1:8000?a=b",
        "http://10.0.0.1:8000?",
        "http://10.0.0.1:8000#",
        "http://user:secret@10.0.0.1:8000",
        "http://:secret@10.0.0.1:8000",
        "http://10.0.0.1:8000\n",
        "http://10.0.0.1 :8000",
        "http://10.0.0.1:port",
        "http://fd00::1:8000",
        "http://[fd00::1:8000",
    ],
)
def test_a_url_that_is_more_or_less_than_a_pod_is_refused(url: str) -> None:
    assert refused_pod(url=url) == (
        f"f.yaml: $.pods[0]: {url!r} is not scheme, host and port such as http://10.0.0.1:8000"
    )


@pytest.mark.parametrize("port", ["0", "65536", "99999999999"])
def test_a_port_that_does_not_exist_is_refused(port: str) -> None:
    url = f"http://10.0.0.1:{port}"
    assert refused_pod(url=url) == f"f.yaml: $.pods[0]: {url!r}: port {port} is not in 1 … 65535"


def test_an_error_names_where_the_mapping_came_from() -> None:
    with pytest.raises(ConfigError, match=r"^--pod: \$\.pods\[0\]: 'x' is not"):
        decode({"pods": [{"url": "x"}]}, source="--pod")


def addresses(*pods: dict[str, object]) -> dict[str, tuple[str, int] | None]:
    return msgspec.convert({"pods": pods}, Config).p2p_addresses()


def test_a_pod_serves_pulls_at_its_host_and_the_fleets_port_unless_it_says_otherwise() -> None:
    assert addresses({"url": "http://[fd00::1]:8000"}, {"url": "http://b:8000", "p2p": "b2:9"}) == {
        "[fd00::1]:8000": ("fd00::1", 5710),
        "b:8000": ("b2", 9),
    }


def test_a_default_address_that_several_pods_of_a_host_would_share_is_nobodys() -> None:
    assert addresses({"url": "http://a:1"}, {"url": "http://a:2"}, {"url": "http://a:3", "p2p": "a:5710"}) == {
        "a:1": None,
        "a:2": None,
        "a:3": ("a", 5710),
    }
