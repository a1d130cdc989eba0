"""What the checkout says of itself: the version, once; the changelog; lock files; Dockerfiles."""

import re
from pathlib import Path

from deploy.release.checks import CLIENT, CheckError, Release, run, tool

_STATED = r"""(?im)^[^#\n]*version\w*["']?\]?\s*[:=]\s*["']?v?{}\b"""
_ADDRESS = re.compile(
    r"\w+://|^\s*(?:--(?:extra-)?index-url|-i|--find-links|-f|--trusted-host)\b|@ *file:",
    re.MULTILINE,
)
_SECTION = re.compile(r"^## \[([^\]]+)\](.*)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \S", re.MULTILINE)
_DATED = re.compile(r" - \d{4}-\d\d-\d\d")


def check_version(release: Release) -> str:
    """See that no other tracked file states the version; images of it are named by it."""
    pattern = re.compile(_STATED.format(re.escape(release.version)))
    places = []
    images: set[str] = set()
    for path in release.tracked:
        # the client has a version of its own
        if path.startswith(("tests/", "docs/", "bench/", f"{CLIENT}/")) or path.endswith(
            (".lock", ".md")
        ):
            continue
        content = (release.root / path).read_bytes() if (release.root / path).is_file() else b""
        text = content.decode(errors="ignore")
        if pattern.search(text):
            places.append(path)
        images |= {f"{path}: {image}" for image in re.findall(r"\bimage: (quadriga:\S+)", text)}
    if places != ["pyproject.toml"]:
        raise CheckError(f"the version is stated in {', '.join(places) or 'no file'}")
    wrong = [image for image in sorted(images) if not image.endswith(f":{release.version}")]
    if wrong:
        raise CheckError(f"images of another version: {', '.join(wrong)}")
    return f"{release.version}, stated in pyproject.toml alone, and the tag of {len(images)} images"


def check_changelog(release: Release) -> str:
    """See that the changelog has entries for the version that comes."""
    return changelog_entries((release.root / "CHANGELOG.md").read_text(), release.version)


def changelog_entries(text: str, version: str) -> str:
    """Return which section has the entries of a release: that of the version, or what is unreleased."""
    parts = _SECTION.split(text)[1:]
    sections = {
        name: (rest, body)
        for name, rest, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }
    for name in ("Unreleased", version):
        rest, body = sections.get(name, ("", ""))
        count = len(_ENTRY.findall(body))
        if name == version and count and not _DATED.fullmatch(rest):
            raise CheckError(f"expected the section [{version}] to have a date, as 2026-01-31")
        if count:
            return f"{count} entries in [{name}]"
    raise CheckError(f"expected entries in [Unreleased] or [{version}], got none")


def check_locks(release: Release) -> str:
    """See that lock files name no address, and that every package has a hash."""
    paths = [path for path in release.tracked if path.endswith(".lock")]
    for path in paths:
        check_lock(path, (release.root / path).read_text())
    return f"{len(paths)} lock files without an address, all hashed"


def check_lock(path: str, text: str) -> None:
    """Check one lock file."""
    if (match := _ADDRESS.search(text)) is not None:
        line = text.count("\n", 0, match.start()) + 1
        raise CheckError(f"{path}:{line} has an address or names an index")
    for entry in re.split(r"\n(?=[\w.-]+(?:\[[^\]]*\])?==)", text.strip()):
        if "--hash=sha256:" not in entry:
            raise CheckError(f"{path}: no hash of {entry.splitlines()[0]}")


def check_dockerfiles(release: Release) -> str:
    """Run hadolint over each Dockerfile."""
    paths = [path for path in release.tracked if Path(path).name.endswith("Dockerfile")]
    run(tool("hadolint"), "--no-color", *paths, cwd=release.root)
    return f"hadolint finds nothing in {', '.join(paths)}"
