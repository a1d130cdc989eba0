"""Where a browser goes after the log-in: to a path of this server, whatever it was sent with."""

import re

FIRST_PATH = "/console/"
_OWN_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,500}")
"""A path of this server with its query: one slash first, and no backslash, which browsers take for a slash."""


def own_path(text: str) -> str:
    """Return a path of this server, where a browser goes after the log-in; that of the console for anything else."""
    return text if _OWN_PATH.fullmatch(text) else FIRST_PATH
