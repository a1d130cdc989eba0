"""The table of extras: it has the folders that are there, and says what to install."""

import subprocess
import sys

import pytest

from quadriga.engine.config.extras import (
    DATASET_FORMATS,
    EXTRAS,
    SETTINGS,
    dataset_formats,
    load,
    settings_of,
)
from tests.server_process import ROOT

PACKAGES = {
    "clickhouse": "clickhouse_connect",
    "clickhouse_copy": "clickhouse_connect",
    "log_in_routes": "httpx2",
    "object_store": "obstore",
    "sign_on": "jwt",
}
WITHOUT = """
import sys
from quadriga.engine.config.extras import MissingExtra, load
name, package = sys.argv[1:]
sys.modules[package] = None
try:
    load(name, "a setting")
except MissingExtra as error:
    print(error)
"""


def run(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_table_and_folders_have_the_same_extras():
    named = {extra.path.partition(".")[0] for extra in (EXTRAS | DATASET_FORMATS).values()} | set(
        SETTINGS
    )
    for place in ("extras", "tests/extras"):
        assert {path.parent.name for path in (ROOT / place).glob("[a-z]*/*.py")} == named


@pytest.mark.parametrize("name", EXTRAS)
def test_what_the_table_names_is_there(name):
    assert callable(load(name, name))


def test_formats_of_datasets_are_those_of_the_table():
    assert dataset_formats().keys() == DATASET_FORMATS.keys()


def test_without_its_folder_a_format_is_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "quadriga.extras.dataset_formats", None)
    for module in ("cvat", "dota", "label_folders"):
        monkeypatch.delitem(sys.modules, f"quadriga.extras.dataset_formats.{module}", raising=False)
    assert dataset_formats().keys() == {"label-studio"}


@pytest.mark.parametrize("extra", SETTINGS)
def test_settings_stand_in_the_folder_of_their_extra(extra):
    assert settings_of(extra, extra).__module__ == f"quadriga.extras.{extra}.settings"


def test_each_extra_with_packages_names_one_that_this_test_leaves_out():
    assert PACKAGES.keys() == {name for name, extra in EXTRAS.items() if extra.packages}


@pytest.mark.parametrize(("name", "package"), PACKAGES.items())
def test_without_a_package_the_error_names_what_to_type(name, package):
    extra = EXTRAS[name]
    message = run(WITHOUT, name, package)
    assert message.startswith(f"a setting requires {extra.packages} (")
    assert message.endswith(f": pip install 'quadriga[{extra.option}]'\n")


@pytest.mark.parametrize("name", EXTRAS)
def test_without_its_folder_an_extra_is_said_to_be_missing(name):
    folder = "quadriga.extras." + EXTRAS[name].path.partition(".")[0]
    assert run(WITHOUT, name, folder) == f"a setting requires {folder}, which is not here\n"


def test_a_fault_in_the_code_of_an_extra_is_none_of_its_absence(monkeypatch):
    monkeypatch.delitem(sys.modules, "quadriga.extras.tuning.profile", raising=False)
    monkeypatch.setitem(sys.modules, "quadriga.engine.commands.options", None)
    with pytest.raises(ImportError, match="options"):
        load("profile", "profile")


def test_a_server_loads_extras_when_they_are_asked_for():
    script = "import sys, quadriga.engine.assembly.app; print([name for name in sys.modules if name.startswith('quadriga.extras')])"
    assert run(script) == "[]\n"
