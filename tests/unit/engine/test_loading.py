"""Modules that each process of a server loads at its start: they cost each start, and each worker."""

import subprocess
import sys

import pytest

WEB = {"litestar", "uvicorn", "grpc"}
MODELS = {"onnxruntime", "cv2", "numpy"}
SELDOM = {"alembic", "jinja2", "scipy.special", "scipy.stats", "scipy.optimize"}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("quadriga.engine.processes.serving", SELDOM),
        ("quadriga.store.writing.writer", SELDOM | WEB | MODELS),
        ("quadriga.engine.processes.worker", SELDOM | WEB | MODELS | {"sqlalchemy"}),
        ("quadriga.store.changes.service", SELDOM | WEB | MODELS),
        ("quadriga.engine.jobs.job_kinds", SELDOM | WEB | MODELS),
        ("quadriga.engine.processes.supervisor", SELDOM | WEB | MODELS | {"sqlalchemy"}),
        ("quadriga.engine.cli", SELDOM | WEB | MODELS | {"sqlalchemy"}),
    ],
    ids=["worker", "writer", "jobs", "changes", "kinds of jobs", "supervisor", "command"],
)
def test_a_process_loads_only_what_it_needs(module, absent) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert module in ran.stdout.split()
    assert absent.isdisjoint(ran.stdout.split())
