"""What texts must not show: secrets (of a URL its user, password and parameters), and folders of this machine.

Libraries put URLs and paths into their errors, in forms that nobody foresees; so whole texts are searched.
"""

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

HIDDEN = "…"
MIN_CHARACTERS = 4
"""Minimum length of a secret that is searched for: a shorter one would be found in ordinary words."""

_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(?::\d{1,5})?")
_CREDENTIALS = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"<>]*@")
_SECRET_PARAMETER = re.compile(
    r"\b((?:ssl)?password|passwd|token|secret|sig|signature|access_key|api_key)=[^&\s'\"]+",
    re.IGNORECASE,
)
_FILE_PATH = re.compile(
    r"(?<![\w.:/~-])/(?:[^\s/'\"<>]+/)+"
    r"(?=[^\s/'\"<>]+\.(?:py|so|c|cc|cpp|cu|h|hpp|onnx|data|bin|json|jsonl|toml|txt|npz|db|lock|zip|gz|tgz|tar)\b)"
)
"""Folders of an absolute path to a file. Names of nodes in a graph, such as `/model/0/Conv`, are none."""


def without_secrets(url: str) -> str:
    """Return a URL without user, password and parameters; only its scheme where these cannot be told apart."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return HIDDEN
    location, mark, parameters = re.match(r"([^?#]*)([?#]?)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]  # it matches any text
    location = location.rpartition("@")[2]
    host = location.partition("/")[0]
    if (mark and "@" in parameters) or not _HOST.fullmatch(host):
        return f"{scheme}://{HIDDEN}"
    return f"{scheme}://{location}"


def secret_parts(value: str) -> set[str]:
    """Return what of a secret must not be shown: all of it, and the password and parameters if it is a URL."""
    parts = {value}
    _, separator, rest = value.partition("://")
    if separator:
        credentials, at, _ = rest.rpartition("@")
        password = credentials.partition(":")[2] if at else ""
        parts |= {password, unquote(password)}
        try:
            parameters = parse_qsl(urlsplit(value).query)
        except ValueError:
            parameters = []
        parts |= {text for name, text in parameters if _SECRET_PARAMETER.match(f"{name}=x")}
    return {part for part in parts if len(part) >= MIN_CHARACTERS}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the credentials of URLs in it, and without known secrets.

    Args:
        text: Any text, such as a line of a log or the message of an exception.
        secrets: Values to leave out with all their parts, see `secret_parts`.
    """
    values = set(secrets)
    parts = {part for value in values for part in secret_parts(value)}
    for part in sorted(parts, key=len, reverse=True):
        text = text.replace(part, without_secrets(part) if part in values else HIDDEN)
    text = _CREDENTIALS.sub(r"\1", text)
    return _SECRET_PARAMETER.sub(rf"\1={HIDDEN}", text)


def without_folders(text: str, *folders: Path) -> str:
    """Return a text in which files below some folders have relative paths, and other files their names alone.

    Args:
        text: Any text for a client, such as the message of a library.
        folders: Folders, or files that stand for themselves, such as the one of all models.
    """
    roots = {str(root) for folder in folders for root in (folder, folder.absolute())}
    roots |= {str(folder.resolve()) for folder in folders} | {sys.prefix, str(Path.cwd())}
    for root in sorted(filter(_is_absolute, roots), key=len, reverse=True):
        text = re.sub(rf"(?<![\w.]){re.escape(root)}/", "", text)
        text = re.sub(rf"(?<![\w./]){re.escape(root)}(?![\w.-])", root.rpartition("/")[2], text)
    return _FILE_PATH.sub("", text)


def _is_absolute(root: str) -> bool:
    """Tell whether a folder's path can be searched for: that of the root of all would be found everywhere."""
    return root.startswith("/") and len(root) > 1
