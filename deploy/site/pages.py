"""Hooks of the site's build: the README as its first page, and what documents link to outside of their folder.

Documents are written for readers of the repository, so some link to files beside their folder. Pages in Markdown
become pages of the site below `repository`, other files are copied there, and links to folders become plain text.
Notebooks become pages, too: their texts, and their code without its output.

The theme would fetch the one script with which a search works in a site opened as files; it comes from here instead.
"""

import hashlib
import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import BuildError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "sample_models/README.md",
)
"""Pages outside of the folder of documents that the site has, too."""

SHIM = ROOT / ".site" / "package" / "shim" / "index.js"
SHIM_SHA256 = "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609"
"""The script, MIT licence, as `make docs` takes it from its package, and its hash."""

_NOTEBOOK = ".ipynb"
_SHIM_PLACE = "assets/iframe-worker.js"
_SHIM_TAG = re.compile(r'<script src="https://unpkg\.com/iframe-worker/shim"></script>')
_HOME_LINK = re.compile(r'(<a href="\.(?:\.(?:/\.\.)*)?)"')
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and the files outside of the folder of documents that pages link to."""
    for file in [file for file in files if file.src_uri.endswith(_NOTEBOOK)]:
        files.append(
            File.generated(
                config,
                _place(f"docs/{file.src_uri}"),
                content=_notebook_page(ROOT / "docs" / file.src_uri),
            )
        )
    waiting = [file for file in files if file.is_documentation_page()]
    waiting += [_add(name, files, config) for name in PAGES]
    known = {file.src_uri for file in files}
    while waiting:
        for target in _targets(waiting.pop()):
            if _place(target) not in known and (ROOT / target).is_file():
                known.add(_place(target))
                added = _add(target, files, config)
                if added.is_documentation_page():
                    waiting.append(added)
    if SHIM.is_file():
        if hashlib.sha256(SHIM.read_bytes()).hexdigest() != SHIM_SHA256:
            raise BuildError(f"expected {SHIM} to have the hash {SHIM_SHA256}, got another")
        files.append(File.generated(config, _SHIM_PLACE, abs_src_path=str(SHIM)))
    return files


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Take the script of the search from the site itself; without it, a search needs a server.

    The theme's links to the first page name its folder, which is a list of files where there is no server.
    """
    place = relpath(_SHIM_PLACE, str(PurePosixPath(page.file.dest_uri).parent))
    own = f'<script src="{place}"></script>' if SHIM.is_file() else ""
    return _HOME_LINK.sub(r'\1/index.html"', _SHIM_TAG.sub(own, output))


def on_post_template(output_content: str, **_: Any) -> str:
    """Do so in the page for addresses that are not there."""
    return _SHIM_TAG.sub("", output_content)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where the site has what they mean."""
    source = _in_repository(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        text, address = match.groups()
        path, hash_sign, anchor = address.partition("#")
        if "://" in address or not path:
            return match[0]
        target = normpath(str(PurePosixPath(source).parent / path))
        if (ROOT / target).is_dir():
            return text[1:-1]
        place = relpath(_place(target), str(PurePosixPath(page.file.src_uri).parent))
        return f"{text}({place}{hash_sign}{anchor})"

    return _outside_fences(markdown, lambda part: _LINK.sub(lead, part))


def _notebook_page(path: Path) -> str:
    """Return a notebook as Markdown, with a link to the file itself below its title."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(f"```python\n{text}\n```" if cell["cell_type"] == "code" else text)
    link = f'<a href="{path.name}" download>This page is a notebook: download it.</a>'
    title, _, rest = parts[0].partition("\n")
    return "\n\n".join([title, link, rest, *parts[1:]]) + "\n"


def _outside_fences(markdown: str, change: Any) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(markdown[end:])])


def _targets(page: File) -> list[str]:
    """Return what a page links to, as paths of the repository."""
    source = _in_repository(page.src_uri)
    found: list[str] = []

    def note(part: str) -> str:
        found.extend(
            normpath(str(PurePosixPath(source).parent / address.partition("#")[0]))
            for _, address in _LINK.findall(part)
            if "://" not in address
        )
        return part

    _outside_fences(page.content_string, note)
    return found


def _add(name: str, files: Files, config: MkDocsConfig) -> File:
    file = File.generated(config, _place(name), abs_src_path=str(ROOT / name))
    files.append(file)
    return file


def _place(target: str) -> str:
    """Return where the site has a file of the repository."""
    if target == "README.md":
        return "index.md"
    if not target.startswith("docs/"):
        return f"repository/{target}"
    place = target.removeprefix("docs/")
    return place.removesuffix(_NOTEBOOK) + ".md" if place.endswith(_NOTEBOOK) else place


def _in_repository(place: str) -> str:
    """Return the file of the repository that a page of the site comes from."""
    if place == "index.md":
        return "README.md"
    return place.removeprefix("repository/") if place.startswith("repository/") else f"docs/{place}"
