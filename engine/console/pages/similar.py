"""More like this: the page of the inferences that resemble one, within a filter."""

from litestar import Response
from litestar.params import FromPath

from quadriga.engine.api.store_queries import query_string
from quadriga.engine.console.cards import card
from quadriga.engine.console.filter_line import (
    INFERENCES_PATH,
    FilterLinks,
    filter_from_url,
)
from quadriga.engine.console.frame import PageRequest, page_response, redirect
from quadriga.engine.console.services import ConsoleStore, Services
from quadriga.store.browsing.similar import MAX_COMPARED, SimilarRequest, find_similar
from quadriga.store.query.inferences import InferenceReader

SHOWN = 48
"""Inferences of the page."""


def similar_page(services: Services, store: ConsoleStore) -> None:
    """Register the handler."""
    frame, queries = services.frame, store.queries

    @services.page(INFERENCES_PATH + "/{inference_id:str}/similar")
    async def show_similar(inference_id: FromPath[str], request: PageRequest) -> Response[bytes]:
        """Show the inferences of a filter that resemble one, the most similar first."""
        filter_ = filter_from_url(query_string(request))
        links = FilterLinks(filter_, frame.link, INFERENCES_PATH)
        if not filter_.is_canonical:
            return redirect(links.similar(inference_id, filter_.line))

        def show(store: InferenceReader) -> str:
            similar = find_similar(store, inference_id, SimilarRequest(filter_.line or {}, SHOWN))
            origin = store.get(inference_id)
            by_id = store.by_id(item.id for item in similar.inferences)
            return frame.html(
                "similar",
                page="inferences",
                title=f"More like inference {origin.id}",
                query=filter_.line,
                chips=links.chips(),
                origin=card(origin),
                cards=[
                    (card(by_id[item.id]), f"similarity {item.similarity:.3f}")
                    for item in similar.inferences
                    if item.id in by_id  # unless it was deleted meanwhile
                ],
                compared=similar.compared,
                is_partial=similar.partial,
                bound=MAX_COMPARED,
                back=links.inference(origin.id),
                among_all=links.similar(origin.id, "") if filter_.line else "",
            )

        return page_response(await queries.run(request, show))
