"""Whether a chat template wants a message's content as one string or as a list of parts.

vLLM looks at the template's syntax tree (`renderers/hf.py`, 0.32): a template that loops over a message's content takes
parts ("openai"), any other takes text ("string"). What counts as a message is what a loop over `messages` binds, where
`messages` may have been assigned on, sliced or filtered; what counts as its content is the attribute or item `content`,
a macro's parameter that is given it, or, outside macros, the bare name `content`. The rule is a guess about templates,
but it decides what the engine renders, so it is kept with its blind spots: scopes are ignored, and a loop that unpacks
its target ends the search with "string".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["string", "openai"]

_CONTENT = "content"


class _Unreadable(Exception):
    """The tree has a form that the rule does not cover; the engine then takes "string"."""


def content_format(tree: nodes.Template) -> ContentFormat:
    """What the engine hands to a template with this tree. Quadratic in the tree at worst; done once per template."""
    try:
        return "openai" if _loops_over_content(tree) else "string"
    except _Unreadable:
        return "string"


def _loops_over_content(tree: nodes.Template) -> bool:
    messages = _bound_to_a_message(tree)
    by_macro = _content_parameters(tree, messages)
    for loop in tree.find_all(nodes.For):
        bare = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        parameters = by_macro.get(id(loop))
        is_content = any(_reaches(loop.iter, name, _CONTENT) for name in messages)
        is_content = is_content or (bare is not None and parameters is not None and bare in parameters)
        if is_content or (parameters is None and bare == _CONTENT):
            _name_of(loop.target)
            return True
    return False


def _bound_to_a_message(tree: nodes.Template) -> list[str]:
    lists = list(_aliases(tree, "messages"))
    return [
        _name_of(loop.target)
        for loop in tree.find_all(nodes.For)
        if any(_reaches(loop.iter, name, None) for name in lists)
    ]


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """`name`, and every name that it is assigned to, transitively."""
    seen, open_names = {name}, [name]
    while open_names:
        known = open_names.pop(0)
        yield known
        for assign in tree.find_all(nodes.Assign):
            if _reaches(assign.node, known, None):
                target = _name_of(assign.target)
                if target not in seen:
                    seen.add(target)
                    open_names.append(target)


def _content_parameters(tree: nodes.Template, messages: list[str]) -> dict[int, set[str]]:
    """Per loop inside a macro, by identity: the macro's parameters that are given a message's content."""
    found: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in tree.find_all(nodes.Call):
            if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
                continue
            arguments = [*zip(names, call.args, strict=False), *((k.key, k.value) for k in call.kwargs)]
            given.update(
                name
                for name, value in arguments
                if name in names and any(_reaches(value, message, _CONTENT) for message in messages)
            )
        for loop in macro.find_all(nodes.For):
            known = found.setdefault(id(loop), set())
            if given:
                known.clear()  # of nested macros the last one found that is given content counts
                known.update(given)
    return found


def _reaches(node: nodes.Node | None, name: str, key: str | None) -> bool:
    """Whether `node` is the variable (or its attribute or item `key`), possibly filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return _is_variable(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_variable(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and _is_variable(node.node, name) and node.attr == key


def _is_variable(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name


def _name_of(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unreadable
    return target.name
