import itertools
from typing import Any, get_args

import cv2
import msgspec
import numpy as np
import PIL.Image
import pytest

from quadriga.tasks.image import Image, ImageError
from quadriga.tasks.resize import Affine, check_shape, image_placement, preprocess
from quadriga.tasks.specification import InputSpec, Resize

_RANDOM = np.random.default_rng(5)
_PHOTO = cv2.GaussianBlur(_RANDOM.integers(0, 256, (90, 133, 3), dtype=np.uint8), (9, 9), 0)
_SPEC = InputSpec(name="images", size_wh=(64, 64))


def spec(**changes: Any):
    return msgspec.structs.replace(_SPEC, **changes)


# image w, h; network w, h; resized w, h; left, top: worked out by hand
LETTERBOX = [
    ((640, 480), (640, 640), (640, 480), (0, 80)),
    ((640, 480), (320, 320), (320, 240), (0, 40)),
    ((480, 640), (640, 640), (480, 640), (80, 0)),
    ((100, 100), (640, 640), (640, 640), (0, 0)),  # scales up too
    ((1920, 1080), (640, 640), (640, 360), (0, 140)),
    ((810, 1080), (640, 640), (480, 640), (80, 0)),
    ((500, 375), (416, 416), (416, 312), (0, 52)),
    ((333, 500), (640, 640), (426, 640), (107, 0)),
    ((101, 100), (64, 64), (64, 63), (0, 0)),  # 1 px to fill: 0 before, 1 after
    ((100, 101), (64, 64), (63, 64), (0, 0)),
    ((64, 61), (64, 64), (64, 61), (0, 1)),  # 3 px to fill: 1 before, 2 after
    ((5000, 1), (64, 64), (64, 1), (0, 31)),  # never thinner than a pixel
    ((1, 1), (64, 32), (32, 32), (16, 0)),
    ((200, 100), (96, 64), (96, 48), (0, 8)),
]


@pytest.mark.parametrize(("image_wh", "network_wh", "resized_wh", "start"), LETTERBOX)
def test_letterbox_places_the_image_as_worked_out_by_hand(image_wh, network_wh, resized_wh, start):
    affine, size_wh = image_placement(*image_wh, spec(resize="letterbox", size_wh=network_wh))
    assert size_wh == resized_wh
    assert (affine.sx, affine.sy) == (resized_wh[0] / image_wh[0], resized_wh[1] / image_wh[1])
    assert (affine.px, affine.py) == start


def letterbox_by_ultralytics(pixels, network_wh):
    """The published steps, with copyMakeBorder and both margins."""
    height, width = pixels.shape[:2]
    ratio = min(network_wh[1] / height, network_wh[0] / width)
    new_w, new_h = max(round(width * ratio), 1), max(round(height * ratio), 1)
    free_w, free_h = (network_wh[0] - new_w) / 2, (network_wh[1] - new_h) / 2
    if (width, height) != (new_w, new_h):
        pixels = cv2.resize(pixels, (new_w, new_h), interpolation=cv2.INTER_LINEAR)
    top, bottom = round(free_h - 0.1), round(free_h + 0.1)
    left, right = round(free_w - 0.1), round(free_w + 0.1)
    return cv2.copyMakeBorder(
        pixels, top, bottom, left, right, cv2.BORDER_CONSTANT, value=(114, 114, 114)
    )


@pytest.mark.parametrize(
    ("image_wh", "network_wh"),
    list(
        itertools.product([(133, 90), (90, 133), (64, 64), (7, 64), (65, 3)], [(64, 64), (96, 64)])
    ),
)
def test_letterbox_pixels_equal_an_independent_implementation(image_wh, network_wh):
    pixels = cv2.resize(_PHOTO, image_wh)
    tensor, _ = preprocess(Image(pixels), spec(resize="letterbox", size_wh=network_wh))
    expected = letterbox_by_ultralytics(pixels, network_wh).transpose(2, 0, 1) / 255
    assert tensor.dtype == np.float32
    np.testing.assert_allclose(tensor, expected, atol=1e-6)


def test_letterbox_of_yolox_truncates_and_starts_at_the_corner():
    pixels = _PHOTO  # 133 x 90 to 64 x 43.3
    tensor, affine = preprocess(
        Image(pixels), spec(resize="letterbox_topleft", color="bgr", scale=1.0)
    )
    expected = np.full((64, 64, 3), 114, np.uint8)
    expected[:43] = cv2.resize(pixels[..., ::-1], (64, 43))
    np.testing.assert_array_equal(tensor, expected.transpose(2, 0, 1))
    assert (affine.sx, affine.sy, affine.px, affine.py) == (64 / 133, 64 / 133, 0, 0)


def torchvision_resize_and_crop(pixels, shortest, crop, resample):
    height, width = pixels.shape[:2]
    if width <= height:
        size = shortest, int(shortest * height / width)
    else:
        size = int(shortest * width / height), shortest
    resized = np.asarray(PIL.Image.fromarray(pixels).resize(size, resample))
    top, left = round((size[1] - crop) / 2), round((size[0] - crop) / 2)
    return resized[top : top + crop, left : left + crop]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("crop", "shortest", "fraction"),
    [(56, 64, 0.875), (64, 64, 1.0), (224, 232, 224 / 232), (48, 50, 0.95)],
)
def test_shortest_crop_equals_torchvision(crop, shortest, fraction, transposed):
    pixels = np.ascontiguousarray(_PHOTO.transpose(1, 0, 2)) if transposed else _PHOTO
    expected = torchvision_resize_and_crop(pixels, shortest, crop, PIL.Image.Resampling.BILINEAR)
    tensor, _ = preprocess(
        Image(pixels),
        spec(
            resize="shortest_crop",
            size_wh=(crop, crop),
            crop_fraction=fraction,
            antialias=True,
            dtype="uint8",
            layout="nhwc",
        ),
    )
    np.testing.assert_array_equal(tensor, expected)


# image w, h; shortest and longest side; size that PaddleOCR's DetResizeForTest gives, by hand
AT_LEAST = [
    ((640, 480), (736, 4000), (992, 736)),  # 981.3 to 31 x 32
    ((1200, 900), (736, 4000), (1216, 896)),  # large enough: rounded only
    ((900, 1200), (736, 4000), (896, 1216)),
    ((100, 40), (736, 4000), (1824, 736)),  # 1839 in floats, not 1840: 57.47 x 32
    ((1000, 20), (736, 4000), (4000, 64)),  # 36800 x 736, then 4000 x 79: 2.47 x 32
    ((10, 10), (20, 4000), (32, 32)),  # never less than the divisor
]


@pytest.mark.parametrize(("image_wh", "size_wh", "expected"), AT_LEAST)
def test_an_image_is_only_enlarged_to_its_shortest_side(image_wh, size_wh, expected):
    changes = {"resize": "shortest_at_least", "divisor_rounds": "nearest", "size_wh": size_wh}
    affine, resized_wh = image_placement(*image_wh, spec(**changes))
    assert resized_wh == affine.network_wh == expected
    assert (affine.px, affine.py) == (0, 0)


BORDERS = [("letterbox", (96, 64)), ("letterbox", (64, 96)), ("letterbox_topleft", (64, 64))]


@pytest.mark.parametrize(("resize", "network_wh"), BORDERS)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_border_may_lie_between_two_grey_levels(resize, network_wh, layout, dtype):
    """The mean of a normalised network as its border: exactly 0 after normalisation."""
    changes = {
        "resize": resize,
        "size_wh": network_wh,
        "layout": layout,
        "dtype": dtype,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.2, 0.3, 0.4),
    }
    exact, affine = preprocess(Image(_PHOTO), spec(pad_value=127.5, **changes))
    rounded, _ = preprocess(Image(_PHOTO), spec(pad_value=255, **changes))
    _, (width, height) = image_placement(133, 90, spec(**changes))
    inside = np.zeros(network_wh[::-1], bool)
    top, left = int(affine.py), int(affine.px)
    inside[top : top + height, left : left + width] = True
    if layout == "nhwc":
        exact, rounded = exact.transpose(2, 0, 1), rounded.transpose(2, 0, 1)
    assert not inside.all()
    np.testing.assert_array_equal(exact[:, inside], rounded[:, inside])
    assert not exact[:, ~inside].any()
    assert rounded[:, ~inside].all()


NARROW = [(1, 1), (5_000, 1), (1, 5_000), (1, 50_000_000)]


@pytest.mark.parametrize("image_wh", NARROW)
@pytest.mark.parametrize("resize", get_args(Resize))
def test_the_narrowest_images_have_a_place_or_are_refused(resize, image_wh):
    size_wh = (800, 1333) if resize == "shortest_longest" else (64, 64)
    spec = InputSpec(name="images", size_wh=size_wh, resize=resize)
    affine, resized_wh = image_placement(*image_wh, spec)
    assert min(*resized_wh, *affine.network_wh) > 0
    if resize == "shortest_crop" and image_wh == NARROW[-1]:
        with pytest.raises(ImageError, match="sides differ too much"):
            check_shape(*image_wh, spec)
    else:
        check_shape(*image_wh, spec)


def test_shortest_crop_of_an_oblong_input_covers_it():
    oblong = spec(resize="shortest_crop", size_wh=(96, 32), crop_fraction=1.0)
    affine, size_wh = image_placement(133, 90, oblong)
    assert size_wh == (96, 65)
    assert (affine.px, affine.py) == (0, -16)


@pytest.mark.parametrize(
    ("rounds", "crop", "image_wh", "start"),
    [  # image w, h; left, top: worked out by hand
        ("even", 72, (82, 143), (-5, -36)),
        ("down", 72, (82, 143), (-5, -35)),
        ("even", 72, (145, 82), (-36, -5)),
        ("down", 72, (145, 82), (-36, -5)),
        ("even", 81, (82, 82), (0, 0)),
        ("down", 81, (82, 85), (0, -2)),
    ],
)
def test_a_crop_of_an_odd_rest_starts_where_its_library_has_it(rounds, crop, image_wh, start):
    crop_spec = spec(size_wh=(crop, crop), crop_fraction=crop / 82, crop_rounds=rounds)
    affine, size_wh = image_placement(
        *image_wh, msgspec.structs.replace(crop_spec, resize="shortest_crop")
    )
    assert size_wh == image_wh
    assert (affine.px, affine.py) == start


@pytest.mark.parametrize(
    ("divisor", "rounds", "image_wh", "network_wh"),
    [  # without divisor 800 x 1066, 1333 x 800 and 1333 x 666
        (1, "up", (480, 640), (800, 1066)),
        (16, "down", (480, 640), (800, 1056)),
        (32, "up", (480, 640), (800, 1088)),
        (16, "down", (1000, 600), (1328, 800)),
        (32, "up", (1000, 600), (1344, 800)),
        (16, "down", (1000, 500), (1328, 656)),
        (32, "up", (1000, 500), (1344, 672)),
        (16, "down", (800, 800), (800, 800)),
    ],
)
def test_sides_go_to_multiples_of_the_divisor_by_a_stretch(divisor, rounds, image_wh, network_wh):
    affine, size_wh = image_placement(
        *image_wh,
        spec(
            resize="shortest_longest",
            size_wh=(800, 1333),
            divisor=divisor,
            divisor_rounds=rounds,
        ),
    )
    assert size_wh == affine.network_wh == network_wh
    assert (affine.sx, affine.sy) == (network_wh[0] / image_wh[0], network_wh[1] / image_wh[1])


RESIZES = ["letterbox", "letterbox_topleft", "stretch", "shortest_crop", "none"]
SIZES = [(1, 1), (640, 480), (481, 640), (3, 4000), (4000, 3), (20000, 17)]


@pytest.mark.parametrize(("resize", "image_wh"), list(itertools.product(RESIZES, SIZES)))
def test_boxes_come_back_to_where_they_were(resize, image_wh):
    affine = image_placement(*image_wh, spec(resize=resize, size_wh=(640, 512)))[0]
    boxes = _RANDOM.uniform(0, 1, (50, 4)) * (image_wh * 2)
    in_network = affine.to_network(boxes).astype(np.float32)
    # a float32 of a network pixel holds 2^-13; the scale may blow that up for extreme images
    tolerance = 1e-3 * max(1, 1 / affine.sx / 8, 1 / affine.sy / 8)
    np.testing.assert_allclose(affine.to_image(in_network), boxes, atol=tolerance)


@pytest.mark.parametrize("resize", RESIZES)
def test_a_marked_pixel_is_found_where_the_map_says(resize):
    pixels = np.zeros((120, 160, 3), np.uint8)
    pixels[60:68, 72:80] = 255
    tensor, affine = preprocess(Image(pixels), spec(resize=resize, size_wh=(320, 320), pad_value=0))
    rows, columns = np.nonzero(tensor[0] > 0.5)
    box = np.array([[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]])
    np.testing.assert_allclose(affine.to_image(box), [[72, 60, 80, 68]], atol=0.6)


def test_maps_of_no_points_and_of_single_points():
    affine = Affine(2, 4, 10, 20, 100, 50, (640, 640))
    assert affine.to_image(np.empty((0, 4), np.float32)).shape == (0, 4)
    np.testing.assert_array_equal(affine.to_network(np.array([3.0, 5.0])), [16, 40])
    np.testing.assert_array_equal(affine.to_image(np.array([[[16.0, 40.0]]])), [[[3, 5]]])


_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_normalisation_layout_and_colour_order_equal_the_plain_formula(layout, color):
    pixels = cv2.resize(_PHOTO, (64, 64))
    tensor, _ = preprocess(
        Image(pixels), spec(layout=layout, color=color, mean=_MEAN, std=_STD, scale=1 / 255)
    )
    ordered = pixels[..., ::-1] if color == "bgr" else pixels
    expected = (ordered / 255.0 - _MEAN) / _STD
    if layout == "nchw":
        expected = expected.transpose(2, 0, 1)
    assert tensor.flags.c_contiguous
    np.testing.assert_allclose(tensor, expected, atol=1e-5)


def test_a_half_precision_graph_gets_float16():
    tensor, _ = preprocess(Image(_PHOTO), spec(dtype="float16"))
    full, _ = preprocess(Image(_PHOTO), spec())
    assert tensor.dtype == np.float16
    np.testing.assert_allclose(tensor, full, atol=1e-3)


def test_a_uint8_graph_gets_raw_values():
    pixels = cv2.resize(_PHOTO, (64, 64))
    tensor, _ = preprocess(Image(pixels), spec(dtype="uint8", layout="nhwc", mean=_MEAN, std=_STD))
    assert tensor.dtype == np.uint8
    np.testing.assert_array_equal(tensor, pixels)


def test_one_channel_is_the_luma_of_itu_r_601():
    pixels = cv2.resize(_PHOTO, (64, 64))
    tensor, _ = preprocess(Image(pixels), spec(channels=1))
    assert tensor.shape == (1, 64, 64)
    np.testing.assert_allclose(tensor[0], pixels @ (0.299, 0.587, 0.114) / 255, atol=0.51 / 255)


def test_no_resize_keeps_the_size_of_the_image():
    tensor, affine = preprocess(Image(_PHOTO), spec(resize="none"))
    assert tensor.shape == (3, 90, 133)
    assert affine == Affine(1, 1, 0, 0, 133, 90, (133, 90))


@pytest.mark.parametrize(
    ("interpolation", "flag", "resample"),
    [
        ("nearest", cv2.INTER_NEAREST, PIL.Image.Resampling.NEAREST),
        ("linear", cv2.INTER_LINEAR, PIL.Image.Resampling.BILINEAR),
        ("cubic", cv2.INTER_CUBIC, PIL.Image.Resampling.BICUBIC),
        ("lanczos", cv2.INTER_LANCZOS4, PIL.Image.Resampling.LANCZOS),
        ("area", cv2.INTER_AREA, PIL.Image.Resampling.BOX),
    ],
)
def test_interpolation_is_opencv_or_with_antialias_pillow(interpolation, flag, resample):
    raw = {"dtype": "uint8", "layout": "nhwc", "interpolation": interpolation}
    plain, _ = preprocess(Image(_PHOTO), spec(**raw))
    np.testing.assert_array_equal(plain, cv2.resize(_PHOTO, (64, 64), interpolation=flag))
    filtered, _ = preprocess(Image(_PHOTO), spec(antialias=True, **raw))
    expected = np.asarray(PIL.Image.fromarray(_PHOTO).resize((64, 64), resample))
    np.testing.assert_array_equal(filtered, expected)
