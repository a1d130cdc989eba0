"""A worker's limits that follow from those of its process."""

import subprocess
import sys

SCRIPT = """
import resource
from quadriga.engine.processes.serving import SPARE_DESCRIPTORS, connection_limit
for hard in (SPARE_DESCRIPTORS + 100, SPARE_DESCRIPTORS, 64):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    print(connection_limit(50), connection_limit(1000), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_connections_leave_descriptors_for_files():
    """The process is one of its own, whose limit of open files is low."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.splitlines() == ["50 100 356 356", "1 1 256 256", "1 1 64 64"]
