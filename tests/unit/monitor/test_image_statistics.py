"""Image statistics: known images have known values, whatever their size, bit depth or bands."""

import cv2
import numpy as np
import pytest

from quadriga.monitor.image_statistics import measure_image
from quadriga.store.records.records import IMAGE_STATISTICS

RNG = np.random.default_rng(7)
NOISE = RNG.integers(0, 256, (300, 400, 3), np.uint8)


def measured(pixels, bit_depth=None) -> dict[str, float]:
    statistics = measure_image(pixels, bit_depth)
    assert statistics.dtype == np.float32
    assert np.isfinite(statistics).all()
    return dict(zip(IMAGE_STATISTICS, statistics.tolist(), strict=True))


def flat(*rgb: int) -> np.ndarray:
    return np.full((60, 80, 3), rgb, np.uint8)


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [
        (flat(0, 0, 0), {"brightness": 0, "saturation": 0, "dark": 1, "burnt": 0}),
        (flat(255, 255, 255), {"brightness": 100, "saturation": 0, "dark": 0, "burnt": 1}),
        (flat(119, 119, 119), {"brightness": 50.0, "colour_a": 0, "colour_b": 0, "dark": 0}),
        (flat(255, 0, 0), {"brightness": 53.2, "saturation": 1, "colour_a": 80.1, "colour_b": 67.2}),
        (flat(0, 0, 255), {"brightness": 32.3, "colour_a": 79.2, "colour_b": -107.9}),
    ],
    ids=["black", "white", "gray", "red", "blue"],
)  # fmt: skip
def test_flat_images_have_the_statistics_of_their_colour(pixels, expected) -> None:
    statistics = measured(pixels)
    assert {name: statistics[name] for name in expected} == pytest.approx(expected, abs=0.3)
    assert (statistics["contrast"], statistics["blur"]) == pytest.approx((0, 0), abs=1e-3)


def test_half_black_and_half_white_is_all_contrast() -> None:
    pixels = flat(0, 0, 0)
    pixels[:, 40:] = 255
    statistics = measured(pixels)
    expected = {"brightness": 50, "contrast": 50, "dark": 0.5, "burnt": 0.5}
    assert {name: statistics[name] for name in expected} == pytest.approx(expected, abs=0.01)


def test_blur_rises_with_blurring_and_night_is_darker() -> None:
    blurred = [measured(cv2.GaussianBlur(NOISE, (0, 0), sd))["blur"] for sd in (0.5, 1, 2, 4)]
    assert blurred == sorted(blurred)
    assert blurred[-1] - blurred[0] > 3
    night = measured((NOISE // 5).astype(np.uint8))
    assert night["brightness"] < measured(NOISE)["brightness"] / 2


@pytest.mark.parametrize("bits", [8, 10, 16])
def test_bit_depth_does_not_change_statistics(bits) -> None:
    values = RNG.integers(0, 200, (90, 120, 3))
    deep = (values * (2**bits - 1) / 255).astype(np.uint16)
    expected = measured(values.astype(np.uint8))
    assert measured(deep, bits) == pytest.approx(expected, rel=0.02, abs=0.3)
    if bits == 16:
        assert measured(deep) == measured(deep, 16)


def test_bands_are_gray_or_the_first_three() -> None:
    gray = NOISE[..., 0]
    alike = [gray, gray[..., None], NOISE[..., [0, 2]], np.repeat(gray[..., None], 3, axis=2)]
    assert all(measured(image) == pytest.approx(measured(gray), abs=1e-3) for image in alike)
    for more in (4, 7):
        extra = np.concatenate([NOISE, np.zeros((300, 400, more - 3), np.uint8)], axis=2)
        assert measured(extra) == measured(NOISE)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5000), (3000, 2), (37, 41)])
def test_images_of_any_shape_have_statistics(shape) -> None:
    statistics = measured(np.full((*shape, 3), 119, np.uint8))
    assert statistics["brightness"] == pytest.approx(50, abs=0.5)


def test_image_size_hardly_changes_statistics() -> None:
    scene = cv2.GaussianBlur(RNG.integers(0, 256, (768, 1024, 3), np.uint8), (0, 0), 6)
    larger = cv2.resize(scene, (2560, 1920), interpolation=cv2.INTER_CUBIC)
    expected = measured(scene)
    assert measured(larger) == pytest.approx(expected, rel=0.05, abs=0.2)
