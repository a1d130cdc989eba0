"""Marks tests by `nightly.txt`, as too long for each change, and by `outside.txt`; gives every test the time it needs."""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A slow machine is no failure of what is tested: no example has a deadline, and making examples may take long.
settings.register_profile(
    "patient",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("patient")

gc.disable()  # until all tests are known: looking for garbage among them takes as long as collecting them

HERE = Path(__file__).parent


def read_lines(name: str) -> list[str]:
    """Return the lines of a list that name tests: a folder, a file, or `e2e/test_file.py::test_name[parameters]`."""
    lines = (HERE / name).read_text().splitlines()
    return [line for line in lines if line and line[0] != "#"]


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that has a line, by its folder, its file, its name alone or with its parameters."""
    marks = {name: {*read_lines(f"{name}.txt")} for name in ("nightly", "outside")}
    for item in items:
        if item.path.is_relative_to(HERE):
            file = item.path.relative_to(HERE)
            name = f"{file.as_posix()}::{item.name}"
            names = {name, name.partition("[")[0], file.as_posix(), *map(str, file.parents)}
            for mark, lines in marks.items():
                if not lines.isdisjoint(names):
                    item.add_marker(mark)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what stays until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()
