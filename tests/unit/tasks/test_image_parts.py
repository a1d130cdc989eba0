"""Parts of image files that decoders read one by one: counted before anything is decoded."""

import io
import struct
import zlib

import numpy as np
import PIL.Image
import pytest

from quadriga.tasks import image as image_module
from quadriga.tasks.image import PIXELS_PER_PART, ImageError, count_parts, decode
from quadriga.tasks.parameters import Budget, BudgetError

MANY = 5000


def file_of(kind, mode="RGB", **options):
    stream = io.BytesIO()
    PIL.Image.fromarray(np.zeros((8, 8, 3), np.uint8)).convert(mode).save(stream, kind, **options)
    return stream.getvalue()


def png_with(chunk, count):
    data = file_of("PNG")
    piece = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return data[:33] + piece * count + data[33:]


def jpeg_with(piece, count):
    data = file_of("JPEG")
    return data[:2] + piece * count + data[2:]


def gif_with(piece, count, end=b""):
    data = file_of("GIF", "P")
    start = 13 + (3 << (data[10] & 7) + 1)
    return data[:start] + piece * count + end + data[start:]


def tiff(entries, body=b"", *, big=False, next_page=0):
    """A TIFF of one page at byte 8 or 16; entries are tag, type, number and value."""
    head = (
        struct.pack("<2sHHHQ", b"II", 43, 8, 0, 16) if big else struct.pack("<2sHI", b"II", 42, 8)
    )
    count, entry, last = ("<Q", "<HHQQ", "<Q") if big else ("<H", "<HHII", "<I")
    rows = b"".join(struct.pack(entry, *row) for row in entries)
    return head + struct.pack(count, len(entries)) + rows + struct.pack(last, next_page) + body


def strips(count, **options):
    size = [(256, 4, 1, 1), (257, 4, 1, count), (258, 3, 1, 8), (262, 3, 1, 1), (278, 4, 1, 1)]
    return tiff([*size, (273, 4, count, 200), (279, 4, count, 200)], bytes(4 * count), **options)


FILES = {
    "PNG texts": ("image/png", png_with(b"tEXta\0b", MANY)),
    "PNG empty data": ("image/png", png_with(b"IDAT", MANY)),
    "JPEG comments": ("image/jpeg", jpeg_with(b"\xff\xfe\x00\x02", MANY)),
    "JPEG fill": ("image/jpeg", jpeg_with(b"\xff", MANY)),
    "JPEG restarts": ("image/jpeg", jpeg_with(b"\xff\xd0", MANY)),
    "JPEG bytes between segments": ("image/jpeg", b"\xff\xd8\xff\xe0\x00\x02" + bytes(MANY)),
    "GIF extensions": ("image/gif", gif_with(b"!\xfe\x01a\x00", MANY)),
    "GIF blocks": ("image/gif", gif_with(b"!\xfe" + b"\x01a" * MANY + b"\x00", 1)),
    "GIF between blocks": ("image/gif", gif_with(b"\x00", MANY)),
    "TIFF strips": ("image/tiff", strips(MANY)),
    "BigTIFF strips": ("image/tiff", strips(MANY, big=True)),
    "TIFF tiles": ("image/tiff", tiff([(324, 4, MANY, 0)])),
    "TIFF tags": ("image/tiff", tiff([(40_000, 3, 1, 1)] * MANY)),
}  # fmt: skip


@pytest.mark.parametrize(("mime", "data"), FILES.values(), ids=FILES)
def test_parts_are_counted_and_bounded_before_a_decoder_opens_the_file(mime, data, monkeypatch):
    assert count_parts(data, mime, 10 * MANY) >= MANY
    with pytest.raises(ImageError, match="at most 4999 chunks, segments, blocks and strips"):
        count_parts(data, mime, MANY - 1)

    def opened(*_):
        raise AssertionError("a decoder opened it")

    formats = tuple((magic, opened, kind) for magic, _, kind in image_module._FORMATS)
    monkeypatch.setattr(image_module, "_FORMATS", formats)
    with pytest.raises(ImageError, match="chunks, segments, blocks and strips, got more"):
        decode(data, max_pixels=1_000_000)


def test_a_circle_of_pages_ends():
    data = tiff([(256, 4, 1, 1)], next_page=8)
    assert count_parts(data, "image/tiff", 1000) < 100


@pytest.mark.parametrize(
    "data",
    [
        file_of("PNG"),
        file_of("JPEG", quality=90, exif=b"Exif\0\0" + bytes(500), icc_profile=bytes(200_000)),
        file_of("JPEG", progressive=True),
        file_of("GIF", "P", comment=b"a" * 5000),
        file_of("TIFF"),
        file_of("TIFF", compression="tiff_lzw"),
        file_of("WEBP"),
        file_of("BMP"),
    ],
)
def test_usual_files_have_few_parts(data):
    budget = Budget(64, "pixels")
    assert decode(data, max_pixels=64, budget=budget).width == 8
    with pytest.raises(BudgetError, match="at most 64 pixels in a request, got 65 or more"):
        budget.spend(1)


def test_parts_count_as_pixels():
    data = png_with(b"tEXta\0b", 201)
    pixels = 64 + (201 + 3 - 100) * PIXELS_PER_PART
    with pytest.raises(BudgetError, match=f"got {pixels} or more"):
        decode(data, budget=Budget(pixels - 1, "pixels"))
    assert decode(data, budget=Budget(pixels, "pixels")).height == 8


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF"])
def test_every_cut_of_a_file_is_counted(kind):
    data = file_of(kind, "P" if kind == "GIF" else "RGB")
    for length in range(4, len(data)):
        count_parts(data[:length], f"image/{kind.lower()}", 10**9)
