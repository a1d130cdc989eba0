"""Print the licence of every package of a lock file, as the installed packages state it.

python deploy/licences.py [LOCK]; default: requirements-extras.lock, what the image has. Ends with 1 if one is unknown.
"""

import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

DEFAULT_LOCK = Path(__file__).parents[1] / "requirements-extras.lock"
NOT_STATED = "not stated"
_LONGEST_NAME = 80
"""Maximum characters of a field `License` that is a name: packages also put whole texts there."""


_READ_BY_US = {"rich-click": "MIT"}
"""Licences of packages whose metadata name none, as their file LICENSE has them."""


def locked_names(lock: str) -> dict[str, bool]:
    """Return the packages of a lock file, each with whether it is for some platforms or Pythons only."""
    entries = re.findall(r"^([\w.-]+)(?:\[[^\]]*\])?==[^\s;\\]+\s*(;)?", lock, re.MULTILINE)
    return {name: bool(marker) for name, marker in entries}


def licence(package: Distribution) -> str:
    """Return the licence that an installed package states: as SPDX's expression, by classifiers, or as a name."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    if classifiers:
        return ", ".join(classifiers)
    stated = (metadata.get("License") or "").strip()
    if stated and len(stated) <= _LONGEST_NAME and stated.upper() != "UNKNOWN":
        return stated
    return NOT_STATED


def licences(lock: str) -> dict[str, tuple[str, str]]:
    """Return version and licence of each package of a lock file; those of other platforms are left out.

    Raises:
        PackageNotFoundError: A package is not installed.
    """
    stated = {}
    for name, is_conditional in locked_names(lock).items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            if is_conditional:
                continue
            raise
        stated[name] = (package.version, _READ_BY_US.get(name) or licence(package))
    return stated


def main() -> int:
    """Print name, version and licence in columns."""
    lock = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_LOCK
    rows = licences(lock.read_text())
    for name, (version, name_of_licence) in rows.items():
        print(f"{name:32} {version:16} {name_of_licence}")
    return int(any(name_of_licence == NOT_STATED for _, name_of_licence in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
