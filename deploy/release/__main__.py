"""All checks of a release, whose archives are left in dist: python -m deploy.release. Ends with 1 if one fails."""

import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from deploy.release import archives, installed, page, sources
from deploy.release.checks import CheckError, Release

CHECKS: dict[str, Callable[[Release], str]] = {
    "version": sources.check_version,
    "changelog": sources.check_changelog,
    "lock files": sources.check_locks,
    "Dockerfiles": sources.check_dockerfiles,
    "build": archives.build_twice,
    "contents": archives.check_contents,
    "wheel": archives.check_wheel,
    "metadata": page.check_metadata,
    "README": page.check_page,
    "installation": installed.install,
    "licences": installed.check_licences,
    "SBOM": installed.write_sbom,
}
"""Checks in their order: later ones use what earlier ones made."""


def main() -> int:
    """Run the checks, and print a line for each."""
    root = Path(__file__).parents[2]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="quadriga-release-") as scratch:
        release = Release(root, root / "dist", Path(scratch))
        for name, check in CHECKS.items():
            try:
                print(f"ok      {name}: {check(release)}", flush=True)
            except (CheckError, OSError) as error:
                failed += 1
                print(f"FAILED  {name}: {error}", flush=True)
        made = (release.wheel, release.sdist, release.client_wheel, release.client_sdist)
        for path in (*made, release.dist / installed.SBOM):
            if path.exists():
                print(f"{sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}")
    print("not checked: known vulnerabilities, which a service has to be asked for")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
