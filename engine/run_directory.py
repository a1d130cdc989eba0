"""The folder of a running server in which its workers meet; it is made when it is needed."""

import contextlib
import shutil
from pathlib import Path


def run_directory(data: Path, supervisor: int) -> Path:
    """Name the folder in which the workers of a server meet, after removing those of dead servers.

    Args:
        data: The server's data folder.
        supervisor: Process id of the server.
    """
    directory = data.absolute() / "run"
    if directory.is_dir():
        for left in directory.iterdir():
            if left.name == str(supervisor) or not Path("/proc", left.name).exists():
                shutil.rmtree(left, ignore_errors=True)
    return directory / str(supervisor)


def remove_run_directory(directory: Path) -> None:
    """Remove the folder of a server that ends."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        directory.parent.rmdir()  # another server may use it
