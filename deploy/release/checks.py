"""What all checks of a release share: the files, running tools, and the error of a check that fails."""

import subprocess
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

CLIENT = "client"
"""Folder of the client, which is a distribution of its own."""


class CheckError(Exception):
    """A check failed; the text says what is wrong."""


class Release:
    """The checkout and what is made of it.

    Args:
        root: The checkout.
        dist: Folder of the archives, made by `deploy.release.archives`.
        scratch: Folder for copies and environments, removed at the end.
    """

    def __init__(self, root: Path, dist: Path, scratch: Path) -> None:
        self.root = root
        self.dist = dist
        self.scratch = scratch

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        """Content of pyproject.toml."""
        return tomllib.loads((self.root / "pyproject.toml").read_text())

    @property
    def version(self) -> str:
        """The version that pyproject.toml states."""
        return str(self.pyproject["project"]["version"])

    @property
    def wheel(self) -> Path:
        """The wheel in `dist`."""
        return self.dist / f"quadriga-{self.version}-py3-none-any.whl"

    @property
    def sdist(self) -> Path:
        """The source archive in `dist`."""
        return self.dist / f"quadriga-{self.version}.tar.gz"

    @cached_property
    def client_version(self) -> str:
        """The version that the client's own pyproject.toml states."""
        text = (self.root / CLIENT / "pyproject.toml").read_text()
        return str(tomllib.loads(text)["project"]["version"])

    @property
    def client_wheel(self) -> Path:
        """The wheel of the client in `dist`."""
        return self.dist / f"quadriga_client-{self.client_version}-py3-none-any.whl"

    @property
    def client_sdist(self) -> Path:
        """The source archive of the client in `dist`."""
        return self.dist / f"quadriga_client-{self.client_version}.tar.gz"

    @cached_property
    def tracked(self) -> list[str]:
        """Paths of all files that git tracks, from the top of the checkout."""
        return run("git", "ls-files", "-z", cwd=self.root).rstrip("\0").split("\0")

    @property
    def fresh_python(self) -> Path:
        """Python of the environment that `deploy.release.installed` makes from the wheel."""
        return self.scratch / "installed" / "bin" / "python"


def run(
    *command: object, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run a command; return what it prints.

    Raises:
        CheckError: It failed; the text is what it printed.
    """
    finished = subprocess.run(  # noqa: S603 - our own commands
        [*map(str, command)],
        cwd=cwd, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if finished.returncode != 0:
        name = Path(str(command[0])).name
        printed = (finished.stdout + finished.stderr).strip()
        raise CheckError(f"{name} ended with {finished.returncode}:\n{printed}")
    return finished.stdout


def tool(name: str) -> Path:
    """Return the path of a tool of the environment that runs this."""
    return Path(sys.executable).with_name(name)
