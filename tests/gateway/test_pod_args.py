import argparse
import json
import shlex
import tomllib
from pathlib import Path

import pytest

from gateway.pod_args import (
    PodParameters,
    add_arguments,
    command,
    environment,
    kv_events_config,
    kv_transfer_config,
    parse_size,
    run,
    shell_command,
)


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def run_with(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def test_a_gpu_pod_is_served_by_vllm_serve_with_its_own_tiering_spec() -> None:
    pod = PodParameters(model="org/model")
    assert command(pod)[:3] == ["vllm", "serve", "org/model"]
    extra = kv_transfer_config(pod)["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["spec_name"] == "TieringOffloadingSpec"
    assert "spec_module_path" not in extra


def test_a_cpu_pod_is_started_by_module_and_names_the_spec_of_the_engine_patch() -> None:
    pod = PodParameters(model="/models/tiny", device="cpu")
    assert command(pod, python="/env/bin/python")[:5] == [
        "/env/bin/python",
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        "/models/tiny",
    ]
    extra = kv_transfer_config(pod)["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["spec_name"] == "HostMemoryTieringSpec"
    assert extra["spec_module_path"] == "engine_patch.host_memory"


def test_the_cpu_tier_gets_generated_tokens_and_describes_itself() -> None:
    extra = kv_transfer_config(PodParameters(model="m"))["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["offload_prompt_only"] is False
    assert extra["self_describing_kv_events"] is True


def test_the_p2p_tier_is_bound_to_the_host_that_peers_are_told() -> None:
    pod = PodParameters(model="m", host="10.0.0.7", p2p_port=6000)
    extra = kv_transfer_config(pod)["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    assert extra["secondary_tiers"] == [{"type": "p2p", "host": "10.0.0.7", "port": 6000}]
    assert option(command(pod), "--host") == "10.0.0.7"


def test_the_tier_of_the_engine_patch_is_named_where_it_is_asked_for() -> None:
    extra = kv_transfer_config(PodParameters(model="m", p2p_tier="patched"))["kv_connector_extra_config"]
    assert isinstance(extra, dict)
    (tier,) = extra["secondary_tiers"]
    assert tier == {
        "type": "BoundedP2PTier",
        "module_path": "engine_patch.p2p_tier",
        "host": "127.0.0.1",
        "port": 5710,
    }
    assert extra["spec_name"] == "TieringOffloadingSpec"


def test_a_pod_with_that_tier_tells_what_its_peers_must_share() -> None:
    """Such a plug-in is loaded only where it is named."""
    assert environment(PodParameters(model="m", p2p_tier="patched"))["VLLM_PLUGINS"] == "p2p_kv_identity"
    assert "VLLM_PLUGINS" not in environment(PodParameters(model="m"))


def test_what_is_named_is_what_the_engine_patch_has() -> None:
    source = Path(__file__).parents[2] / "engine_patch"
    assert "class BoundedP2PTier(" in (source / "bounded_tier.py").read_text()
    named = tomllib.loads((source / "pyproject.toml").read_text())["project"]["entry-points"]["vllm.endpoint_plugins"]
    assert list(named) == [environment(PodParameters(model="m", p2p_tier="patched"))["VLLM_PLUGINS"]]


def test_the_usage_of_each_answer_says_what_was_cached() -> None:
    assert "--enable-prompt-tokens-details" in command(PodParameters(model="m"))


@pytest.mark.parametrize(("device", "block_size"), [("gpu", "16"), ("cpu", "32")])
def test_the_block_size_defaults_to_what_the_device_can_do(device: str, block_size: str) -> None:
    assert option(command(PodParameters(model="m", device=device)), "--block-size") == block_size  # type: ignore[arg-type]


def test_the_seed_of_the_block_hashes_is_set_in_the_environment() -> None:
    assert environment(PodParameters(model="m", hash_seed=7))["PYTHONHASHSEED"] == "7"


def test_a_cpu_cache_is_rounded_up_to_the_whole_gibibytes_vllm_takes() -> None:
    variables = environment(PodParameters(model="m", device="cpu", device_cache_bytes=2**30 + 1))
    assert variables["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_vllm_sizes_the_cpu_cache_when_nobody_does() -> None:
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(PodParameters(model="m", device="cpu"))


def test_replay_ports_follow_the_ports_of_all_ranks() -> None:
    config = kv_events_config(PodParameters(model="m", events_port=7000, data_parallel_size=4))
    assert config["endpoint"] == "tcp://*:7000"
    assert config["replay_endpoint"] == "tcp://*:7004"


def test_ranks_are_announced_to_vllm_only_when_there_are_several() -> None:
    assert "--data-parallel-size" not in command(PodParameters(model="m"))
    assert option(command(PodParameters(model="m", data_parallel_size=2)), "--data-parallel-size") == "2"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"replay_port": 5557}, "replay-port and events-port both take port 5557"),
        ({"replay_port": 5558, "data_parallel_size": 2}, "both take port 5558"),
        ({"p2p_port": 65535, "data_parallel_size": 2}, "p2p-port: 65536 is not a port"),
        ({"port": 0}, "port: 0 is not a port"),
        ({"device": "cpu", "block_size": 16}, "multiple of 32"),
        ({"block_size": 0}, "block-size"),
        ({"cpu_bytes": 0}, "cpu-bytes"),
        ({"data_parallel_size": 0}, "data-parallel-size"),
        ({"hash_seed": -1}, "hash-seed"),
    ],
)
def test_a_pod_that_cannot_work_is_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PodParameters(model="m", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1048576),
        ("8GiB", 8 * 2**30),
        ("8gib", 8 * 2**30),
        ("1.5 GiB", 3 * 2**29),
        ("500MB", 500_000_000),
        ("64k", 64_000),
        ("64Ki", 65536),
        ("2T", 2 * 10**12),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "8 XB", "-1", "8iB", "1e9", "8GiB!"])
def test_what_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_a_shell_reads_the_printed_command_as_environment_and_arguments() -> None:
    pod = PodParameters(model="/models/it's mine", device="cpu", device_cache_bytes=2**30, extra=("--enforce-eager",))
    words = shlex.split(shell_command(pod).replace("\\\n", " "))
    assignments = [f"{name}={value}" for name, value in environment(pod).items()]
    assert words == [*assignments, *command(pod)]


def test_the_command_line_prints_a_pod_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--host", "10.0.0.1", "--cpu-bytes", "1GiB", "--device", "cpu", "--device-cache", "4GiB"]
    assert run_with(*arguments, "--p2p-tier", "patched", "m") == 0
    words = shlex.split(capsys.readouterr().out.replace("\\\n", " "))
    extra = json.loads(option(words, "--kv-transfer-config"))["kv_connector_extra_config"]
    assert extra["cpu_bytes_to_use"] == 2**30
    assert extra["secondary_tiers"][0]["host"] == "10.0.0.1"
    assert extra["secondary_tiers"][0]["type"] == "BoundedP2PTier"
    assert "VLLM_CPU_KVCACHE_SPACE=4" in words


def test_the_command_lines_defaults_are_those_of_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with("m") == 0
    assert capsys.readouterr().out == shell_command(PodParameters(model="m"))


def test_options_that_do_not_fit_together_are_one_line_and_exit_code_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with("m", "--replay-port", "5557") == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "pod-args: replay-port and events-port both take port 5557\n"
