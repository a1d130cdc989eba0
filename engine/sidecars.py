"""Pre-processing as sidecar files describe it, as fields of `InputSpec`."""

from collections.abc import Mapping
from typing import Any


def input_from_preprocessor(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read preprocessor_config.json of Hugging Face."""
    return {}


def input_from_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json of timm."""
    return {}
