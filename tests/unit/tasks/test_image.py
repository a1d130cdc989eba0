import io
import random
import re
import struct
import subprocess
import sys
import zlib
from typing import Any

import cv2
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from quadriga.tasks.image import ImageError, decode

_GRADIENT = np.stack(
    [*np.meshgrid(np.arange(40) * 5, np.arange(30) * 7), np.full((30, 40), 99)], axis=2
).astype(np.uint8)


def encode(kind, pixels=_GRADIENT, mode=None, **options: Any):
    picture = PIL.Image.fromarray(pixels)
    buffer = io.BytesIO()
    (picture.convert(mode) if mode else picture).save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    return exif


def png(width, height, chunks=()):
    """A PNG by hand: its header, then whatever chunks, each with the right CRC."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for name, body in ((b"IHDR", header), *chunks, (b"IEND", b"")):
        data += struct.pack(">I", len(body)) + name + body
        data += struct.pack(">I", zlib.crc32(name + body))
    return data


LOSSLESS = {
    "png": ("PNG", "image/png", {}),
    "webp": ("WEBP", "image/webp", {"lossless": True}),
    "tiff": ("TIFF", "image/tiff", {}),
    "tiff lzw": ("TIFF", "image/tiff", {"compression": "tiff_lzw"}),
    "bmp": ("BMP", "image/bmp", {}),
}


@pytest.mark.parametrize(("kind", "mime", "options"), LOSSLESS.values(), ids=LOSSLESS)
def test_lossless_files_give_the_pixels_that_were_written(kind, mime, options):
    image = decode(encode(kind, **options))
    assert (image.mime, image.width, image.height) == (mime, 40, 30)
    assert image.pixels.dtype == np.uint8
    np.testing.assert_array_equal(image.pixels, _GRADIENT)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}])
def test_jpeg_gives_what_pillow_reads(options):
    data = encode("JPEG", quality=95, **options)
    expected = np.asarray(PIL.Image.open(io.BytesIO(data))).astype(int)
    assert np.abs(decode(data).pixels.astype(int) - expected).max() <= 2


def test_gif_and_tiff_give_their_first_picture():
    red, blue = (PIL.Image.new("RGB", (8, 6), name) for name in ("red", "blue"))
    for kind in ("GIF", "TIFF"):
        buffer = io.BytesIO()
        red.save(buffer, kind, save_all=True, append_images=[blue])
        assert (decode(buffer.getvalue()).pixels == (255, 0, 0)).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_orientation_turns_as_exif_transpose_does_or_is_ignored(kind, orientation):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(kind, exif=exif(orientation), **options)
    stored = decode(encode(kind, **options)).pixels
    upright = np.asarray(PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data))))
    image = decode(data)
    assert (image.height, image.width) == upright.shape[:2]
    assert np.abs(image.pixels.astype(int) - upright).max() <= (2 if kind == "JPEG" else 0)
    np.testing.assert_array_equal(decode(data, exif="ignore").pixels, stored)


@pytest.mark.parametrize("value", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_counts_as_upright(value):
    image = decode(encode("PNG", exif=exif(value)))
    np.testing.assert_array_equal(image.pixels, _GRADIENT)


def test_metadata_that_cannot_be_read_does_not_spoil_the_picture():
    data = encode("PNG", exif=b"Exif\x00\x00" + b"\xff" * 40)
    np.testing.assert_array_equal(decode(data).pixels, _GRADIENT)


_WIDE = (np.arange(1200).reshape(30, 40) * 54).astype(np.uint16)


def encode_array(extension, pixels):
    done, buffer = cv2.imencode(extension, pixels)
    assert done
    return buffer.tobytes()


@pytest.mark.parametrize("extension", [".png", ".tiff"])
def test_16_bit_keeps_the_high_byte(extension):
    gray = decode(encode_array(extension, _WIDE)).pixels
    np.testing.assert_array_equal(gray, np.repeat((_WIDE >> 8)[..., None], 3, axis=2))
    color = np.stack([_WIDE, _WIDE[::-1], _WIDE[:, ::-1]], axis=2)
    decoded = decode(encode_array(extension, color[..., ::-1])).pixels
    np.testing.assert_array_equal(decoded, color >> 8)


def tiff(pixels, *, bits, photometric, sample_format=1):
    """A little-endian TIFF of one strip, written by hand: Pillow writes few of the variants."""
    height, width = pixels.shape[:2]
    body = pixels.tobytes()
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, bits),
        (259, 3, 1),
        (262, 3, photometric),
        (273, 4, 8),
        (277, 3, 1),
        (278, 4, height),
        (279, 4, len(body)),
        (339, 3, sample_format),
    ]
    ifd = struct.pack("<H", len(tags))
    ifd += b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\x00" + struct.pack("<I", 8 + len(body)) + body + ifd + bytes(4)


def test_tiff_where_white_is_zero_is_inverted():
    plain = decode(tiff(_WIDE, bits=16, photometric=1)).pixels
    inverted = decode(tiff(_WIDE, bits=16, photometric=0)).pixels
    np.testing.assert_array_equal(plain[..., 0], _WIDE >> 8)
    np.testing.assert_array_equal(inverted, 255 - plain)


@pytest.mark.parametrize(("dtype", "sample_format"), [(np.float32, 3), (np.int32, 2)])
def test_tiff_of_floats_or_32_bit_is_refused(dtype, sample_format):
    data = tiff(_WIDE.astype(dtype), bits=32, photometric=1, sample_format=sample_format)
    with pytest.raises(ImageError, match="expected 1 to 16 bits per channel"):
        decode(data)


def test_gray_palette_and_alpha_become_plain_rgb():
    gray = _GRADIENT[..., 0]
    three = np.repeat(gray[..., None], 3, axis=2)
    alpha = np.arange(1200, dtype=np.uint8).reshape(30, 40)
    rgba = np.dstack([_GRADIENT, alpha])
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(decode(encode(kind, gray)).pixels, three)
        np.testing.assert_array_equal(decode(encode(kind, rgba)).pixels, _GRADIENT)
        np.testing.assert_array_equal(decode(encode(kind, np.dstack([gray, alpha]))).pixels, three)
        bits = decode(encode(kind, gray, mode="1")).pixels
        assert set(np.unique(bits)) == {0, 255}


@pytest.mark.parametrize(
    ("kind", "transparency"), [("PNG", 3), ("PNG", b"\x00\x80\xff"), ("GIF", 3)]
)
def test_palette_with_transparency_keeps_its_colours(kind, transparency):
    picture = PIL.Image.fromarray(_GRADIENT).quantize(8)
    expected = np.asarray(picture.convert("RGB"))
    buffer = io.BytesIO()
    picture.save(buffer, kind, transparency=transparency)
    np.testing.assert_array_equal(decode(buffer.getvalue()).pixels, expected)


def test_cmyk_jpeg_agrees_with_pillow():
    pixels = np.repeat(np.repeat(_GRADIENT, 4, axis=0), 4, axis=1)
    data = encode("JPEG", pixels, mode="CMYK", quality=95)
    expected = np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode(data).pixels.astype(int) - expected).max() <= 2
    assert np.abs(decode(data).pixels.astype(int) - pixels).mean() < 3


def test_ycck_jpeg_agrees_with_pillow():
    data = encode("JPEG", mode="CMYK", quality=95)
    adobe = data.index(b"Adobe")
    data = data[: adobe + 11] + b"\x02" + data[adobe + 12 :]
    expected = np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    assert np.abs(decode(data).pixels.astype(int) - expected).max() <= 2


REFUSED = {
    "empty": (b"", "got no bytes"),
    "text": (b"hello world", "expected a JPEG, PNG, WEBP, TIFF, BMP or GIF file, got 11 bytes"),
    "avif": (b"\x00\x00\x00\x20ftypavif", "expected a JPEG, PNG"),
    "magic only": (b"\xff\xd8\xff", "image/jpeg"),
    "no pixels": (png(0, 5), "image/png"),
    "2^31": (png(2**31 - 1, 2**31 - 1), "expected an image of 1 to 50000000 pixels"),
    "2^32": (png(2**32 - 1, 1), "image/png"),
    "no IDAT": (png(5, 5), "image/png"),
    "short IDAT": (png(5, 5, [(b"IDAT", zlib.compress(b"\0" * 7))]), "image/png"),
    "gif canvas": (b"GIF89a\xff\xff\xff\xff\x00\x00\x00", "got image/gif of 65535 x 65535"),
    "webp canvas": (
        b"RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\x3f\x00\xff\x3f\x00",
        "got image/webp of 16384 x 16384",
    ),
    "webp lossless": (
        b"RIFF\x00\x00\x00\x00WEBPVP8L\x0a\x00\x00\x00\x2f\xff\xff\xff\x0f" + bytes(9),
        "got image/webp of 16384 x 16384",
    ),
    "webp lossy": (
        b"RIFF\x00\x00\x00\x00WEBPVP8 \x0a\x00\x00\x00\x10\x00\x00\x9d\x01\x2a\xff\x3f\xff\x3f"
        + bytes(9),
        "got image/webp of 16383 x 16383",
    ),
    "bmp height": (
        b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 2**31 - 1, -(2**31), 1, 24) + bytes(24),
        "expected an image of 1 to",
    ),
}


@pytest.mark.parametrize(("data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_readable_image_is_refused(data, message):
    with pytest.raises(ImageError, match=re.escape(message)):
        decode(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"])
def test_the_pixel_limit_is_inclusive(kind):
    data = encode(kind)
    assert decode(data, max_pixels=1200).width == 40
    with pytest.raises(ImageError, match="expected an image of 1 to 1199 pixels, got"):
        decode(data, max_pixels=1199)


_PEAK = """
import re, sys
from quadriga.tasks.image import ImageError, decode
def peak_kib():
    return int(re.search("VmHWM:[^0-9]*([0-9]+)", open("/proc/self/status").read())[1])
data = open(sys.argv[1], "rb").read()
before = peak_kib()
try:
    decode(data)
except ImageError as error:
    print(peak_kib() - before, error)
"""


def test_a_bomb_is_refused_before_memory_is_taken(tmp_path):
    rows = zlib.compressobj(1)
    body = b"".join(rows.compress(bytes(8001 * 100)) for _ in range(80)) + rows.flush()
    path = tmp_path / "bomb.png"
    path.write_bytes(png(8000, 8000, [(b"IDAT", body)]))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True
    )
    grown_kib, message = done.stdout.split(" ", 1)
    assert message.endswith("got image/png of 8000 x 8000\n")
    assert int(grown_kib) < 8_000


_BIG = np.random.default_rng(7).integers(0, 255, (60, 80, 3), dtype=np.uint8)
_BIG[:30] = np.repeat(np.arange(80, dtype=np.uint8)[:, None], 3, axis=1)
FILES = {
    "jpeg": encode("JPEG", _BIG),
    "jpeg progressive": encode("JPEG", _BIG, progressive=True),
    "jpeg with thumbnail": encode("JPEG", _BIG, exif=b"Exif\x00\x00" + encode("JPEG")),
    "png": encode("PNG", _BIG),
    "webp": encode("WEBP", _BIG),
    "webp lossless": encode("WEBP", _BIG, lossless=True),
    "tiff": encode("TIFF", _BIG),
    "tiff lzw": encode("TIFF", _BIG, compression="tiff_lzw"),
    "tiff deflate": encode("TIFF", _BIG, compression="tiff_adobe_deflate"),
    "tiff jpeg": encode("TIFF", _BIG, compression="jpeg"),
    "bmp": encode("BMP", _BIG),
    "gif": encode("GIF", _BIG),
}


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_a_file_cut_short_is_refused(data, capfd):
    decode(data)
    for fragment in range(50):
        with pytest.raises(ImageError, match="expected"):
            decode(data[: len(data) * fragment // 50])
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "tail",
    [b"\x00" * 100, encode("JPEG"), b"SEFT" + b"\xff\xd8\xff" * 9],
    ids=["zeros", "second picture", "trailer"],
)
def test_bytes_after_the_picture_are_passed_over(tail):
    for name in ("jpeg", "jpeg with thumbnail", "png", "gif"):
        np.testing.assert_array_equal(decode(FILES[name] + tail).pixels, decode(FILES[name]).pixels)


def test_a_multi_picture_jpeg_gives_its_first_picture():
    buffer = io.BytesIO()
    first, second = PIL.Image.fromarray(_GRADIENT), PIL.Image.new("RGB", (40, 30), "white")
    first.save(buffer, "MPO", save_all=True, append_images=[second])
    image = decode(buffer.getvalue())
    assert image.mime == "image/jpeg"
    assert np.abs(image.pixels.astype(int) - _GRADIENT).mean() < 5


def test_a_jpeg_of_endless_scans_is_refused():
    data = FILES["jpeg progressive"]
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(ImageError, match="at most 100 scans"):
        decode(data[:-2] + data[scan:-2] * 200 + b"\xff\xd9")


@pytest.mark.parametrize("data", FILES.values(), ids=FILES)
def test_damage_gives_a_picture_or_an_image_error_and_keeps_quiet(data, capfd):
    source = random.Random(len(data))
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(source.randint(1, 4)):
            # half of the damage strikes the header
            reach = len(data) if source.random() < 0.5 else min(len(data), 200)
            damaged[source.randrange(reach)] ^= 1 << source.randrange(8)
        try:
            image = decode(bytes(damaged))
        except ImageError:
            continue
        assert image.pixels.dtype == np.uint8
        assert image.pixels.ndim == 3
    out, err = capfd.readouterr()
    # libjpeg inside OpenCV writes one line for a damaged scan, which nothing can turn off
    noise = [line for line in err.splitlines() if line and not _LIBJPEG.match(line)]
    assert (out, noise) == ("", [])


_LIBJPEG = re.compile(
    "Corrupt JPEG data|Premature end of JPEG|Warning: unknown JFIF|Inconsistent progression"
    "|Invalid SOS parameters|Unknown Adobe color transform|Invalid crop"
)


def test_odd_tags_are_read_in_silence_outside_of_tests(tmp_path):
    # twice the entries that a width may have: Pillow warns and reads the first
    data = tiff(_WIDE, bits=16, photometric=1)
    width = struct.pack("<HHI", 277, 3, 1)
    assert data.count(width) == 1
    path = tmp_path / "odd.tiff"
    path.write_bytes(data.replace(width, struct.pack("<HHI", 277, 3, 2)))
    code = "import sys, quadriga.tasks.image as i; print(i.decode(open(sys.argv[1], 'rb').read()).width)"
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("40\n", "")


def test_random_bytes_behind_every_magic_are_refused_quietly(capfd):
    source = random.Random(3)
    for data in FILES.values():
        for head in (3, 8, 12, 30):
            with pytest.raises(ImageError, match="expected"):
                decode(data[:head] + source.randbytes(400))
    assert capfd.readouterr() == ("", "")
