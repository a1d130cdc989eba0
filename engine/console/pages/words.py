"""The page that says what the words of the other pages mean."""

from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from quadriga.engine.console.services import Services
from quadriga.engine.console.texts import WORD_GROUPS


def words_page(services: Services) -> HTTPRouteHandler:
    """Return the handler."""
    frame, options = services.frame, services.options

    @get("/console/words", sync_to_thread=True, need="read", **options)
    def show_words() -> Response[bytes]:
        """Show all words with their meanings."""
        return frame.page("words", page="words", title="Words", groups=WORD_GROUPS)

    return show_words
