"""Activation functions: logits to probabilities, without overflow."""

import numpy as np
import numpy.typing as npt


def sigmoid(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Turn logits, float of any type and shape, into probabilities; NaN stays NaN."""
    # the exponent is never positive, so that no power overflows
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small))


def softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Turn logits (..., N) into probabilities that sum to 1; NaN if a logit is not finite."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
