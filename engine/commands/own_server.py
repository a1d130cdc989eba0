"""A server of one's own, in processes of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from engine.commands.server_client import ServerError

_STOP_S = 30.0
_SAID_BYTES = 2000


@contextmanager
def own_server(model: Path, data: str) -> Iterator[str]:
    """Serve a model on a free port for as long as the block lasts; gives its URL.

    Args:
        model: Its folder.
        data: Folder for journal, database and images.

    Raises:
        ServerError: It does not start.
    """
    command = [sys.executable, "-m", "engine.cli", "serve", str(model), "--data", data]
    with (
        TemporaryFile() as log,
        subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--port", "0", "--grpc-port", "-1"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # Ctrl-C ends the evaluation, which then ends the server
        ) as process,
    ):
        try:
            line = process.stdout.readline() if process.stdout else ""
            if "http" not in line:
                process.wait(_STOP_S)
                log.seek(0)
                said = log.read()[-_SAID_BYTES:].decode(errors="replace").strip()
                raise ServerError(f"expected a server of {model}, got: {said}")
            yield line.split()[-1]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
