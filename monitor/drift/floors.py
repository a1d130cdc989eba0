"""Smallest changes that matter, in the unit of a signal.

An effect is a distance over the spread of the baseline. Where a signal hardly varies, a change that nobody could notice
is a large effect; so a change has to reach a smallest shift in the signal's own unit, too.
"""

import numpy as np

from quadriga.tasks.arrays import Float64Array

NOTICEABLE = {
    "image.brightness": 0.5,
    "image.contrast": 0.5,
    "image.blur": 0.05,
    "image.saturation": 0.005,
    "image.colour_a": 0.5,
    "image.colour_b": 0.5,
    "image.dark": 0.005,
    "image.burnt": 0.005,
    "aspect": 0.02,
    "x": 0.005,
    "y": 0.005,
}
"""Shifts of image statistics and of boxes that a person or a network could notice, in their units.

Lightness and colours are CIELAB's, in which a difference of about 2.3 is just noticeable between two patches; means over
an image are judged four times as strictly. Blur is a logarithm: 0.05 is a variance of the edges that is 5 % smaller.
Aspect is width over height. The others are shares of pixels, of full saturation, or of the image's width and height.
"""

_FLOAT_NOISE = 1e-6
"""Rounding of float32 values, and of sums of them, as a share of their magnitude."""
_STEP_SHARE = 0.1
"""Share of the step between rounded values that a mean has to move."""
_TIED_SHARE = 0.9
"""Share of distinct values below which values are taken to be rounded to steps."""


def smallest_shift(name: str, baseline: Float64Array) -> float:
    """Return the smallest shift of a signal that matters, in the unit of its values.

    It is that of `NOTICEABLE` for image statistics and boxes. For others it follows from the resolution of the baseline: a tenth
    of the smallest step between rounded values, and a millionth of their magnitude.

    Args:
        name: Name of the signal.
        baseline: (N,) values of the baseline, finite; at least one.
    """
    if name in NOTICEABLE:
        return NOTICEABLE[name]
    noise = _FLOAT_NOISE * float(np.quantile(np.abs(baseline), 0.9))
    distinct = np.unique(baseline)
    if not 1 < len(distinct) < _TIED_SHARE * len(baseline):
        return noise
    return max(noise, _STEP_SHARE * float(np.diff(distinct).min()))
