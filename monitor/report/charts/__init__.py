"""The pictures of a report, as vector graphics that take the colours of the page around them."""

import msgspec
from markupsafe import Markup

MAX_LETTERS = 24
"""Maximum number of letters of a name in a chart."""


class Chart(msgspec.Struct, frozen=True):
    """A chart of a report."""

    name: str
    """Name, unique on the page: prefix of the ids in the SVG."""
    title: str
    caption: str
    svg: Markup
