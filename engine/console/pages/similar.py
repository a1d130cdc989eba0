"""More like this: the page of the inferences that resemble one, within a filter."""

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import Card, card
from quadriga.engine.console.filter_line import (
    INFERENCES_PATH,
    FilterLinks,
    InferenceFilter,
    filter_from_url,
)
from quadriga.engine.console.frame import PageRequest, page_response, redirect
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.store.browsing.similar import MAX_COMPARED, SimilarRequest, find_similar
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest

SHOWN = 48
"""Inferences of the page."""


class SimilarCard(msgspec.Struct, frozen=True):
    """An inference of the page."""

    card: Card
    note: str


class SimilarPage(msgspec.Struct, frozen=True):
    """Content of the page."""

    origin: Card
    cards: list[SimilarCard]
    compared: int
    is_partial: bool


def similar_page(services: Services, store: ConsoleStore) -> HTTPRouteHandler:
    """Return the handler."""
    frame, queries, options = services.frame, store.queries, services.options

    @get(INFERENCES_PATH + "/{inference_id:str}/similar", need="read", **options)
    async def show_similar(inference_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show the inferences of a filter that resemble one, the most similar first."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.similar(inference_id, filter_.line))

        def show(store: InferenceReader) -> str:
            content = read_similar(store, inference_id, filter_)
            return frame.html(
                "similar",
                page="inferences",
                title=f"More like inference {content.origin.id}",
                query=filter_.line,
                chips=links.chips(),
                p=content,
                bound=MAX_COMPARED,
                back=links.inference(content.origin.id),
                among_all=links.similar(content.origin.id, "") if filter_.line else "",
            )

        return page_response(await queries.run(request, show))

    return show_similar


def read_similar(
    store: InferenceReader, inference_id: str, filter_: InferenceFilter
) -> SimilarPage:
    """Read the content of the page; errors as for `find_similar`."""
    similar = find_similar(store, inference_id, SimilarRequest(filter_.line or {}, SHOWN))
    ids = [item.id for item in similar.inferences]
    matches = store.query(QueryRequest({"id": {"in": ids}}, limit=SHOWN)).inferences if ids else []
    by_id = {inference.id: inference for inference in matches}
    return SimilarPage(
        origin=card(store.get(inference_id)),
        cards=[
            SimilarCard(card(by_id[item.id]), f"similarity {item.similarity:.3f}")
            for item in similar.inferences
            if item.id in by_id  # unless it was deleted meanwhile
        ],
        compared=similar.compared,
        is_partial=similar.partial,
    )
