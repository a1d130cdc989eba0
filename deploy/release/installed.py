"""An environment made from the wheel and the lock file of the image: it runs, its licences are allowed, its parts are listed."""

import json
import os
import shutil
import sys
from pathlib import Path

from deploy.licences import locked_names
from deploy.release.checks import CheckError, Release, run, tool

LOCK = "requirements-extras.lock"
SBOM = "sbom.cdx.json"
MODEL = "sample_models/shapes-detector"
ALLOWED = (
    "0BSD", "3-Clause BSD License", "Apache Software License", "Apache-2.0", "BSD License", "BSD-2-Clause", "BSD-3-Clause",
    "CC0-1.0", "MIT", "MIT License", "MIT-0", "MIT-CMU", "PSF-2.0", "Python Software Foundation License", "Zlib",
)  # fmt: skip
"""Licences that ask for no more than to be named, by SPDX and as classifiers write them."""

ALLOWED_OF = {
    "certifi": "Mozilla Public License 2.0 (MPL 2.0)",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "tqdm": "MPL-2.0 AND MIT",
}
"""Licences that are allowed of one package, which is used as it is: those of files, and of a library."""


_CLIENT = "import quadriga; print(quadriga.Client(key=''))"
_CLIENT_ALONE = "import quadriga_client; print(quadriga_client.Client(key=''))"
_PRINTED = "Client('http://127.0.0.1:8080')"


def install(release: Release) -> str:
    """Make the environment; run the command in it, on a model outside of the checkout, and the client alone and beside it."""
    folder = release.fresh_python.parents[1]
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        release.fresh_python,
    )
    install = (*pip, "install", "--quiet", "--no-deps")
    hashed = ("--only-binary=:all:", "--require-hashes", "--requirement", release.root / LOCK)
    run(*install, *hashed)
    run(*install, release.wheel)
    elsewhere = release.scratch / "elsewhere"
    shutil.copytree(release.root / MODEL, elsewhere / "model")
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = release.fresh_python.with_name("quadriga")
    printed = run(command, "--version", cwd=elsewhere, environment=variables).strip()
    if not printed.endswith(release.version):
        raise CheckError(f"expected quadriga --version to print {release.version}, got {printed}")

    def check_client(code: str) -> None:
        loaded = run(release.fresh_python, "-c", code, cwd=elsewhere, environment=variables)
        if loaded.strip() != _PRINTED:
            raise CheckError(f"expected {code} to print {_PRINTED}, got:\n{loaded}")

    check_client(_CLIENT)
    run(*install, release.client_wheel)
    check_client(_CLIENT)
    run(*pip, "uninstall", "--yes", "quadriga")
    check_client(_CLIENT_ALONE)
    run(*install, release.wheel)
    run(*pip, "uninstall", "--yes", "quadriga-client")
    check_client(_CLIENT)
    inspected = run(command, "inspect", "model", cwd=elsewhere, environment=variables)
    if "OBJECT_DETECTION" not in inspected:
        raise CheckError(f"expected quadriga inspect to recognise a detector, got:\n{inspected}")
    return f"{printed}; quadriga inspect recognises {Path(MODEL).name}"


def check_licences(release: Release) -> str:
    """See that the licence of every installed package is allowed."""
    listed = run(release.fresh_python, "deploy/licences.py", LOCK, cwd=release.root)
    stated = {}
    for line in listed.splitlines():
        name, _, licence = line.split(maxsplit=2)
        stated[name] = licence
    refused = refused_licences(stated)
    if refused:
        raise CheckError(f"not in the list of allowed licences: {', '.join(refused)}")
    return f"{len(stated)} packages, {len(set(stated.values()))} licences, all allowed"


def refused_licences(stated: dict[str, str]) -> list[str]:
    """Return the packages whose licence is not allowed, each with it."""
    return [
        f"{name} ({licence})"
        for name, licence in stated.items()
        if ALLOWED_OF.get(name) != licence and not _is_allowed(licence)
    ]


def _is_allowed(licence: str) -> bool:
    """Check an expression of SPDX, or classifiers with commas between them; of alternatives one suffices."""
    every = licence.replace(" AND ", ", ").split(", ")
    return all(any(part.strip("()") in ALLOWED for part in term.split(" OR ")) for term in every)


def write_sbom(release: Release) -> str:
    """Write the bill of materials of the environment, and compare it with the lock file."""
    target = release.dist / SBOM
    target.unlink(missing_ok=True)
    run(
        tool("cyclonedx-py"), "environment", "--output-reproducible", "--validate",
        "--pyproject", release.root / "pyproject.toml", "--output-format", "JSON",
        "--output-file", target, release.fresh_python,
    )  # fmt: skip
    document = json.loads(target.read_text())
    listed = {
        entry["name"].lower().replace("_", "-").replace(".", "-")
        for entry in document["components"]
    }
    locked = locked_names((release.root / LOCK).read_text())
    needed = {name for name, is_conditional in locked.items() if not is_conditional}
    missing, unknown = needed - listed, listed - locked.keys() - {"quadriga"}
    if missing or unknown:
        raise CheckError(
            f"{SBOM}: missing {sorted(missing)}, not in the lock file {sorted(unknown)}"
        )
    return f"{SBOM} lists {len(listed)} packages"
