import pytest

from loadgen.profile import PROFILES, PodProfile, profile_named


def recompute_ms(profile: PodProfile, tokens: int) -> float:
    steps = -(-tokens // profile.token_budget)
    fixed = profile.request_fixed_ms + steps * profile.step_fixed_ms
    return fixed + sum(
        1000 * profile.prefill_s(min(profile.token_budget, tokens - start), start)
        for start in range(0, tokens, profile.token_budget)
    )


def pull_ms(profile: PodProfile, tokens: int) -> float:
    fixed = profile.request_fixed_ms + profile.step_fixed_ms + profile.pull_fixed_ms
    return fixed + 1000 * (profile.pull_s(tokens) + profile.restore_s(tokens))


@pytest.mark.parametrize(
    ("name", "tokens", "recomputed", "pulled", "tolerance"),
    [
        ("tiny-cpu", 512, 200, 180, 0.35),
        ("tiny-cpu", 1024, 300, 190, 0.35),
        ("tiny-cpu", 4096, 1500, 290, 0.35),
        ("tiny-cpu", 8192, 5600, 360, 0.35),
        ("gpt-oss-120b", 8192, 249.9, 56.5, 0.2),
        ("gpt-oss-120b", 16384, 510.3, 85.9, 0.2),
        ("gpt-oss-120b", 49152, 1987.7, 235.0, 0.2),
    ],
)
def test_profiles_reproduce_what_was_measured(
    name: str, tokens: int, recomputed: float, pulled: float, tolerance: float
) -> None:
    profile = profile_named(name)
    assert recompute_ms(profile, tokens) == pytest.approx(recomputed, rel=tolerance)
    assert pull_ms(profile, tokens) == pytest.approx(pulled, rel=tolerance)


def test_a_prompt_costs_the_same_however_it_is_cut() -> None:
    profile = PROFILES["tiny-cpu"]
    whole = profile.prefill_s(6000, 0)
    assert profile.prefill_s(1000, 0) + profile.prefill_s(5000, 1000) == pytest.approx(whole)


def test_speed_divides_every_duration() -> None:
    slow, fast = PodProfile(), PodProfile(speed=10)
    for profile in (slow, fast):
        assert profile.ms(10) == pytest.approx(0.01 / profile.speed)
    assert slow.prefill_s(100, 50) == pytest.approx(10 * fast.prefill_s(100, 50))
    assert slow.restore_s(100) == pytest.approx(10 * fast.restore_s(100))
    assert slow.pull_s(100) == pytest.approx(10 * fast.pull_s(100))


def test_a_profile_that_could_never_run_is_refused() -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        PodProfile(gpu_blocks=1, block_size=16, max_model_len=17)
    with pytest.raises(ValueError, match="positive"):
        PodProfile(speed=0)
