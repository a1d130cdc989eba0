"""A data folder that other users could read."""

import stat
from pathlib import Path

import pytest

from quadriga.engine.processes.data_folder import make_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that others may read."""
    tmp_path.chmod(0o755)
    for name in ("journal", "blobs", "run"):
        (tmp_path / name).mkdir(mode=0o755)
    for name in ("store.db", "store.db-wal", "store.db.damaged-1", "server.lock", "dead.jsonl"):
        (tmp_path / name).touch(mode=0o644)
    return tmp_path


def test_an_older_folder_is_made_private_once(folder):
    assert make_private(folder) == 9
    assert {mode(path) for path in (folder, *folder.iterdir())} == {0o700, 0o600}
    assert make_private(folder) == 0


def test_what_is_no_data_of_a_server_stays_as_it_is(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "blobs"
    elsewhere.mkdir(mode=0o755)
    (folder / "blobs").rmdir()
    (folder / "blobs").symlink_to(elsewhere)
    (folder / "notes.txt").touch(mode=0o644)
    assert make_private(folder) == 7
    assert (mode(folder), mode(folder / "notes.txt"), mode(elsewhere)) == (0o755, 0o644, 0o755)
    assert mode(folder / "journal") == 0o700
