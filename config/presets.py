"""Placements that have a name: what is compared in published measurements, and what the gateway starts from."""

from typing import Final, Literal, NamedTuple

from scorers import (
    AnyPicker,
    AnyScorer,
    ExpectedTtft,
    KvUtilization,
    MaxScore,
    Prefix,
    Queue,
    Softmax,
    TokenLoad,
    WeightedRandom,
)

PresetName = Literal["expected-ttft", "affinity", "load", "token-load"]


class Preset(NamedTuple):
    """What a name stands for."""

    scorers: tuple[AnyScorer, ...]
    picker: AnyPicker


PRESETS: Final[dict[PresetName, Preset]] = {
    # To where the first token comes soonest, by what work and pulls have cost so far, and by what others lose by it.
    "expected-ttft": Preset((ExpectedTtft(),), Softmax()),
    # To the pod that holds the prompt, unless its load outweighs that.
    "affinity": Preset((Prefix(weight=3.0), Queue(weight=2.0), KvUtilization(weight=2.0)), MaxScore()),
    # Spread by load, whatever is cached where; pods pull what they lack.
    "load": Preset((Queue(weight=3.0), KvUtilization(weight=2.0)), WeightedRandom()),
    # To the pod with the fewest tokens to compute, what it holds of this prompt left out.
    "token-load": Preset((TokenLoad(weight=2.0),), MaxScore()),
}

DEFAULT: Final = PRESETS["expected-ttft"]
