"""The wheel and the source archive: made twice, the same to the bit, with what belongs in them and nothing else."""

import os
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

from deploy.release.checks import CheckError, Release, run, tool

PACKAGE = "src/quadriga"
PACKAGES = ("engine", "monitor", "proto", "store", "tasks")
"""Folders at the top that are linked into the package."""

BESIDE = ("README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml")
"""Other tracked files of the source archive."""

MADE = ("PKG-INFO", ".gitignore")
"""Files that the build adds to the source archive; the second for builds of it."""

DIST_INFO = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD")
_MAX_LISTED = 8


def build_twice(release: Release) -> str:
    """Build both archives in two copies of what git tracks, and a wheel of the source archive; compare them."""
    release.dist.mkdir(parents=True, exist_ok=True)
    for path in (release.wheel, release.sdist):
        path.unlink(missing_ok=True)
    again = release.scratch / "again"
    first, second = (release.scratch / name for name in ("copy", "a-copy-at-a-longer-path"))
    _copy(release, first)
    _build(first, release.dist)
    _copy(release, second)
    _build(second, again)
    unpacked = release.scratch / "unpacked"
    with tarfile.open(release.sdist) as archive:
        archive.extractall(unpacked, filter="data")
    of_sdist = release.scratch / "of-sdist"
    _build(unpacked / release.sdist.name.removesuffix(".tar.gz"), of_sdist, "--wheel")
    for made, path in (
        (again / release.wheel.name, release.wheel),
        (again / release.sdist.name, release.sdist),
        (of_sdist / release.wheel.name, release.wheel),
    ):
        if made.read_bytes() != path.read_bytes():
            raise CheckError(f"{path.name} is another one when it is built in {made.parent.name}")
    sizes = ", ".join(
        f"{path.name} {path.stat().st_size:,} bytes" for path in (release.wheel, release.sdist)
    )
    return f"{sizes}; the same to the bit, the wheel of the source archive too"


def check_contents(release: Release) -> str:
    """Compare the names in both archives with the files that git tracks."""
    modules = {
        path
        for path in release.tracked
        if path.partition("/")[0] in PACKAGES or path.startswith(f"{PACKAGE}/")
    } - {f"{PACKAGE}/{name}" for name in PACKAGES}
    inner = {path.removeprefix(f"{PACKAGE}/") for path in modules}
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
    return f"{len(wheel)} files in the wheel, {len(sdist)} in the source archive"


def check_wheel(release: Release) -> str:
    """Run check-wheel-contents."""
    # Alembic loads revisions by file: their names begin with a year, and are no names of modules.
    run(tool("check-wheel-contents"), "--ignore", "W004", release.wheel)
    with zipfile.ZipFile(release.wheel) as archive:
        names = archive.namelist()
    folder = "quadriga/store/migrations/versions/"
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
