"""The page that says what the words of the other pages mean."""

from litestar import Response

from quadriga.engine.console.services import Services
from quadriga.engine.console.texts import WORD_GROUPS


def words_page(services: Services) -> None:
    """Register the handler."""
    frame = services.frame

    @services.page("/console/words")
    def show_words() -> Response[bytes]:
        """Show all words with their meanings."""
        return frame.page("words", page="words", title="Words", groups=WORD_GROUPS)
