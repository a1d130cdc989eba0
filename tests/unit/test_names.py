"""The words of the code say what they stand for: the emptiest names do not come back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = (
    "client",
    "engine",
    "extras",
    "proto",
    "tasks",
    "store",
    "monitor",
    "bench",
    "sample_models",
)
EMPTY_NAMES = {"asked", "each", "found", "kept", "one", "said", "some", "thing", "told", "whole"}
FRAGMENT_STARTS = (
    "Of ",
    "That ",
    "By ",
    "Which ",
    "Whose ",
    "Where ",
    "From ",
    "As ",
    "To ",
    "In ",
    "With ",
)
DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (*DEFINITIONS, ast.Assign, ast.AnnAssign)


def python_files(folder: str) -> list[Path]:
    """Return the files of a folder; `tests/data` belongs to released versions."""
    skipped = {".cache", "data"}
    return sorted(path for path in (ROOT / folder).rglob("*.py") if skipped.isdisjoint(path.parts))


def assigned_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every variable and parameter with its line; fields of classes are names on the wire."""
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def docstrings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the docstrings of functions and classes, and the texts under constants and fields."""
    for node in ast.walk(tree):
        body = getattr(node, "body", [])
        statements = body if isinstance(body, list) else []
        previous = [node if isinstance(node, DEFINITIONS) else None, *statements]
        for before_text, statement in zip(previous, statements, strict=False):
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text)) if isinstance(
                    before_text, DOCUMENTED
                ):
                    yield text, statement.lineno


@pytest.mark.parametrize("folder", CODE)
def test_no_name_is_one_of_the_emptiest(folder: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in python_files(folder)
        for name, line in assigned_names(ast.parse(path.read_text()))
        if name in EMPTY_NAMES
    ]
    assert not places, "say what these hold: " + ", ".join(places)


@pytest.mark.parametrize("folder", [*CODE, "tests"])
def test_every_docstring_can_be_read_without_the_name_beside_it(folder: str) -> None:
    places = [
        f"{path.relative_to(ROOT)}:{line} {text[:40]!r}"
        for path in python_files(folder)
        for text, line in docstrings(ast.parse(path.read_text()))
        if text.startswith(FRAGMENT_STARTS)
    ]
    assert not places, "name the subject of these: " + ", ".join(places)
