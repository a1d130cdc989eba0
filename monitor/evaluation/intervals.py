"""95 % intervals of metrics, from resamples of the images.

A share of independent images has the exact interval of a binomial. Any other metric between two bounds has Wilson's
interval for as many images as would vary like the resamples do, so that it is neither empty nor beyond a bound near the
ends of the scale. `bench/interval_coverage.py` measures how often intervals hold the true value.
"""

import math
from typing import NamedTuple

import numpy as np

from quadriga.tasks.arrays import Float64Array

MIN_UNITS = 30
"""Smallest number of images that a metric other than a share has an interval for."""

MIN_OBJECTS = 40
"""Smallest number of annotated objects that a metric of objects has an interval for."""

_QUANTILE = 0.975
_SMALL_SAMPLE, _SMALL_SAMPLE_OF_OBJECTS = 6.0, 18.0
"""Images or objects that resampling misses: a standard error over n images is taken (1 + 6 / n) times as large, over m
objects (1 + 18 / m) times."""

_SLOW_BIAS = 3.3
"""Ratio of the bias of a maximum of noisy values, such as an interpolated precision, to what resampling shows of it."""


class Interval(NamedTuple):
    """A 95 % interval, or the reason why there is none."""

    bounds: tuple[float, float] | None = None
    method: str | None = None
    """`exact`, `bootstrap` or `conservative`."""
    reason: str = ""


def share_interval(share: float, trials: int) -> Interval:
    """Return the exact interval of a share of independent trials, which holds the true share at least 95 % of times.

    Source: Clopper and Pearson, Biometrika 26, 1934.
    """
    if not math.isfinite(share) or trials <= 0:
        return Interval()
    from scipy.special import betaincinv  # noqa: PLC0415 - slow to load

    successes = round(share * trials)
    tail = 1 - _QUANTILE
    low = betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, trials - successes, _QUANTILE) if successes < trials else 1.0
    return Interval((float(low), float(high)), "exact")


def resampled_interval(
    values: Float64Array,
    images: int,
    *,
    upper: float = 1.0,
    trials_per_image: float = math.inf,
    objects: float | None = None,
) -> Interval:
    """Return the interval of a metric from 0 to `upper`, from its value and its resamples (1 + B,).

    The interval reaches as far as either of two assumptions about the bias says: that resampling shows all of it, as
    of smooth metrics, or less than a third, as of average precision. Of metrics of objects the bias moves one end only:
    average precision is rounded to steps of recall, and what resampling shows may come from a step near by. Their
    interval also holds the middle 95 % of the resamples, which follow every step.

    Args:
        values: The metric and its resamples (1 + B,).
        images: Number of images.
        upper: Largest possible value of the metric.
        trials_per_image: Largest number of independent trials that an image may count as: in a sample without errors
            the resamples vary less than other samples do.
        objects: Number of objects of one label that the metric is worth; None for metrics of images.
    """
    value, resampled = float(values[0]), values[1:][np.isfinite(values[1:])]
    if (absent := _absent(value, resampled, images)) is not None:
        return absent
    missed = None if objects is None else _SMALL_SAMPLE_OF_OBJECTS / objects
    error, quantile = _standard_error(resampled, images, missed) / upper, _t_quantile(images)
    if error == 0.0 and 0.0 < value < upper:
        return Interval(reason="nothing varies between the images")
    bias = (float(resampled.mean()) - value) / upper
    centre = value / upper
    least = 1.0 if objects is None else 0.0
    low_centre = centre - bias * (_SLOW_BIAS if bias > 0 else least)
    high_centre = centre - bias * (_SLOW_BIAS if bias < 0 else least)
    most = trials_per_image * images
    low, _ = _wilson_like(low_centre, error, images, quantile=quantile, most=most)
    _, high = _wilson_like(high_centre, error, images, quantile=quantile, most=most)
    low, high = min(low, centre) * upper, max(high, centre) * upper
    if objects is not None:
        # Near a step of recall, resamples lie on either side: a standard error falls short of it, quantiles do not.
        low = min(low, float(np.quantile(resampled, 1 - _QUANTILE)))
        high = max(high, float(np.quantile(resampled, _QUANTILE)))
    return Interval((low, high), "bootstrap")


def noise_interval(values: Float64Array, noise: Float64Array, images: int) -> Interval:
    """Return the interval of a sum of absolute values, which noise only makes larger.

    The true value lies no further below than the noise is large, by the triangle inequality, so that the interval
    holds it in more than 95 % of samples.

    Args:
        values: The metric and its resamples (1 + B,).
        noise: Sum of the absolute differences between the terms of each resample and of the metric, (1 + B,).
        images: Number of images.
    """
    value, resampled = float(values[0]), values[1:][np.isfinite(values[1:])]
    if (absent := _absent(value, resampled, images)) is not None:
        return absent
    reach = _t_quantile(images) * _standard_error(resampled, images)
    differences = noise[1:][np.isfinite(noise[1:])]
    below = float(np.quantile(differences, _QUANTILE)) * math.sqrt(images / (images - 1))
    low, high = value - max(below, reach), value + reach
    return Interval((max(low, 0.0), min(high, 1.0)), "conservative")


def difference_interval(values: Float64Array, images: int, *, is_share: bool = False) -> Interval:
    """Return the interval of a difference between two models on the same images, from value and resamples (1 + B,).

    Of shares, one image is added that each model alone gets right: otherwise models that agree on all but few images
    would differ by more than they do (Bonett and Price, Journal of Educational and Behavioral Statistics 37, 2012).
    """
    value, resampled = float(values[0]), values[1:][np.isfinite(values[1:])]
    if (absent := _absent(value, resampled, images)) is not None:
        return absent
    variance = _standard_error(resampled, images) ** 2
    if is_share:
        variance += 2.0 / (images + 2) ** 2
    if variance == 0.0:
        return Interval(reason="the models do not differ on any image")
    reach = _t_quantile(images) * math.sqrt(variance)
    centre = 2 * value - float(resampled.mean())
    return Interval((min(centre - reach, value), max(centre + reach, value)), "bootstrap")


def _absent(value: float, resampled: Float64Array, images: int) -> Interval | None:
    """Return the interval of a metric that has none; None where it can have one."""
    if not math.isfinite(value) or not resampled.size:
        return Interval()
    if images < MIN_UNITS:
        return Interval(reason=f"fewer than {MIN_UNITS} images")
    return None


def _standard_error(resampled: Float64Array, images: int, missed: float | None = None) -> float:
    """Return the standard error of resamples, larger by what they miss, as a share of it."""
    spread = float(resampled.std(ddof=1)) if resampled.size > 1 else 0.0
    # Equal values may differ in their last bits, as sums of the same numbers in another order do.
    if spread <= 1e-12 * max(1.0, float(np.abs(resampled).max())):
        return 0.0
    return (
        spread
        * math.sqrt(images / (images - 1))
        * (1 + (_SMALL_SAMPLE / images if missed is None else missed))
    )


def _t_quantile(images: int) -> float:
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to load

    return float(stdtrit(images - 1, _QUANTILE))


def _wilson_like(
    centre: float, error: float, images: int, *, quantile: float, most: float
) -> tuple[float, float]:
    """Return Wilson's interval around a centre, for the number of trials that have this standard error.

    Source: Wilson, Journal of the American Statistical Association 22, 1927.
    """
    centre = min(max(centre, 0.0), 1.0)
    spread = centre * (1 - centre)
    trials = min(spread / error**2 if error > 0 and spread > 0 else images, most)
    square = quantile**2
    middle = (centre + square / (2 * trials)) / (1 + square / trials)
    reach = quantile * math.sqrt(spread / trials + square / (4 * trials**2))
    reach /= 1 + square / trials
    return max(middle - reach, 0.0), min(middle + reach, 1.0)
