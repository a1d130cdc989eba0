"""The list of tests that take too long for each change."""

import ast

from tests.conftest import NIGHTLY, nightly_lines


def test_each_line_names_a_test() -> None:
    lines = nightly_lines()
    assert lines == sorted({*lines})
    for line in lines:
        file, _, name = line.partition("::")
        tests = [
            node.name
            for node in ast.parse((NIGHTLY.parent / file).read_text()).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name.startswith("test_")
        ]
        assert name.partition("[")[0] in tests, line
