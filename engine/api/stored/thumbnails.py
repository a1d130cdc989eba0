"""Answers with small copies of stored images: kept ones at once, new ones made in threads of their own."""

import asyncio
from collections import OrderedDict
from functools import partial
from typing import Any

import cv2
from litestar import Request, Response

from quadriga.engine.api.access import caller_scope
from quadriga.engine.models.runners.bounded_threads import BoundedThreads
from quadriga.proto.errors import InvalidRequest
from quadriga.quoting import quoted
from quadriga.store.blobs.thumbnails import WIDTHS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.scope import Scoped
from quadriga.tasks.image import MAX_PIXELS, ImageError, decode

_QUALITY = 82


def make_thumbnail(data: bytes, side_px: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return an image as a JPEG of at most so many pixels on its longer side, upright; it is never enlarged.

    Raises:
        quadriga.tasks.image.ImageError: It is no image that can be shown, or one of too many pixels.
    """
    pixels = decode(data, max_pixels=max_pixels).rgb()
    height, width = pixels.shape[:2]
    scale = side_px / max(height, width)
    if scale < 1:
        size_wh = max(round(width * scale), 1), max(round(height * scale), 1)
        pixels = cv2.resize(pixels, size_wh, interpolation=cv2.INTER_AREA).astype(pixels.dtype)
    bgr = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR)
    is_encoded, encoded = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
    assert is_encoded, "OpenCV encodes any array of three channels"
    return encoded.tobytes()


THREADS, WAITING, WAIT_S = 2, 200, 10.0
"""Thumbnails that a worker makes at once, that wait for that, and how long each waits at most."""

MAX_AGE_S = 3600
"""Seconds for which a browser need not ask again."""

_MAX_FAILURES = 1000
_FORM = 1
"""Part of the ETag that changes whenever thumbnails of the same image change."""


class Thumbnails:
    """Thumbnails of stored images.

    Args:
        inferences: The store.
        max_pixels: Maximum pixels of an image.
    """

    def __init__(self, inferences: Scoped[InferenceReader], max_pixels: int) -> None:
        self._inferences = inferences
        self._max_pixels = max_pixels
        self._threads = BoundedThreads("thumbnails", THREADS, WAITING, WAIT_S)
        self._failures: OrderedDict[str, str] = OrderedDict()
        """Why images have no thumbnail, so that each is tried once; used on the event loop."""

    async def answer(
        self, request: Request[Any, Any, Any], inference_id: str, width: str
    ) -> Response[bytes]:
        """Return the thumbnail of an inference's input, or 304 if the client has it.

        Raises:
            InvalidRequest: There are no thumbnails of that width.
            NotFoundError: There is no such inference, its input is not stored, or it is no image that can be shown.
            quadriga.engine.models.runners.bounded_threads.ThreadsFull: Too many thumbnails wait to be made.
        """
        if width not in map(str, WIDTHS):
            expected = f"{', '.join(map(str, WIDTHS[:-1]))} or {WIDTHS[-1]}"
            raise InvalidRequest(f"expected w to be {expected}, got {quoted(width, 40)}")
        store, side_px = self._inferences.within(caller_scope()), int(width)
        key, _ = await asyncio.to_thread(store.kept_input, inference_id)
        tag = f'"{key.partition(":")[2][:32]}-{side_px}-{_FORM}"'
        headers = {
            "ETag": tag,
            "Cache-Control": f"private, max-age={MAX_AGE_S}",
            "X-Content-Type-Options": "nosniff",
        }
        if _matches(request.headers.get("if-none-match", ""), tag):
            return Response(b"", status_code=304, headers=headers)
        content = await asyncio.to_thread(store.thumbnail, key, side_px)
        if content is None:
            content = await self._make(store, inference_id, key, side_px=side_px)
        return Response(content, media_type="image/jpeg", headers=headers)

    async def _make(
        self, store: InferenceReader, inference_id: str, key: str, *, side_px: int
    ) -> bytes:
        make = partial(make_thumbnail, side_px=side_px, max_pixels=self._max_pixels)
        if key not in self._failures:
            try:
                return await self._threads.run(store.make_thumbnail, inference_id, side_px, make)
            except ImageError as error:
                self._failures[key] = str(error)
                if len(self._failures) > _MAX_FAILURES:
                    self._failures.popitem(last=False)
        raise NotFoundError(
            f"thumbnail of {inference_id} is not available: {self._failures[key]}; without w the input comes as it is"
        )


def _matches(if_none_match: str, tag: str) -> bool:
    """Check whether a header If-None-Match names a tag."""
    tags = {text.strip().removeprefix("W/") for text in if_none_match.split(",")}
    return tag in tags or "*" in tags
