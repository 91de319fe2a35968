"""A view as lines of text for a screen of some size: what does not fit is left out, the least important first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.top.view import LINK_COLUMNS, POD_COLUMNS, Column, Mood, Row, View

_GAP: Final = "  "
_FRAME_LINES: Final = 3  # the summary, a line below it, the heads of columns
_LINKS_LINES: Final = 6  # of what pulls cost; pods come first


class Line(NamedTuple):
    """`head`: of a table."""

    text: str
    mood: Mood = "plain"
    head: bool = False


def page(view: View, *, width: int | None, height: int | None, note: str = "") -> list[Line]:
    """`note` stands below the summary, as what is wrong; None: there is as much room as it takes. O(cells)."""
    lines = [Line(view.summary), Line(note, "bad")]
    pods, links = _table(POD_COLUMNS, view.pods, width), _table(LINK_COLUMNS, view.links, width)
    if height is None:
        lines += pods
        lines += [Line(""), *links] if view.links else []
    else:
        room = max(1, height - _FRAME_LINES)
        for_links = min(len(links) + 1, _LINKS_LINES, room - len(view.pods)) if view.links else 0
        lines += _cut(pods, room + 1 - max(0, for_links), "pods")
        if for_links > 2:
            lines += [Line(""), *_cut(links, for_links - 1, "pairs")]
        lines = lines[:height]
    return [line if width is None else line._replace(text=line.text[:width]) for line in lines]


def _table(columns: Sequence[Column], rows: Sequence[Row], width: int | None) -> list[Line]:
    cells = [tuple(column.title for column in columns), *(row.cells for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shown = _fitting(columns, widths, width)
    texts = [
        _GAP.join(row[n].ljust(widths[n]) if columns[n].left else row[n].rjust(widths[n]) for n in shown).rstrip()
        for row in cells
    ]
    moods: list[Mood] = [row.mood for row in rows]
    return [Line(texts[0], head=True), *map(Line, texts[1:], moods)]


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    """The columns that have room, in their order; those of the first rank in any case."""
    left = None if width is None else width + len(_GAP)
    taken: list[int] = []
    for number in sorted(range(len(columns)), key=lambda number: columns[number].rank):
        if left is not None:
            left -= widths[number] + len(_GAP)
            if left < 0 and columns[number].rank > 0:
                break
        taken.append(number)
    return sorted(taken)


def _cut(lines: Sequence[Line], most: int, what: str) -> list[Line]:
    """As many as fit, and how many do not."""
    if len(lines) <= most:
        return list(lines)
    kept = list(lines[: max(1, most - 1)])
    return [*kept, Line(f"… {len(lines) - len(kept)} more {what}")]
