"""The pages of log-in and account: HTML without script, and what browsers may do with it.

The module loads jinja2: import it only where people log in.
"""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

_FOLDER = files("quadriga.extras.sign_on")
_STYLE = _FOLDER.joinpath("console.css").read_text("utf-8")
_STYLE_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_TEMPLATE = Environment(
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
).from_string(_FOLDER.joinpath("console.html.jinja").read_text("utf-8"))

PAGE_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with none at all, Chromium would send `Origin: null` for the form
    "Cache-Control": "no-store",
}


def render(**content: Any) -> bytes:
    """Return a page.

    Args:
        **content: `title`, `base` (path that comes before those of this server), and at most one of `account` (who has
            logged in), `problem` (why a log-in failed) and `go_to` (where the page goes on to by itself).
    """
    defaults = {
        "account": None,
        "problem": "",
        "go_to": "",
        "note": "",
        "provider": "",
        "log_in": "",
    }
    return _TEMPLATE.render(style=_STYLE, **{**defaults, **content}).encode()
