"""Databases and stores for the tests of every package.

A fixture imports what it needs: tests of pure functions load no database.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Give a test the umask of users, and the next one too, as commands that run in the process change it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def no_request() -> Iterator[None]:
    """Let no test find the request of the one before."""
    yield
    if (module := sys.modules.get("quadriga.proto.request")) is not None:
        module.set_current_request(None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    from tests.postgres_server import PostgresServer

    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty, migrated database in one file, to copy."""
    from quadriga.store.database.database import migrate

    file = tmp_path_factory.mktemp("migrated") / "store.db"
    migrate(f"sqlite:///{file}")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    return file


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(
    request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path
) -> Iterator[str]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        shutil.copy(migrated_file, tmp_path / "store.db")
        yield f"sqlite:///{tmp_path}/store.db"
        return
    server = request.getfixturevalue("postgres")
    url = server.create()
    yield url
    server.drop(url)


@pytest.fixture
def store(tmp_path: Path, database_url: str) -> Iterator[Any]:
    """An empty store on each database."""
    from tests.unit.store_harness import StoreHarness

    store = StoreHarness(tmp_path, database_url)
    yield store
    store.close()
