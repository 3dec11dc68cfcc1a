"""No push/pop pair encloses an await: coroutines take turns on one thread, and each would close another's range."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.project.test_import_rules import modules

_SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """What runs when `function` does: not what is in functions that it defines."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, _SCOPES):
            yield node
            yield from _own_nodes(node)


def _pushes_range(node: ast.AST) -> bool:
    """A call `….push(name, payload)`; nothing else here is pushed with two arguments and popped without any."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "push"
        and len(node.args) == 2
        and not node.keywords
    )


def pushing_functions(source: str) -> Iterator[tuple[str, bool]]:
    """Name of each function that pushes a range, and whether it can be suspended while that is open."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, _SCOPES):
            nodes = list(_own_nodes(function))
            if any(map(_pushes_range, nodes)):
                suspends = isinstance(function, ast.AsyncFunctionDef) or any(isinstance(n, _SUSPENDS) for n in nodes)
                yield getattr(function, "name", "lambda"), suspends


def test_only_functions_that_run_to_their_end_push_ranges(root: Path, source_roots: list[str]) -> None:
    found = {
        (module, name): suspends
        for module, path in modules(root, source_roots)
        for name, suspends in pushing_functions(path.read_text())
        if module != "inflightd.daemon.front.generation"  # tokens and their log probabilities are pushed there
    }
    assert ("inflightd.daemon.core.step_ranges", "begin") in found, "nothing is checked"
    assert [place for place, suspends in found.items() if suspends] == []


@pytest.mark.parametrize(
    ("source", "suspends"),
    [
        ("async def f(r):\n    r.push('step', 1)\n    await g()\n    r.pop()", True),
        ("async def f(r):\n    r.push('step', 1)\n    r.pop()", True),
        ("def f(r):\n    r.push('step', 1)\n    yield\n    r.pop()", True),
        ("def f(r):\n    r.push('step', 1)\n    r.pop()", False),
        ("async def f(r):\n    def g():\n        r.push('step', 1)\n        r.pop()\n    await h(g)", False),
    ],
)
def test_a_function_that_could_be_suspended_is_found(source: str, suspends: bool) -> None:
    assert [each for _, each in pushing_functions(source)] == [suspends]
