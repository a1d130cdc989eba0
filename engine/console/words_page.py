"""The page that says what the words of the other pages mean."""

from typing import Any

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.console.frame import Frame
from quadriga.engine.console.texts import TEXTS
from quadriga.engine.console.word_texts import WORD_GROUPS


def words_page(frame: Frame, options: dict[str, Any]) -> HTTPRouteHandler:
    """Return the handler."""

    @get("/console/words", sync_to_thread=True, need="read", **options)
    def show_words() -> Response[bytes]:
        """Show all words with their meanings."""
        return frame.page("words", page="words", title=TEXTS["words"], groups=WORD_GROUPS)

    return show_words
