"""Marks the tests of `nightly.txt`, which take too long for each change, and gives every test the time it needs."""

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

NIGHTLY = Path(__file__).parent / "nightly.txt"


def nightly_lines() -> list[str]:
    """Return the lines that name tests, as `e2e/test_file.py::test_name` or with `[parameters]`."""
    return [line for line in NIGHTLY.read_text().splitlines() if line and line[0] != "#"]


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that has a line, by its name alone or with its parameters."""
    lines = {*nightly_lines()}
    for item in items:
        if item.path.is_relative_to(NIGHTLY.parent):
            name = f"{item.path.relative_to(NIGHTLY.parent).as_posix()}::{item.name}"
            if not lines.isdisjoint({name, name.partition("[")[0]}):
                item.add_marker(pytest.mark.nightly)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what stays until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()
