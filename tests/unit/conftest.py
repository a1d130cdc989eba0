"""Databases for the tests of every package."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.database import migrate
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/store.db"
        migrate(url)
        yield url
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create()
    yield url
    server.drop(url)
