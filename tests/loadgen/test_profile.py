from pathlib import Path

import msgspec
import pytest

from loadgen.pod import SimulatedPod
from loadgen.profile import PROFILES, PodProfile, ProfileError, load, profile_named


def test_a_prompt_costs_the_same_however_it_is_cut() -> None:
    profile = PROFILES["tiny-cpu"]
    whole = profile.prefill_s(6000, 0)
    assert profile.prefill_s(1000, 0) + profile.prefill_s(5000, 1000) == pytest.approx(whole)


def test_a_decode_costs_its_share_and_its_context() -> None:
    profile = PodProfile(decode_ms=0.5, decode_us_per_kilotoken_context=20.0)
    assert profile.decode_s(0) == pytest.approx(0.5e-3)
    assert profile.decode_s(50_000) == pytest.approx(1.5e-3)
    assert PodProfile().decode_s(50_000) == PodProfile().decode_s(0)


def test_speed_divides_every_duration() -> None:
    slow, fast = PodProfile(), PodProfile(speed=10)
    for profile in (slow, fast):
        assert profile.ms(10) == pytest.approx(0.01 / profile.speed)
    assert slow.prefill_s(100, 50) == pytest.approx(10 * fast.prefill_s(100, 50))
    assert slow.decode_s(100) == pytest.approx(10 * fast.decode_s(100))
    assert slow.restore_s(100) == pytest.approx(10 * fast.restore_s(100))
    assert slow.pull_s(100) == pytest.approx(10 * fast.pull_s(100))


def test_a_profile_that_could_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        PodProfile(gpu_blocks=1, block_size=16, max_model_len=17)
    with pytest.raises(ValueError, match="positive"):
        PodProfile(speed=0)


def test_the_shipped_profiles_go_by_name() -> None:
    assert list(PROFILES) == ["demo", "glm-wide-ep", "gpt-oss-120b-h200", "llama-8b", "tiny-cpu"]
    assert profile_named("tiny-cpu") == PROFILES["tiny-cpu"]


def test_the_demo_shows_every_key_with_its_default() -> None:
    shown = Path(__file__).parents[2] / "loadgen" / "profiles" / "demo.yaml"
    keys = [line.partition(":")[0] for line in shown.read_text(encoding="utf-8").splitlines() if line[:1].isalpha()]
    assert keys == list(PodProfile.__struct_fields__)
    assert PROFILES["demo"] == PodProfile()


def test_a_profile_may_be_a_file_of_ones_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("block_size: 32\ndecode_ms: 7  # as measured\n", encoding="utf-8")
    assert profile_named(str(mine)) == PodProfile(block_size=32, decode_ms=7.0)
    assert SimulatedPod(profile=str(mine), speed=3).options.profile == PodProfile(
        block_size=32, decode_ms=7.0, speed=3.0
    )


def test_a_file_that_says_nothing_is_the_defaults(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("# to be measured\n", encoding="utf-8")
    assert load(empty) == PodProfile()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prefill_us: 3", "$: Object contains unknown field `prefill_us`"),
        ("decode_ms: fast", "$.decode_ms: Expected `float`, got `str`"),
        ("decode_ms: -1", "$.decode_ms: Expected `float` >= 0.0"),
        ("block_size: 0", "$.block_size: Expected `int` >= 1"),
        ("gpu_blocks: 1", "$: gpu_blocks x block_size must hold one sequence of max_model_len tokens"),
        ("speed: 1\nspeed: 2", "line 2, column 1: 'speed' is given twice"),
        ("speed: [", "line 1, column 9: expected the node content, but found '<stream end>'"),
        ("- speed", "line 1, column 1: expected a mapping such as `block_size: 64`"),
        ("? [speed]\n: 1", "line 1, column 3: a key has to be a name"),
        ("speed: 2026-99-99", "$: month must be in 1..12"),
        ("speed: \x01", "$: unacceptable character #x0001: special characters are not allowed"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_with_the_place(tmp_path: Path, text: str, reason: str) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(text, encoding="utf-8")
    with pytest.raises(ProfileError) as refused:
        profile_named(str(bad))
    assert str(refused.value).startswith(f"{bad}: {reason}")
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"absent\.yaml: No such file"):
        load(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff")
    with pytest.raises(ProfileError, match=r"binary\.yaml: not UTF-8"):
        load(binary)


def test_a_name_of_nothing_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ProfileError, match="no profile and no file 'huge'; there are demo, glm-wide-ep"):
        SimulatedPod(profile="huge")


def test_every_shipped_profile_takes_its_longest_prompt() -> None:
    for profile in PROFILES.values():
        assert profile.gpu_blocks * profile.block_size >= profile.max_model_len
        assert msgspec.structs.replace(profile, speed=2.0).speed == 2
