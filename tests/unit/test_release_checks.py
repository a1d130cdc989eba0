"""The checks of a release find what they look for; `make release-check` runs them on the archives."""

import re
from pathlib import Path

import pytest

from deploy.licences import DEFAULT_LOCK, licences
from deploy.release.checks import CheckError, Release
from deploy.release.installed import ALLOWED_OF, refused_licences
from deploy.release.links import check_links
from deploy.release.sources import (
    changelog_entries,
    check_changelog,
    check_lock,
    check_locks,
    check_version,
)
from tests.pages import ROOT

HASH = "    --hash=sha256:" + "0" * 64
GOOD_LOCK = f"alembic==1.2 ; python_version < '4' \\\n{HASH}\n    # via quadriga\nmoto[server]==5.1 \\\n{HASH}\n"  # fmt: skip


def release(root: Path = ROOT) -> Release:
    return Release(root, root / "dist", root / "scratch")


@pytest.mark.parametrize("check", [check_version, check_changelog, check_locks])
def test_the_checkout_passes(check):
    assert check(release())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"--index-url https://example.org/simple\n{GOOD_LOCK}", ":1 has an address"),
        (f"{GOOD_LOCK}--find-links wheels\n", ":6 has an address"),
        (GOOD_LOCK.replace("alembic==1.2", "alembic @ file:/tmp/alembic.whl"), ":1 has an address"),
        (GOOD_LOCK.replace("alembic==1.2", "alembic @ git+ssh://example.org/a"), ":1 has"),
        (f"{GOOD_LOCK}numpy==2.4\n", "no hash of numpy==2.4"),
        (f"numpy==2.4\n{GOOD_LOCK}", "no hash of numpy==2.4"),
    ],
)
def test_a_lock_file_with_an_address_or_without_a_hash_is_refused(text: str, message: str):
    check_lock("requirements.lock", GOOD_LOCK)
    with pytest.raises(CheckError, match=re.escape(message)):
        check_lock("requirements.lock", text)


UNRELEASED = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A door.\n- A window.\n\n## [0.1.0] - 2026-01-31\n\n- All.\n"
RELEASED = UNRELEASED.replace("[Unreleased]\n", "[Unreleased]\n\n## [0.2.0] - 2026-12-01\n")


@pytest.mark.parametrize(
    ("text", "entries"),
    [(UNRELEASED, "2 entries in [Unreleased]"), (RELEASED, "2 entries in [0.2.0]")],
)
def test_a_changelog_has_entries_of_what_comes(text: str, entries: str):
    assert changelog_entries(text, "0.2.0") == entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# Changelog\n\n## [Unreleased]\n\n### Added\n",
        RELEASED.replace(" - 2026-12-01", ""),
        RELEASED.replace("0.2.0", "0.3.0"),
    ],
)
def test_a_changelog_without_entries_or_date_is_refused(text: str):
    with pytest.raises(CheckError, match="expected"):
        changelog_entries(text, "0.2.0")


@pytest.mark.parametrize(
    ("path", "text", "message"),
    [
        ("engine/about.py", '__version__ = "0.2.0"\n', "stated in engine/about.py, pyproject.toml"),
        ("deploy/run.yaml", "image: quadriga:0.1.0\n", "deploy/run.yaml: quadriga:0.1.0"),
    ],
)
def test_a_version_that_is_stated_twice_is_refused(tmp_path, path: str, text: str, message: str):
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_text("# of version 0.2.0 on\n")
    checked = release(tmp_path)
    checked.tracked = [path, "pyproject.toml"]
    assert check_version(checked)
    (tmp_path / path).write_text(text)
    with pytest.raises(CheckError, match=re.escape(message)):
        check_version(checked)


@pytest.mark.parametrize(
    ("stated", "refused"),
    [
        ({}, []),
        ({"a": "MIT", "b": "BSD License, Apache Software License"}, []),
        ({"a": "GPL-3.0-only OR MIT", "b": "(GPL-3.0-only OR MIT) AND Zlib"}, []),
        ({"a": "MIT AND GPL-3.0-only"}, ["a (MIT AND GPL-3.0-only)"]),
        ({"psycopg": "LGPL-3.0-only", "other": "LGPL-3.0-only"}, ["other (LGPL-3.0-only)"]),
        ({"psycopg": "GPL-3.0-only"}, ["psycopg (GPL-3.0-only)"]),
        ({"a": "not stated"}, ["a (not stated)"]),
    ],
)
def test_licences_outside_of_the_list_are_refused(stated: dict[str, str], refused: list[str]):
    assert refused_licences(stated) == refused


def test_every_exception_of_the_list_is_needed():
    stated = {name: text for name, (_, text) in licences(DEFAULT_LOCK.read_text()).items()}
    assert refused_licences(stated) == []
    assert stated.items() >= ALLOWED_OF.items()


@pytest.mark.parametrize(
    "page",
    [
        '<a href="docs/store.md">store</a>',
        '<img src="docs/demo.jpg">',
        '<a href="#below">below</a><h2 id="above">Above</h2>',
        '<a href="/docs">docs</a>',
    ],
)
def test_links_that_a_page_alone_cannot_resolve_are_refused(page: str):
    good = '<a href="https://example.org/">web</a><a href="#top">top</a><h1 id="top">Top</h1>'
    assert check_links(good) == 2
    with pytest.raises(CheckError, match="cannot resolve"):
        check_links(good + page)


def test_every_check_has_its_words_in_the_guide():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = text.partition("## Releasing")[2].partition("\n## ")[0]
    tools = (ROOT / "deploy" / "release" / "requirements.txt").read_text()
    named = {
        name
        for name in ("check-wheel-contents", "hadolint", "twine", "validate-pyproject")
        if name in tools
    }
    assert len(named) == 4
    assert all(name in section for name in named)
