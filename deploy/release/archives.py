"""The wheel and the source archive: made twice, the same to the bit, with what belongs in them and nothing else."""

import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from deploy.release.checks import CLIENT, CheckError, Release, run, tool

PACKAGE = "src/quadriga"
LINKED = {
    **{
        f"{name}/": f"{name}/"
        for name in ("engine", "extras", "monitor", "proto", "store", "tasks")
    },
    f"{CLIENT}/quadriga_client/": f"{CLIENT}/",
    f"{PACKAGE}/": "",
}
"""Folders of the checkout, and where in the package they stand: by links but for the last."""

BESIDE = ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml")
"""Other tracked files of the source archive."""

MADE = ("PKG-INFO", ".gitignore")
"""Files that the build adds to the source archive; the second for builds of it."""

DIST_INFO = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD")
_MAX_LISTED = 8


def build_twice(release: Release) -> str:
    """Build the archives in two copies of what git tracks, and wheels of the source archives; compare them."""
    release.dist.mkdir(parents=True, exist_ok=True)
    copies = tuple(release.scratch / name for name in ("copy", "a-copy-at-a-longer-path"))
    for copy in copies:
        _copy(release, copy)
    sizes = _build_project(release, copies, release.wheel, release.sdist)
    clients = (copies[0] / CLIENT, copies[1] / CLIENT)
    sizes += _build_project(release, clients, release.client_wheel, release.client_sdist)
    return f"{', '.join(sizes)}; the same to the bit, the wheels of the source archives too"


def _build_project(
    release: Release, copies: tuple[Path, Path], wheel: Path, sdist: Path
) -> list[str]:
    """Build the archives of a project in two copies of it; return their sizes.

    Raises:
        CheckError: They differ.
    """
    again, of_sdist = (release.scratch / f"{name} {wheel.stem}" for name in ("again", "of sdist"))
    for path in (wheel, sdist):
        path.unlink(missing_ok=True)
    _build(copies[0], release.dist)
    _build(copies[1], again)
    unpacked = release.scratch / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    _build(unpacked / sdist.name.removesuffix(".tar.gz"), of_sdist, "--wheel")
    pairs = (
        (again / wheel.name, wheel),
        (again / sdist.name, sdist),
        (of_sdist / wheel.name, wheel),
    )
    for made, path in pairs:
        if made.read_bytes() != path.read_bytes():
            raise CheckError(f"{path.name} is another one when it is built in {made.parent.name}")
    return [f"{path.name} {path.stat().st_size:,} bytes" for path in (wheel, sdist)]


def check_contents(release: Release) -> str:
    """Compare the names in both archives with the files that git tracks."""
    inner = {
        place + path.removeprefix(folder)
        for path in release.tracked
        for folder, place in LINKED.items()
        if path.startswith(folder) and not (release.root / path).is_symlink()
    }
    stem = f"quadriga-{release.version}"
    with zipfile.ZipFile(release.wheel) as archive:
        wheel = {name for name in archive.namelist() if not name.endswith("/")}
    _compare(
        release.wheel.name,
        wheel,
        {f"quadriga/{path}" for path in inner} | {f"{stem}.dist-info/{name}" for name in DIST_INFO},
    )
    with tarfile.open(release.sdist) as archive:
        sdist = {member.name for member in archive.getmembers() if not member.isdir()}
    paths = {f"{PACKAGE}/{path}" for path in inner} | {*BESIDE, *MADE}
    _compare(release.sdist.name, sdist, {f"{stem}/{path}" for path in paths})
    client_count = _check_client_contents(release)
    return f"{len(wheel)} files in the wheel, {len(sdist)} in the source archive, {client_count} in the client's wheel"


def _check_client_contents(release: Release) -> int:
    """Compare the names in the client's archives with the files that git tracks; return the number in the wheel."""
    stem = f"quadriga_client-{release.client_version}"
    tracked = {
        path.removeprefix(f"{CLIENT}/") for path in release.tracked if path.startswith(f"{CLIENT}/")
    }
    package = {path for path in tracked if path.startswith("quadriga_client/")}
    with zipfile.ZipFile(release.client_wheel) as archive:
        wheel = {name for name in archive.namelist() if not name.endswith("/")}
    described = {f"{stem}.dist-info/{name}" for name in DIST_INFO if name != "entry_points.txt"}
    _compare(release.client_wheel.name, wheel, package | described)
    with tarfile.open(release.client_sdist) as archive:
        sdist = {member.name for member in archive.getmembers() if not member.isdir()}
    _compare(release.client_sdist.name, sdist, {f"{stem}/{path}" for path in tracked | set(MADE)})
    return len(wheel)


def check_wheel(release: Release) -> str:
    """Run check-wheel-contents."""
    # Alembic loads revisions by file: their names begin with a year, and are no names of modules.
    run(tool("check-wheel-contents"), "--ignore", "W004", release.wheel)
    run(tool("check-wheel-contents"), release.client_wheel)
    with zipfile.ZipFile(release.wheel) as archive:
        names = archive.namelist()
    folder = "quadriga/store/database/migrations/versions/"
    wrong = [
        name
        for name in names
        if name.endswith(".py")
        and not name.startswith(folder)
        and not all(part.isidentifier() for part in name.removesuffix(".py").split("/"))
    ]
    if wrong:
        raise CheckError(f"not importable: {', '.join(wrong)}")
    return "check-wheel-contents finds nothing"


def _copy(release: Release, target: Path) -> None:
    """Copy what git tracks, as it is in the working tree, links as links."""
    for path in release.tracked:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(release.root / path, target / path, follow_symlinks=False)


def _build(source: Path, target: Path, *options: str) -> None:
    arguments = ("-m", "build", "--no-isolation", "--outdir", target, *options, source)
    run(sys.executable, *arguments, environment={**os.environ, "SOURCE_DATE_EPOCH": _epoch()})


def _epoch() -> str:
    """Return the time of the last commit, which all files in the archives get."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()


def _compare(archive: str, present: set[str], expected: set[str]) -> None:
    differences = [f"missing {name}" for name in sorted(expected - present)]
    differences += [f"unexpected {name}" for name in sorted(present - expected)]
    if differences:
        listed = "; ".join(differences[:_MAX_LISTED])
        raise CheckError(f"{archive}: {len(differences)} differences: {listed}")
