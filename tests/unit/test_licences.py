"""The licences of what is installed with Quadriga are known, and fit its own."""

import re
import subprocess
import sys

from deploy.licences import DEFAULT_LOCK, NOT_STATED, licences, locked_names
from tests.pages import ROOT

LOCK = DEFAULT_LOCK.read_text()


def test_every_package_states_its_licence() -> None:
    rows = licences(LOCK)
    assert len(rows) > 40
    assert {name for name, (_, text) in rows.items() if text == NOT_STATED} == set()


def test_only_the_driver_of_postgresql_is_copyleft() -> None:
    copyleft = {name: text for name, (_, text) in licences(LOCK).items() if "GPL" in text}
    assert copyleft == {"psycopg": "LGPL-3.0-only", "psycopg-binary": "LGPL-3.0-only"}


def test_every_entry_of_the_lock_is_read() -> None:
    entries = re.findall(r"^([\w.-]+).*==", LOCK, re.MULTILINE)  # some are twice, by platform
    assert set(locked_names(LOCK)) == set(entries)


def test_the_command_of_the_page_lists_every_package() -> None:
    command = ".venv/bin/python deploy/licences.py"
    assert f"```sh\n{command}\n```" in (ROOT / "docs" / "security.md").read_text()
    listed = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = {line.split()[0] for line in listed.stdout.splitlines()}
    assert lines == set(licences(LOCK))
