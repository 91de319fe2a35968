"""JSON as templates print it: the standard library's, whoever writes it."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tokens.template import ChatTemplate

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)
TEMPLATE = ChatTemplate("{{ messages[0].v | tojson(indent=i, ensure_ascii=a, sort_keys=s, separators=c) }}")


def printed(value: Any, indent: int | str | None = None, **options: Any) -> str:
    options = {"ensure_ascii": False, "sort_keys": False, "separators": None} | options
    return TEMPLATE.render(
        [{"v": value}],
        i=indent,
        a=options["ensure_ascii"],
        s=options["sort_keys"],
        c=options["separators"],
    )


@given(VALUES, st.sampled_from([None, True, 0, 1, 2, 4, -1, "\t"]), st.booleans(), st.booleans())
def test_json_is_printed_as_the_standard_library_prints_it(
    value: Any, indent: int | str | None, escaped: bool, in_order: bool
) -> None:
    expected = json.dumps(value, indent=indent, ensure_ascii=escaped, sort_keys=in_order)
    assert printed(value, indent, ensure_ascii=escaped, sort_keys=in_order) == expected


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"a": [], "b": {}},
        [[], [[]]],
        math.inf,
        {"x": [math.nan, -math.inf]},
        ["\ud800", "\x7f\u2028</script>"],
        {"1": 1e22, "2": 1e-9, "3": -0.0, "4": 10**40},
        {1: 2, None: True},
        '"\\',
    ],
)
def test_corner_cases_too(value: Any) -> None:
    assert printed(value, 4) == json.dumps(value, indent=4, ensure_ascii=False)


def test_separators_are_kept() -> None:
    value = {"a": [1, {"b": 2}]}
    assert printed(value, 2, separators=(";", "=")) == json.dumps(value, indent=2, separators=(";", "="))
