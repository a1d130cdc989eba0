"""Small copies of stored images: their size, who may see them, how long they are there, and what hostile images do."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from quadriga.engine.api.stored import thumbnails
from quadriga.store.blobs.interface import blob_key
from quadriga.store.records.records import InputReference
from quadriga.store.records.scope import Scope
from tests.unit.http_client import client_of, store_routes
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

SCENE = np.zeros((300, 400, 3), np.uint8)
SCENE[:, :200] = (255, 0, 0)  # blue on the left


def encoded(extension: str, pixels: Any = SCENE) -> bytes:
    return cv2.imencode(extension, pixels)[1].tobytes()


def turned(jpeg: bytes, orientation: int) -> bytes:
    """Return a JPEG with an EXIF orientation."""
    tiff = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01" + struct.pack(">HH", orientation, 0)
    body = b"Exif\0\0" + tiff + bytes(4)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def png_bomb(side: int) -> bytes:
    """Return a PNG of some bytes whose header says that it has side times side pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


IMAGES = {
    "1": encoded(".jpg"),
    "2": encoded(".png"),
    "3": encoded(".webp"),
    "4": encoded(".bmp"),
    "5": turned(encoded(".jpg"), 6),
    "6": encoded(".png", SCENE[..., 0]),
    "7": encoded(".png", np.full((50, 20, 3), 7, np.uint8)),
    "8": encoded(".png", np.full((1, 3000, 3), 7, np.uint8)),
    "9": encoded(".jpg")[:-200],
    "10": png_bomb(30_000),
    "11": b'{"inputs": []}\n',
    "12": b"<svg onload='alert(1)'/>",
    "13": encoded(".png", np.full((1100, 1000, 3), 7, np.uint8)),
}


class Served(NamedTuple):
    """A store, its routes, and where thumbnails lie."""

    store: StoreHarness
    client: TestClient[Litestar]
    folder: Path

    def get(self, inference_id: str, w: str = "256", **headers: str) -> Any:
        url = f"/api/inferences/{inference_id}/input?w={w}"
        return self.client.get(url, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    store = StoreHarness(tmp_path / "data", f"sqlite:///{tmp_path}/store.db")
    for number, image in IMAGES.items():
        reference = InputReference(
            "image", store.blobs.put(image), 8, height=8, mime="image/png", kept=True
        )
        store.add(make_record(int(number), input=reference))
    store.add(make_record(98, input=InputReference("image", blob_key(b"gone"), 8, 8, kept=True)))
    store.add(make_record(99))
    with client_of(store_routes(store.inferences)) as client:
        yield Served(store, client, tmp_path / "data" / "blobs" / "thumbnails")
    store.close()


@pytest.mark.parametrize(
    ("inference_id", "w", "size_wh"),
    [
        ("1", "256", (256, 192)),
        ("1", "128", (128, 96)),
        ("1", "512", (400, 300)),
        ("2", "256", (256, 192)),
        ("3", "256", (256, 192)),
        ("4", "256", (256, 192)),
        ("5", "256", (192, 256)),
        ("6", "256", (256, 192)),
        ("7", "1024", (20, 50)),
        ("8", "128", (128, 1)),
    ],
)
def test_a_thumbnail_fits_its_width_upright_and_is_never_enlarged(
    served: Served, inference_id: str, w: str, size_wh: tuple[int, int]
) -> None:
    response = served.get(inference_id, w)
    assert response.status_code == 200
    assert response.headers["content-type"] == "image/jpeg"
    assert response.headers["x-content-type-options"] == "nosniff"
    pixels = cv2.imdecode(np.frombuffer(response.content, np.uint8), cv2.IMREAD_COLOR)
    assert pixels.shape[1::-1] == size_wh
    if inference_id in "1234":
        assert pixels[5, 5, 0] > pixels[5, -5, 0] + 200
    if inference_id == "5":  # what was left is above
        assert pixels[5, 5, 0] > pixels[-5, 5, 0] + 200


@pytest.mark.parametrize("w", ["0", "-1", "255", "100000", "256px", "\uff1256", "1e2", "256.0"])
def test_other_widths_are_refused(served: Served, w: str) -> None:
    response = served.get("1", w)
    assert response.status_code == 400
    assert response.json()["error"].startswith("expected w to be 128, 256, 512 or 1024, got ")
    assert served.files() == []


@pytest.mark.parametrize(
    ("inference_id", "status", "message"),
    [
        ("9", 404, "thumbnail of 9 is not available: expected a complete image/jpeg file"),
        ("10", 404, "expected an image of 1 to 1000000 pixels, got image/png of 30000 x 30000"),
        ("11", 404, "expected a JPEG, PNG, WEBP, TIFF, BMP or GIF file"),
        ("12", 404, "expected a JPEG, PNG, WEBP, TIFF, BMP or GIF file"),
        ("13", 404, "expected an image of 1 to 1000000 pixels, got image/png of 1000 x 1100"),
        ("98", 404, "input of 98 is not available: removed since"),
        ("99", 404, "input of 99 is not available: not stored"),
        ("97", 404, "inference not found: 97"),
        ("x", 400, "expected an id as a string of digits, got 'x'"),
    ],
)
def test_what_has_no_thumbnail_says_why(
    served: Served, inference_id: str, status: int, message: str
) -> None:
    for _ in range(2):
        response = served.get(inference_id)
        assert response.status_code == status
        assert message in response.json()["error"]
    assert served.files() == []


def test_an_image_that_cannot_be_shown_is_tried_once(served: Served) -> None:
    first = served.get("9").json()
    for path in served.folder.parent.glob("*/*"):
        path.unlink()
    assert served.get("9").json() == first
    assert "removed since" in served.get("12").json()["error"]


def test_a_thumbnail_is_made_once_and_read_from_its_file(served: Served) -> None:
    first = served.get("1")
    (name,) = served.files()
    path = next(served.folder.rglob(name))
    other = encoded(".jpg", np.full((10, 10, 3), 9, np.uint8))
    path.write_bytes(other)
    assert served.get("1").content == other
    path.write_bytes(other[:-2])  # as a loss of power leaves it
    assert served.get("1").content == first.content


def test_who_has_it_is_answered_304(served: Served) -> None:
    first = served.get("1")
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, max-age=3600"
    for sent in (tag, f'W/{tag}, "x"', "*"):
        response = served.get("1", if_none_match=sent)
        assert (response.status_code, response.content) == (304, b"")
        assert response.headers["etag"] == tag
    assert served.get("1", if_none_match='"x"').status_code == 200
    assert served.get("1", "128", if_none_match=tag).status_code == 200
    assert served.get("2", if_none_match=tag).status_code == 200
    assert served.get("99", if_none_match="*").status_code == 404


def test_another_team_sees_no_thumbnail_even_if_it_is_kept(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = served.get("1").headers["etag"]
    monkeypatch.setattr(thumbnails, "caller_scope", lambda: Scope("b"))
    assert served.get("1").status_code == 404
    assert served.get("1", if_none_match=tag).status_code == 404


def test_the_input_itself_is_as_before(served: Served) -> None:
    response = served.client.get("/api/inferences/1/input")
    assert response.content == IMAGES["1"]
    assert "etag" not in response.headers
