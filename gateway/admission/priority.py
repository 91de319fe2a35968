"""How urgent a request is: what its client says, as far as its key goes."""

from __future__ import annotations

LOWEST, HIGHEST = -100, 100
_MOST_DIGITS = 20  # of what is read as a number; anything longer is none


def priority_of(said: str | None, ceiling: int | None) -> int:
    """The priority, higher first, of a request whose header says `said`; `ceiling` is its key's, None without keys.

    A key's requests have its priority, and may ask for less. Without keys 0, or what is asked for. What is no integer
    says nothing; what is out of range is the nearest that is not.
    """
    own = 0 if ceiling is None else ceiling
    if said is None or len(said) > _MOST_DIGITS:
        return own
    try:
        asked = max(LOWEST, min(HIGHEST, int(said)))
    except ValueError:
        return own
    return asked if ceiling is None else min(asked, ceiling)
