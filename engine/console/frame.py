"""The frame of all pages: templates, styles and scripts, navigation, and what browsers may do with a page."""

import hashlib
import shlex
from functools import cached_property
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from litestar import Request, Response
from litestar.datastructures import MultiDict

from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console import formats
from quadriga.engine.console.charts import bar_length
from quadriga.engine.console.filter_line import INFERENCES_PATH, comparison_text, filter_words
from quadriga.engine.console.texts import WORDS
from quadriga.monitor.report import drift_texts, metric_texts
from quadriga.monitor.report.page import make_environment
from quadriga.proto.access import ANYBODY, Caller, Need
from quadriga.proto.request import current_caller
from quadriga.quoting import quoted
from quadriga.store.records.errors import QueryError

PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, Chromium would send `Origin: null` for forms
    "Cache-Control": "no-store",
}

PageRequest = Request[Any, Any, Any]

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
    """The files of the folder `static`, and the style sheets of reports.

    They have one digest for all of them, which is a folder in their URLs: a script finds its neighbours by their names, and
    a release that changes one of them has new URLs for all.
    """

    def __init__(self) -> None:
        self._files: dict[str, StaticFile] = {}
        digest = hashlib.sha256()
        own, of_reports = files("quadriga.engine.console"), files("quadriga.monitor.report")
        paths = [*own.joinpath("static").iterdir(), *of_reports.iterdir()]
        for path in sorted(paths, key=lambda path: path.name):
            media_type = MEDIA_TYPES.get("." + path.name.rpartition(".")[2])
            if media_type is None:
                continue
            content = path.read_bytes()
            digest.update(path.name.encode() + b"\0" + content)
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            self._files[path.name] = StaticFile(content, media_type, tag)
        self.digest = digest.hexdigest()[:12]

    def path(self, name: str) -> str:
        """Return the path of a file on this server; a KeyError if there is none of that name."""
        if name not in self._files:
            raise KeyError(name)
        return f"{STATIC_PATH}/{self.digest}/{name}"

    def answer(self, request: PageRequest, digest: str, name: str) -> Response[bytes] | None:
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


class NavigationLink(msgspec.Struct, frozen=True):
    """A page in the navigation."""

    page: str
    """Name of the page."""
    title: str
    path: str
    key: str = ""
    """Key that goes there, after `g`."""
    need: Need = "read"
    is_daily: bool = False
    """Whether the page stands in the bar; the others stand in its menu."""
    is_stored: bool = True
    """Whether the page shows what is stored."""


LINKS = (
    NavigationLink("overview", "Overview", "/console/", "o", is_daily=True, is_stored=False),
    NavigationLink("inferences", "Inferences", INFERENCES_PATH, "i", is_daily=True),
    NavigationLink("models", "Models", "/console/models", "m", is_daily=True, is_stored=False),
    NavigationLink("reports", "Reports", "/console/reports", "r", is_daily=True),
    NavigationLink("label", "Label", "/console/label", "b", need="annotate", is_daily=True),
    NavigationLink("compare", "Compare", "/console/compare", "c", is_daily=True),
    NavigationLink("live", "Live", "/console/live", "l"),
    NavigationLink("views", "Views", "/console/views", "v"),
    NavigationLink("jobs", "Jobs", "/console/jobs", "j"),
    NavigationLink("keys", "API keys", "/console/keys", "k", need="admin"),
    NavigationLink("audit", "Audit log", "/console/audit", "a", need="admin", is_stored=False),
    NavigationLink("words", "Glossary", "/console/words", is_stored=False),
)
"""Pages in the navigation, in order; each caller sees those that open."""


class Frame:
    """Renders pages.

    Args:
        public_url: URL at which people reach the server; empty for that of the request.
        has_store: Whether anything is stored here.
    """

    def __init__(self, public_url: str, *, has_store: bool) -> None:
        self.public_url = public_url.rstrip("/")
        self.base = urlsplit(self.public_url).path
        """Path before those of this server, as a proxy has it."""
        self.has_store = has_store
        self.static = StaticFiles()
        self._links = [link for link in LINKS if has_store or not link.is_stored]

    @cached_property
    def _environment(self) -> Any:
        """Templates, read when the first page is asked for: a server that shows none does without them."""
        console = "quadriga.engine.console"
        environment = make_environment((console, "pages"), (console, "templates"))
        environment.filters.update(formats.FILTERS, bar_length=bar_length, shell=shlex.quote)
        environment.globals.update(
            comparison=comparison_text,
            drift_texts=drift_texts,
            filter_words=filter_words,
            metric_texts=metric_texts,
            words=WORDS,
            base=self.base,
            has_store=self.has_store,
            link=self.link,
            static=lambda name: self.base + self.static.path(name),
        )
        environment.globals["parts"] = environment.get_template("parts.html.jinja").module
        return environment

    def link(self, path: str, **parameters: str | None) -> str:
        """Return the link to a path of this server, with the parameters that are not empty."""
        query = urlencode({name: value for name, value in parameters.items() if value})
        return f"{self.base}{path}{'?' if query else ''}{query}"

    def page(
        self, template: str, *, page: str, title: str, status: int = 200, **content: Any
    ) -> Response[bytes]:
        """Return a page for the current caller.

        Args:
            template: Name of the template, without its ending.
            page: Page of the navigation that it belongs to; empty for none.
            title: Title of the page.
            status: Status of the response.
            **content: What the template shows; `query` is the filter of the page, `filter_path` where a changed one leads,
                `filter_example` one that finds something.
        """
        caller = current_caller()
        html: str = self._environment.get_template("frame.html.jinja").render(
            {
                "query": "",
                "chips": [],
                "filter_options": {},
                "filter_path": INFERENCES_PATH,
                "filter_example": "",
                "go_to": "",
                **content,
                "page_template": f"{template}.html.jinja",
                "page": page,
                "title": title,
                "has_filter": any(link.page == "inferences" for link in self._links)
                and opens(caller, "read"),
                "rights": caller.rights,
                "links": [link for link in self._links if opens(caller, link.need)],
                "caller": None if caller is ANYBODY or not caller.rights else caller,
            }
        )
        return Response(
            html.encode(), status_code=status, media_type="text/html", headers=dict(PAGE_HEADERS)
        )


def opens(caller: Caller, need: Need) -> bool:
    """Check whether a caller may open a door."""
    return need == "nothing" or need in caller.rights or (need == "key" and bool(caller.rights))


def redirect(location: str) -> Response[bytes]:
    """Return a response that sends the browser to another page of this server."""
    return Response(b"", status_code=303, headers={**PAGE_HEADERS, "Location": location})


def path_of(request: PageRequest) -> str:
    """Return the path of a request with its query, as the browser has it without the base."""
    query = query_string(request)
    return request.scope["path"] + (f"?{query}" if query else "")


def wants_page(request: PageRequest) -> bool:
    """Check whether a request is that of a browser for a page, not of a program for data."""
    return "text/html" in request.headers.get("accept", "")


class FieldProblem(QueryError):
    """A wrong value in a field of a form.

    Args:
        field: Name of the field.
        message: The text for clients.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def problems_of(error: Exception | None) -> dict[str, str]:
    """Return what is wrong with a form by the names of its fields; an empty name for the form as a whole."""
    if error is None:
        return {}
    return {error.field if isinstance(error, FieldProblem) else "": str(error)}


_MAX_FIELDS = 20


def form_fields(body: bytes) -> MultiDict[str]:
    """Return the fields that are not empty, without space around their values, or raise a `QueryError`."""
    try:
        fields = parse_qsl(body.decode(), max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise QueryError("expected a form in UTF-8 with few fields") from error
    return MultiDict((name, value.strip()) for name, value in fields)


def one_of(value: str, allowed: tuple[str, ...], name: str) -> str:
    """Return the value of a field if it is one of some, or raise a `FieldProblem`."""
    if value not in allowed:
        raise FieldProblem(
            name, f"expected {name} to be one of {', '.join(allowed)}, got {quoted(value, 40)}"
        )
    return value
