"""What an expression of PromQL asks for: names of metrics, and labels. No parser; a word is what is left of it."""

import re

_QUOTED = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)?\{([^}]*)\}")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_OFFSET = re.compile(r"\boffset\s+\S+")
_NAME = re.compile(r"(?<![\w:.$])[a-zA-Z_:][\w:]*+(?!\s*\()")
_WORD_BEFORE_GROUP = re.compile(r"\b(?:sum|min|max|avg|count)\b(?=\s*\(|\s+by\b)")
_OPERATORS = frozenset({"and", "or", "unless", "bool", "by", "on", "without", "inf", "nan"})
RECORDED = ":"


def metrics_in(expr: str) -> set[str]:
    """Names of the metrics, recorded ones included."""
    bare = _QUOTED.sub("", expr)
    bare = _OFFSET.sub("", _RANGE.sub("", _GROUPED.sub("", _SELECTOR.sub(lambda found: found[1] or "", bare))))
    return {name for name in _NAME.findall(_WORD_BEFORE_GROUP.sub("", bare)) if name not in _OPERATORS}


def labels_in(expr: str) -> set[str]:
    """Names of the labels that are matched or grouped by."""
    bare = _QUOTED.sub("", expr)
    matchers = [matcher for _, inner in _SELECTOR.findall(bare) for matcher in inner.split(",")]
    grouped = [name for inner in _GROUPED.findall(bare) for name in inner.split(",")]
    return {re.split(r"[=!~]", name)[0].strip() for name in (*matchers, *grouped)} - {""}


def selectors_in(expr: str) -> list[tuple[str, set[str]]]:
    """Each metric with labels to match, and these."""
    return [(name, labels_in(f"x{{{inner}}}")) for name, inner in _SELECTOR.findall(_QUOTED.sub("", expr))]


def counts(expr: str) -> set[str]:
    """Counters that are looked at without `rate` or `increase`, and not to see whether they are new."""
    bare = re.sub(
        r"\b(?:rate|increase)\([^()]*\)", "", _RANGE.sub("", _SELECTOR.sub(lambda f: f[1] or "", _QUOTED.sub("", expr)))
    )
    return {name for name in metrics_in(bare) if name.endswith(("_total", "_count", "_sum", "_bucket"))}
