"""Paths: their patterns, their verbs, and the document of them."""

import pytest

from proto.openapi import add_operations
from proto.operations import Answer, Operation, Operations, pattern


@pytest.mark.parametrize(
    ("template", "path", "found"),
    [
        ("/a/{x}", "/a/b", {"x": "b"}),
        ("/a/{x}", "/a/b:c", None),
        ("/a/{x}:do", "/a/b:do", {"x": "b"}),
        ("/a/{x}:do", "/a/b/c:do", None),
        ("/a[/v/{v}|/l/{l}]", "/a", {"v": None, "l": None}),
        ("/a[/v/{v}|/l/{l}]", "/a/l/b", {"v": None, "l": "b"}),
        ("/a[/v/{v}|/l/{l}]", "/a/v/1/l/b", None),
        ("/a/{rest...}", "/a/b/c:d", {"rest": "b/c:d"}),
        ("/a/{rest...}", "/a/", None),
    ],
)
def test_patterns(template, path, found):
    match = pattern(template).fullmatch(path)
    assert (match and match.groupdict()) == found


def row(method, path, summary="A line", **more):
    return Operation(method, path, lambda _: Answer(b""), summary, **more)


ROWS = [
    row("POST", "/a/{x}"),
    row("GET", "/a/{rest...}", ""),
    row("GET", "/B", ignore_case=True),
]


@pytest.mark.parametrize(
    ("method", "path", "verbs"),
    [
        ("POST", "/a/b", {"POST"}),
        ("GET", "/a/b", {"GET"}),
        ("HEAD", "/a/b", {"GET"}),
        ("PUT", "/a/b", {"POST"}),
        ("POST", "/a/b/c", {"GET"}),
        ("GET", "/b", {"GET"}),
        ("GET", "/c", None),
    ],
)
def test_the_first_row_that_knows_the_verb_is_found(method, path, verbs):
    found = Operations(None, ROWS, 1).find(path, method)
    assert (found and set(found[0])) == verbs


def test_rows_without_a_summary_are_not_described():
    assert set(add_operations({}, ROWS)["paths"]) == {"/a/{x}", "/B"}
