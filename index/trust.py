"""How far a publisher's claims are believed.

The index says what a pod holds; the pod's answers say what it really reused. Their ratio is the pod's accuracy, kept as
an average that forgets: of the last `_MEMORY` comparisons, each weighing the same whatever its length, since a wrong
claim about a short prompt betrays the same broken stream as one about a long one.

A stream with events missing for good makes the claims uncertain: whatever was removed in the time that is missing is
claimed on. So belief decays with that time, summed over all losses; where nobody knows how long it was, with all time
since. But it does not have to be guessed for long: each comparison made after the first loss measures it, and the more
of them there are, the more the measured accuracy counts and the less the decay.

    credit = (n · accuracy + k · prior) / (n + k)      k = _PRIOR_WEIGHT
    prior  = 1, or 2 ** -(seconds that are missing / _HALF_LIFE_S) while events are missing
    n      = comparisons, at most _MEMORY, halved every _HALF_LIFE_S without a new one

Evidence that ages is what lets a pod recover: one that nobody chooses any more, because it once failed, is believed a
little more with time, is chosen again, and is measured anew.

Pure: time is an argument.
"""

import math
from typing import Final

from msgspec import Struct

_MEMORY: Final = 50.0
"""Comparisons after which an old one has lost two thirds of its weight: a busy pod's last seconds."""

_PRIOR_WEIGHT: Final = 5
"""Comparisons that weigh as much as what is believed without any."""

_HALF_LIFE_S: Final = 60.0
"""Of a claim nobody has tested, while events are missing. A busy pod turns its GPU cache over in about a minute."""

DISTRUST: Final = 0.8
"""Below this credit a pod is shown as distrusted. Evictions between decision and admission alone rarely get there."""


class Trust(Struct):
    """Belief in one pod's claims."""

    whole: bool = True
    """Nothing speaks against them: credit is 1, whatever the time."""
    _accuracy: float = 1.0
    _comparisons: float = 0.0
    _compared_at: float = 0.0
    _missing: bool = False
    _missed_s: float = 0.0
    _lost_at: float | None = None

    @property
    def accuracy(self) -> float | None:
        """Share of the predicted cached tokens that answers confirmed, 0 … 1; None before the first comparison."""
        return self._accuracy if self._comparisons else None

    def compared(self, predicted: int, reported: int, now: float) -> None:
        """An answer told what was reused. A prediction of nothing cannot fail, and more than predicted is no fault."""
        if predicted <= 0:
            return
        self._comparisons = min(self._evidence(now) + 1, _MEMORY)
        self._compared_at = now
        share = 1.0 if reported >= predicted else max(0, reported) / predicted
        self._accuracy += (share - self._accuracy) / self._comparisons
        self.whole = self._accuracy == 1.0 and not self._missing

    def lost(self, now: float, seconds: float | None) -> None:
        """Events of so many seconds are missing for good; None: nobody knows of how many.

        What was measured before the first loss was measured on claims that were complete.
        """
        if not self._missing:
            self._missing = True
            self.whole = False
            self._comparisons = 0.0
        if seconds is not None:
            self._missed_s += seconds
        elif self._lost_at is None:
            self._lost_at = now

    def restored(self) -> None:
        """The record is complete again."""
        self._missing = False
        self.whole = self._accuracy == 1.0
        self._missed_s = 0.0
        self._lost_at = None

    def credit(self, now: float) -> float:
        """The factor, 0 … 1, at which claims count."""
        if self.whole:
            return 1.0
        unknown = 0.0 if self._lost_at is None else max(0.0, now - self._lost_at)
        prior = _halved(1.0, self._missed_s + unknown)
        evidence = self._evidence(now)
        return (evidence * self._accuracy + _PRIOR_WEIGHT * prior) / (evidence + _PRIOR_WEIGHT)

    def _evidence(self, now: float) -> float:
        return _halved(self._comparisons, now - self._compared_at)


def _halved(amount: float, seconds: float) -> float:
    return amount * math.exp2(-max(0.0, seconds) / _HALF_LIFE_S)
