"""The lists of tests that take too long for each change, and of those that hold whatever the code inside looks like."""

import ast

from tests.conftest import HERE, read_lines


def test_each_line_names_a_test() -> None:
    lines = read_lines("nightly.txt")
    assert lines == sorted({*lines})
    for line in lines:
        file, _, name = line.partition("::")
        tests = [
            node.name
            for node in ast.parse((HERE / file).read_text()).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
        ]
        assert name.partition("[")[0] in tests, line


def test_tests_of_the_outside_are_there() -> None:
    lines = read_lines("outside.txt")
    assert len(lines) == len({*lines})
    for line in lines:
        path = HERE / line
        assert path.is_file() or [*path.rglob("test_*.py")], line
