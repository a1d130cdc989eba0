"""The console's styles and scripts: read once, and named by their content, so that browsers keep them for good."""

import hashlib
from importlib.resources import files
from typing import Any

import msgspec
from litestar import Request, Response

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the files by their endings; no other file is served."""

STATIC_PATH = "/console/static"
_FOREVER = "public, max-age=31536000, immutable"


class StaticFile(msgspec.Struct, frozen=True):
    """A file that a page loads."""

    content: bytes
    media_type: str
    tag: str
    """ETag of the content."""


class StaticFiles:
    """The files of the folder `static`.

    They have one digest for all of them, which is a folder in their URLs: a script finds its neighbours by their names, and
    a release that changes one of them has new URLs for all.
    """

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        digest = hashlib.sha256()
        for path in sorted(files("quadriga.engine.console").joinpath("static").iterdir(), key=str):
            media_type = MEDIA_TYPES.get("." + path.name.rpartition(".")[2])
            if media_type is None:
                continue
            content = path.read_bytes()
            digest.update(path.name.encode() + b"\0" + content)
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            self._files[path.name] = StaticFile(content, media_type, tag)
        self.digest = digest.hexdigest()[:12]

    @property
    def names(self) -> list[str]:
        """Names of the files."""
        return list(self._files)

    def path(self, name: str) -> str:
        """Return the path of a file on this server; a KeyError if there is none of that name."""
        if name not in self._files:
            raise KeyError(name)
        return f"{STATIC_PATH}/{self.digest}/{name}"

    def answer(
        self, request: Request[Any, Any, Any], digest: str, name: str
    ) -> Response[bytes] | None:
        """Return a file, or 304 if the browser has it; None if there is none of that name.

        One of another release is asked for while servers are replaced: the answer is what is here, and is not kept.
        """
        file = self._files.get(name)
        if file is None:
            return None
        headers = {
            "ETag": file.tag,
            "Cache-Control": _FOREVER if digest == self.digest else "no-cache",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("if-none-match") == file.tag:
            return Response(b"", status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)
