"""What `check` found: pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

Level = Literal["ok", "note", "warn", "FAIL"]

PULLS_WORK: Final = 0
PULLS_FAIL: Final = 1


class Finding(Struct, frozen=True, omit_defaults=True):
    """One line. `FAIL`: with this, some pulls cannot work. `warn`: they can, but not as well as they might. `note`:
    something could not be told, and nothing is wrong. `check` names what was looked at.
    """

    level: Level
    check: str
    pod: str
    message: str
    fix: str = ""
    peer: str = ""

    @property
    def line(self) -> str:
        """For a person."""
        of = f"{self.pod} ← {self.peer}" if self.peer else self.pod
        return f"{self.level:4} {of}: {self.message}" + (f"; fix: {self.fix}" if self.fix else "")


def exit_code(findings: Iterable[Finding]) -> int:
    """0: pulls can work, whatever there is to improve. 1: somewhere they cannot."""
    return PULLS_FAIL if any(finding.level == "FAIL" for finding in findings) else PULLS_WORK


def summary(findings: Iterable[Finding]) -> str:
    """The last line."""
    levels = [finding.level for finding in findings]
    fails, warnings = levels.count("FAIL"), levels.count("warn")
    if fails:
        return f"pulls cannot work everywhere: {fails} to fix, {warnings} to improve"
    return f"pulls can work; {warnings} to improve" if warnings else "pulls can work"
