"""HTTP routes of the reading side; errors are `StoreError`s, which the application turns into answers."""

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, RawBody

from store.inferences import Inferences, Page, decode_request
from store.records import StoredInference


def routes(inferences: Inferences) -> list[HTTPRouteHandler]:
    """Return the handlers that answer from these inferences."""

    @post("/api/inferences/query", status_code=200, sync_to_thread=True)
    def query_inferences(body: RawBody) -> Page:
        """Find inferences, page by page; the body is JSON whatever its content type."""
        return inferences.query(decode_request(body))

    @get("/api/inferences/{inference_id:str}", sync_to_thread=True)
    def get_inference(inference_id: FromPath[str]) -> StoredInference:
        """Answer one inference."""
        return inferences.get(inference_id)

    @get("/api/inferences/{inference_id:str}/input", sync_to_thread=True)
    def get_inference_input(inference_id: FromPath[str]) -> Response[bytes]:
        """Answer the bytes that an inference was asked about."""
        data, mime = inferences.input_bytes(inference_id)
        # A client chose these bytes: what is no plain image may not run in a browser.
        is_image = mime.startswith("image/") and "svg" not in mime
        return Response(
            data,
            media_type=mime if is_image else "application/octet-stream",
            headers={"X-Content-Type-Options": "nosniff"},
        )

    return [query_inferences, get_inference, get_inference_input]
