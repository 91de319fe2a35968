"""What is refused everywhere alike."""

import pytest

from scorers import Queue, RandomPick, Softmax, WeightedRandom
from scorers.base import Picker

pickers = pytest.mark.parametrize("picker", [RandomPick(), Softmax(), WeightedRandom()])


@pickers
@pytest.mark.parametrize("coordinate", [-0.1, 1.0])
def test_a_coordinate_that_is_none_is_refused(picker: Picker, coordinate: float) -> None:
    with pytest.raises(ValueError, match="coordinate must be in"):
        picker.pick([1.0, 2.0], coordinate)


@pickers
def test_there_has_to_be_something_to_pick_from(picker: Picker) -> None:
    with pytest.raises(ValueError, match="totals are empty"):
        picker.pick([], 0.5)


@pytest.mark.parametrize("weight", [-1.0, float("inf")])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight must be finite"):
        Queue(weight=weight)
