"""Images of other bands and bits than 8-bit gray and RGB, against what was written into their files."""

import contextlib
import io
import random
import subprocess
import sys

import msgspec
import numpy as np
import PIL.Image
import pytest

from quadriga.tasks.image import Image, ImageError, decode
from quadriga.tasks.resize import plain, preprocess
from quadriga.tasks.specification import InputSpec
from tests.band_images import by_opencv, by_pillow, pages, png, tiff

_RANDOM = np.random.default_rng(11)
DEEP = _RANDOM.integers(0, 65536, (20, 30, 10), np.uint16)
DEEP[0, :2] = [[0], [65535]]
SHALLOW = (DEEP >> 8).astype(np.uint8)
TWELVE = DEEP >> 4
BANDS, DEEP_BANDS = list(np.moveaxis(SHALLOW, 2, 0)), list(np.moveaxis(DEEP, 2, 0))
LUMA = (0.299, 0.587, 0.114)
COLOURED = np.full((20, 30, 3), (200, 100, 50), np.uint8)


def palette_png():
    """Index 0 is half transparent."""
    picture = PIL.Image.new("P", (30, 20))
    picture.putpalette([9, 8, 7])
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", transparency=b"\x80")
    return buffer.getvalue()


# file; channels, bit_depth; values that come out, within
DECODED = {
    "RGBA PNG": (png(SHALLOW[..., :4]), 4, 8, SHALLOW[..., :4], 0),
    "RGBA TIFF, alpha not multiplied": (by_pillow(SHALLOW[..., :4], "TIFF"), 4, 8, SHALLOW[..., :4], 0),
    "RGBA WEBP": (by_pillow(SHALLOW[..., :4] | 1, "WEBP", lossless=True), 4, 8, SHALLOW[..., :4] | 1, 0),
    "RGB and a band that is no alpha": (tiff(SHALLOW[..., :4], photometric=2, extra=[0]), 4, 8, SHALLOW[..., :4], 0),
    "RGBA of 16 bits": (png(DEEP[..., :4]), 4, 16, DEEP[..., :4], 0),
    "RGBA of 16 bits in TIFF": (tiff(DEEP[..., :4], photometric=2, extra=[2]), 4, 16, DEEP[..., :4], 0),
    "RGBA of 16 bits for 8": (png(DEEP[..., :4]), 4, 8, DEEP[..., :4] >> 8, 0),
    "gray and alpha": (png(SHALLOW[..., :2]), 2, 8, SHALLOW[..., :2], 0),
    "10 pages": (pages(BANDS), 10, 8, SHALLOW, 0),
    "10 pages, compressed": (pages(BANDS, compression="tiff_lzw"), 10, 8, SHALLOW, 0),
    "10 pages of 16 bits": (pages(DEEP_BANDS), 10, 16, DEEP, 0),
    "10 pages of 16 bits, compressed": (pages(DEEP_BANDS, compression="tiff_adobe_deflate"), 10, 16, DEEP, 0),
    "10 pages of 16 bits for 8": (pages(DEEP_BANDS), 10, 8, DEEP >> 8, 0),
    "2 pages": (pages(BANDS[:2]), 2, 8, SHALLOW[..., :2], 0),
    "4 pages": (pages(BANDS[:4]), 4, 8, SHALLOW[..., :4], 0),
    "10 pages of 8 bits for 16": (pages(BANDS), 10, 16, SHALLOW * np.uint16(257), 0),
    "gray PNG of 16 bits": (png(DEEP[..., :1]), 1, 16, DEEP[..., :1], 0),
    "gray TIFF of 16 bits": (by_pillow(DEEP[..., 0], "TIFF"), 1, 16, DEEP[..., :1], 0),
    "white is 0": (tiff(DEEP[..., :1], photometric=0), 1, 16, 65535 - DEEP[..., :1], 0),
    "12 bits in 16": (png(TWELVE[..., :1]), 1, 12, TWELVE[..., :1], 0),
    "12 bits in 16, colour": (png(TWELVE[..., :3]), 3, 12, TWELVE[..., :3], 0),
    "8 bits for 12": (png(SHALLOW[..., :1]), 1, 12, np.round(SHALLOW[..., :1] * (4095 / 255)), 0),
    "RGB PNG of 16 bits": (png(DEEP[..., :3]), 3, 16, DEEP[..., :3], 0),
    "RGB TIFF of 16 bits": (by_opencv(".tiff", DEEP[..., :3]), 3, 16, DEEP[..., :3], 0),
    "RGBA of 16 bits without alpha": (png(DEEP[..., :4]), 3, 16, DEEP[..., :3], 0),
    "gray repeated": (png(DEEP[..., :1]), 3, 16, DEEP[..., [0, 0, 0]], 0),
    "gray and alpha of 16 bits": (png(DEEP[..., :2]), 3, 16, DEEP[..., [0, 0, 0]], 0),
    "gray and alpha to gray": (png(DEEP[..., :2]), 1, 16, DEEP[..., :1], 0),
    "luma of 16 bits": (png(DEEP[..., :3]), 1, 16, DEEP[..., :3] @ LUMA, 1.5),
    "the first page for RGB": (pages(DEEP_BANDS), 3, 16, DEEP[..., [0, 0, 0]], 0),
    "palette": (by_pillow(COLOURED, "GIF"), 3, 16, COLOURED * np.uint16(257), 0),
    "palette with alpha": (palette_png(), 4, 8, np.full((20, 30, 4), (9, 8, 7, 128)), 0),
    "black and white": (by_pillow(COLOURED[..., 0] > 0, "PNG"), 1, 12, np.full((20, 30, 1), 4095), 0),
    "CMYK": (by_pillow(np.zeros((20, 30, 3), np.uint8), "TIFF", mode="CMYK"), 3, 16, np.zeros((20, 30, 3)), 0),
    "JPEG for 16 bits": (by_pillow(np.full((20, 30, 3), 99, np.uint8), "JPEG"), 3, 16, np.full((20, 30, 3), 99 * 257), 257),
}  # fmt: skip


@pytest.mark.parametrize(
    ("data", "channels", "depth", "expected", "within"), DECODED.values(), ids=DECODED
)
def test_what_was_written_comes_out(data, channels, depth, expected, within):
    image = decode(data, channels=channels, bit_depth=depth)
    assert image.pixels.dtype == (np.uint8 if depth == 8 else np.uint16)
    assert image.pixels.shape == (20, 30, channels)
    assert image.bit_depth == depth
    expected = np.asarray(expected).reshape(20, 30, -1)
    np.testing.assert_allclose(image.pixels, expected, rtol=0, atol=within)


RGB = png(SHALLOW[..., :3])
REFUSED = [
    (RGB, 4, 8, "an image of 4 bands, got one of 3"),
    (by_pillow(SHALLOW[..., :3], "JPEG"), 4, 8, "an image of 4 bands, got one of 3"),
    (png(SHALLOW[..., :1]), 10, 8, "an image of 10 bands, got one of 1"),
    (png(SHALLOW[..., :4]), 10, 8, "an image of 10 bands, got one of 4"),
    (pages(BANDS[:9]), 10, 8, "10 pages of one band each, got 9 pages"),
    (pages(BANDS), 9, 8, "9 pages of one band each, got more pages"),
    (pages(BANDS), 64, 8, "64 pages of one band each, got 10 pages"),
    (pages([*BANDS[:3], BANDS[3][:9]]), 4, 8, "one size, kind and orientation"),
    (pages([*BANDS[:3], DEEP_BANDS[3]]), 4, 8, "one size, kind and orientation"),
    (pages([SHALLOW[..., :3]] * 4), 4, 8, "4 pages of one band each, got mode RGB"),
    (tiff(SHALLOW, photometric=1, extra=[0] * 9), 10, 8, "a gray page for each of 10 bands"),
    (tiff(SHALLOW[..., :5], photometric=2, extra=[0, 0]), 5, 8, "got 5 samples"),
    (tiff(DEEP[..., :3], photometric=2, planes=True), 3, 16, "got planes"),
    (tiff(DEEP[..., :4], photometric=5), 4, 16, "got 16 bits of mode CMYK"),
    (png(DEEP[..., :1]), 1, 12, "at most 4095, as the model's bit_depth is 12, got 65535"),
    (b"", 4, 8, "got no bytes"),
    (RGB[:-30], 3, 16, "ends before its IEND"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "channels", "depth", "said"), REFUSED)
def test_what_does_not_fit_the_model_is_refused(data, channels, depth, said):
    with pytest.raises(ImageError) as caught:
        decode(data, channels=channels, bit_depth=depth)
    assert said in str(caught.value)


def test_more_bands_are_as_many_pixels_fewer():
    data = pages(BANDS)
    assert decode(data, channels=10, max_pixels=1500).width == 30
    with pytest.raises(ImageError, match="expected an image of 1 to 599 pixels"):
        decode(data, channels=10, max_pixels=1499)


UPRIGHT = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: stored[::-1].swapaxes(0, 1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: stored[:, ::-1].swapaxes(0, 1),
}
ORIENTED = {
    "gray PNG": (lambda o: png(DEEP[..., :1], o), DEEP[..., :1]),
    "colour PNG": (lambda o: png(DEEP[..., :3], o), DEEP[..., :3]),
    "RGBA PNG": (lambda o: png(DEEP[..., :4], o), DEEP[..., :4]),
    "gray TIFF": (lambda o: by_pillow(DEEP[..., 0], "TIFF", o), DEEP[..., :1]),
    "compressed": (lambda o: by_pillow(DEEP[..., 0], "TIFF", o, compression="tiff_lzw"), DEEP[..., :1]),
    "colour TIFF": (lambda o: tiff(DEEP[..., :3], photometric=2, orientation=o), DEEP[..., :3]),
    "RGBA TIFF": (lambda o: by_pillow(SHALLOW[..., :4], "TIFF", o), SHALLOW[..., :4]),
    "no alpha": (lambda o: tiff(SHALLOW[..., :4], photometric=2, extra=[0], orientation=o), SHALLOW[..., :4]),
    "pages": (lambda o: pages(DEEP_BANDS, o), DEEP),
}  # fmt: skip


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("write", "stored"), ORIENTED.values(), ids=ORIENTED)
def test_orientation_turns_every_band_or_is_ignored(write, stored, orientation):
    options = {"channels": stored.shape[2], "bit_depth": 8 * stored.itemsize}
    image = decode(write(orientation), **options)
    np.testing.assert_array_equal(image.pixels, UPRIGHT[orientation](stored))
    np.testing.assert_array_equal(
        decode(write(orientation), exif="ignore", **options).pixels, stored
    )


def damaged(data, index):
    """Cut short, or with some bytes changed; the same for a number."""
    choice = random.Random(index)
    if index % 3 == 0:
        return data[: choice.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(index % 7 + 1):
        low = 0 if index % 3 == 1 else max(len(data) - 300, 0)
        changed[choice.randrange(low, len(data))] = choice.randrange(256)
    return bytes(changed)


def decode_damaged():
    """Decode many damaged files, which a test does in a process of its own."""
    for name, (data, channels, depth, *_) in DECODED.items():
        if "JPEG" in name:  # OpenCV's own decoder writes what it thinks
            continue
        for index in range(40):
            with contextlib.suppress(ImageError):
                decode(damaged(data, index), channels=channels, bit_depth=depth)
    return "done"


def test_damaged_files_are_refused_and_nothing_is_written_to_stderr():
    code = "from tests.unit.tasks.test_multiband import decode_damaged; print(decode_damaged())"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize(
    ("pixels", "depth", "expected"),
    [
        (SHALLOW[..., :3], 8, SHALLOW[..., :3]),
        (SHALLOW[..., :1], 8, SHALLOW[..., [0, 0, 0]]),
        (SHALLOW[..., :2], 8, SHALLOW[..., [0, 0, 0]]),
        (DEEP, 16, SHALLOW[..., :3]),
        (TWELVE, 12, SHALLOW[..., :3]),
    ],
)
def test_people_see_three_bands_of_8_bits(pixels, depth, expected):
    image = Image(pixels, bit_depth=depth)
    np.testing.assert_array_equal(image.rgb(), expected)
    assert not np.shares_memory(image.rgb(), pixels)


_SPEC = InputSpec(
    name="images", size_wh=(30, 26), channels=10, mean=tuple(np.arange(10) / 10), std=(0.5,) * 5 + (2.0,) * 5
)  # fmt: skip


def spec(**changes):
    return msgspec.structs.replace(_SPEC, **changes)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("pixels", "depth"), [(SHALLOW, 8), (TWELVE, 12), (DEEP, 16)])
def test_a_letterbox_of_many_bands_equals_the_formula(pixels, depth, layout):
    scale = 1 / (2**depth - 1)
    result = spec(resize="letterbox", bit_depth=depth, scale=scale, layout=layout)
    tensor, _ = preprocess(Image(pixels, bit_depth=depth), result)
    expected = np.empty((10, 26, 30))
    for band in range(10):
        for y in range(26):
            for x in range(30):
                value = round(114 / 255 * (2**depth - 1))
                if 3 <= y < 23:
                    value = int(pixels[y - 3, x, band])
                expected[band, y, x] = (value * scale - result.mean[band]) / result.std[band]
    if layout == "nhwc":
        expected = expected.transpose(1, 2, 0)
    np.testing.assert_allclose(tensor, expected, atol=1e-6)


@pytest.mark.parametrize("channels", [2, 4, 10, 64])
@pytest.mark.parametrize(
    ("interpolation", "antialias"), [("linear", False), ("area", False), ("area", True)]
)
def test_shrinking_to_half_takes_the_mean_of_four(channels, interpolation, antialias):
    pixels = np.random.default_rng(3).integers(0, 16000, (8, 12, channels), np.uint16) * 4
    result = InputSpec(
        name="x",
        size_wh=(6, 4),
        channels=channels,
        bit_depth=16,
        dtype="uint16",
        layout="nhwc",
        interpolation=interpolation,
        antialias=antialias,
    )
    tensor, _ = preprocess(Image(pixels, bit_depth=16), result)
    assert tensor.dtype == np.uint16
    expected = pixels.reshape(4, 2, 6, 2, channels).mean(axis=(1, 3))
    np.testing.assert_array_equal(tensor, expected)


def triangle(old, new):
    """Weights (new, old) of an antialiased linear filter, by its definition."""
    ratio = old / new
    centres = (np.arange(new)[:, None] + 0.5) * ratio
    weights = np.maximum(1 - np.abs(np.arange(old) + 0.5 - centres) / ratio, 0)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("pixels", [DEEP, DEEP[..., :3], DEEP[..., :1], SHALLOW, SHALLOW[..., :4]])
def test_the_antialiased_filter_takes_each_band_by_itself(pixels):
    depth, channels = 8 * pixels.itemsize, pixels.shape[2]
    result = spec(
        size_wh=(11, 7), antialias=True, layout="nhwc", channels=channels, bit_depth=depth
    )
    result = msgspec.structs.replace(result, dtype="uint8" if depth == 8 else "uint16")
    tensor, _ = preprocess(Image(pixels, bit_depth=depth), result)
    expected = np.einsum("yh,xw,hwc->yxc", triangle(20, 7), triangle(30, 11), pixels)
    # Pillow rounds after each axis where there are 8 bits
    np.testing.assert_allclose(tensor, expected, rtol=0, atol=0.51 if depth == 16 else 1.01)


def test_a_cubic_filter_stays_within_the_values():
    pixels = np.where(DEEP > 30000, 4095, 0).astype(np.uint16)
    result = spec(
        size_wh=(11, 7), antialias=True, interpolation="cubic", bit_depth=12, dtype="uint16"
    )
    tensor, _ = preprocess(Image(pixels, bit_depth=12), result)
    assert tensor.max() <= 4095


@pytest.mark.parametrize(("channels", "order"), [(3, [2, 1, 0]), (4, [2, 1, 0, 3]), (1, [0])])
def test_bgr_reverses_the_first_three(channels, order):
    result = InputSpec(
        name="x",
        size_wh=(30, 20),
        channels=channels,
        color="bgr",
        bit_depth=16,
        dtype="uint16",
        layout="nhwc",
    )
    tensor, _ = preprocess(Image(DEEP[..., :channels], bit_depth=16), result)
    np.testing.assert_array_equal(tensor, DEEP[..., :channels][..., order])


def test_the_warm_up_s_image_is_what_a_file_would_give():
    image = plain(spec(bit_depth=12))
    assert (image.pixels.shape, image.pixels.dtype) == ((26, 30, 10), np.uint16)
    assert (image.pixels == round(114 / 255 * 4095)).all()
