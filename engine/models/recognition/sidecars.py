"""preprocessor_config.json of Hugging Face and config.json of timm, read as fields of `InputSpec`.

Fields that a file does not give are left out; settings that no specification can express are refused.

Source: transformers 4.57, `image_processing_*.py`; key names of earlier releases are taken too.
"""

import operator
from collections.abc import Mapping
from typing import Any

from quadriga.engine.models.runners.session import LoadError

PREPROCESSOR_FILE = "preprocessor_config.json"
TIMM_SOURCE = "config.json of timm"

_TIMM_INTERPOLATIONS = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "lanczos": "lanczos",
    "nearest": "nearest",
}
_TIMM_CROPS = {"center": "shortest_crop", "squash": "stretch_crop"}
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "linear", 3: "cubic", 4: "area"}
"""Interpolation by Pillow's number of the filter."""

_BY_SHORTEST = ("CLIP", "ConvNext", "Detr", "Yolos", "LeViT", "Levit", "PoolFormer", "MobileNet")
"""Processors that read a single number as the shortest side; all others read a square."""

_UNSUPPORTED = (
    *("do_affine_transform", "do_align_long_axis", "do_color_quantize"),
    *("do_crop_margin", "do_image_splitting", "keep_aspect_ratio"),
)
"""Options that change pixels in ways that `quadriga.tasks.specification.InputSpec` cannot express."""

_MAX_ASPECT = 10
"""Largest aspect ratio of an input given by its shortest side, to bound the memory of an image."""


def input_from_preprocessor(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translate an image processor's configuration."""
    for name in _UNSUPPORTED:
        if config.get(name):
            raise _error(name, "false, as no input does so", config[name])
    fields: dict[str, Any] = {"antialias": True, **_values(config)}
    if not config.get("do_resize", True):
        return {**fields, "resize": "none"}
    fields["interpolation"] = _choice("resample", config.get("resample", 2), _INTERPOLATIONS)
    return {**fields, **_geometry(config)}


def _values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read how values from 0 to 255 are normalised: channel order, scale, mean, standard deviation.

    MobileViT takes BGR. EfficientNet may start at -1, and divides by the deviation twice.
    """
    scale = _number(config, "rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0
    fields: dict[str, Any] = {"scale": scale}
    if config.get("do_normalize", "image_mean" in config):
        fields.update(mean=_three(config, "image_mean"), std=_three(config, "image_std"))
    else:
        fields.update(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if config.get("rescale_offset") and config.get("do_rescale", True):
        fields["mean"] = tuple(mean + 1 for mean in fields["mean"])
    if config.get("include_top", "EfficientNetImage" in _processor(config)):
        second_std = _three(config, "image_std")
        # (x - mean) / std / again, as one mean and one std
        fields["std"] = tuple(map(operator.mul, fields["std"], second_std))
    if config.get("do_flip_channel_order", "MobileViT" in _processor(config)):
        fields["color"] = "bgr"
    return fields


def _three(config: Mapping[str, Any], name: str) -> tuple[float, ...]:
    value = config.get(name)
    numbers: list[Any] = value if isinstance(value, list) else [value]
    if len(numbers) in (0, 2) or not all(map(_is_number, numbers)):
        raise _error(name, "one number, or one a channel", value)
    return tuple(map(float, numbers * 3 if len(numbers) == 1 else numbers))


def _geometry(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read how the image is resized to the network's size."""
    size = _size(config)
    if config.get("do_thumbnail") or size.keys() == {"max_height", "max_width"}:
        height = size.get("max_height") or size.get("height")
        width = size.get("max_width") or size.get("width")
        if height is None or width is None or not config.get("do_pad"):
            raise _error("size", "height and width with do_pad", config.get("size"))
        is_centred = bool(config.get("do_thumbnail"))
        resize = "letterbox" if is_centred else "letterbox_topleft"
        return {"resize": resize, "size_wh": (width, height), "pad_value": 0}
    pad_size = config.get("pad_size")
    if config.get("do_pad") and pad_size is not None:
        raise _error("pad_size", "null, or size to name max_height and max_width", pad_size)
    if "longest_edge" in size and "shortest_edge" in size:
        size_wh = size["shortest_edge"], size["longest_edge"]
        divisor: dict[str, Any] = {"divisor": config.get("size_divisor") or 1}
        if "Yolos" in _processor(config):
            divisor = {"divisor": 16, "divisor_rounds": "down"}
        return {"resize": "shortest_longest", "size_wh": size_wh, **divisor}
    if "shortest_edge" in size:
        return _shortest(config, size["shortest_edge"])
    if size.keys() == {"height", "width"}:
        return _stretched(config, (size["width"], size["height"]))
    raise _error(
        "size", "height and width, shortest_edge, or shortest_edge and longest_edge", config["size"]
    )


def _shortest(config: Mapping[str, Any], shortest: int) -> dict[str, Any]:
    """Read a resize by the shortest side, with or without a crop to a square."""
    crop_wh = _crop(config)
    if "ConvNext" in _processor(config):
        if shortest >= 384:
            return {"resize": "stretch", "size_wh": (shortest, shortest)}
        crop_wh = (shortest, shortest)
        shortest = int(shortest / _number(config, "crop_pct", 224 / 256))
    elif "PoolFormer" in _processor(config) and config.get("crop_pct") is not None:
        shortest = int(shortest / _number(config, "crop_pct", 0.9))
    elif "Levit" in _processor(config):
        shortest = int(256 / 224 * shortest)
    if crop_wh is None:
        longest = _MAX_ASPECT * shortest
        return {"resize": "shortest_longest", "size_wh": (shortest, longest), "divisor": 1}
    if crop_wh[0] != crop_wh[1]:
        raise _error("crop_size", "a square", config["crop_size"])
    if crop_wh[0] > shortest:
        raise _error("crop_size", f"at most {shortest}, the resized shortest side", crop_wh[0])
    return _cropped("shortest_crop", crop_wh, crop_wh[0] / shortest)


def _stretched(config: Mapping[str, Any], size_wh: tuple[int, int]) -> dict[str, Any]:
    crop_wh = _crop(config) or size_wh
    if crop_wh == size_wh:
        return {"resize": "stretch", "size_wh": size_wh}
    fraction = crop_wh[0] / size_wh[0]
    if crop_wh[1] / size_wh[1] != fraction or fraction > 1:
        raise _error("crop_size", f"of the shape of size {size_wh}, and no larger", crop_wh)
    return _cropped("stretch_crop", crop_wh, fraction)


def _cropped(resize: str, size_wh: tuple[int, int], fraction: float) -> dict[str, Any]:
    rounds = {"crop_fraction": fraction, "crop_rounds": "down"}
    return {"resize": resize, "size_wh": size_wh, **rounds}


def _crop(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return width and height of the centre crop; None if there is none."""
    if not config.get("do_center_crop"):
        return None
    value = config.get("crop_size")
    if isinstance(value, int) and not isinstance(value, bool):
        return value, value
    sides = _sides("crop_size", value)
    if sides.keys() != {"height", "width"}:
        raise _error("crop_size", "height and width", value)
    return sides["width"], sides["height"]


def _size(config: Mapping[str, Any]) -> dict[str, int]:
    """Convert `size` of any release to an object with named sides."""
    value = config.get("size")
    if isinstance(value, int) and not isinstance(value, bool):
        uses_shortest = any(word in _processor(config) for word in _BY_SHORTEST)
        if not uses_shortest and not config.get("do_center_crop"):
            return {"height": value, "width": value}
        longest = config.get("max_size")
        return {"shortest_edge": value} | ({"longest_edge": longest} if longest else {})
    if isinstance(value, list) and len(value) == 2:
        swapped = "Donut" in _processor(config)  # its lists are width, height
        width, height = value if swapped else value[::-1]
        return _sides("size", {"height": height, "width": width})
    return _sides("size", value)


def _sides(name: str, value: Any) -> dict[str, int]:
    if isinstance(value, dict) and value:
        sides = {key: side for key, side in value.items() if side is not None}
        if all(isinstance(side, int) and side > 0 for side in sides.values()):
            return sides
    raise _error(name, "a number or an object of numbers", value)


def _processor(config: Mapping[str, Any]) -> str:
    return str(config.get("image_processor_type") or config.get("feature_extractor_type") or "")


def _number(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name)
    if value is None:
        return default
    if not _is_number(value):
        raise _error(name, "a number", value)
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _choice(
    name: str, value: Any, choices: Mapping[Any, str], file: str = PREPROCESSOR_FILE
) -> str:
    if value not in [*choices]:  # JSON may hold an unhashable value
        allowed = ", ".join(f"{key} ({choices[key]})" for key in choices)
        raise _error(name, f"one of {allowed}", value, file)
    return choices[value]


def _error(name: str, allowed: str, value: Any, file: str = PREPROCESSOR_FILE) -> LoadError:
    return LoadError(f"expected {name} in {file} to be {allowed}, got {value!r:.80}")


def input_from_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the pre-processing of a timm model; empty if the file is not timm's.

    Source: timm 1.0, `data/config.py` resolve_data_config and `data/transforms_factory.py`
    transforms_imagenet_eval.
    """
    pretrained = config.get("pretrained_cfg")
    if not isinstance(pretrained, Mapping):
        return {}
    fields: dict[str, Any] = {"antialias": True}
    size = pretrained.get("input_size")
    if isinstance(size, list) and len(size) == 3:
        fields["size_wh"] = (size[2], size[1])
    for name in ("mean", "std"):
        if isinstance(pretrained.get(name), list):
            fields[name] = tuple(_timm_number(name, value) for value in pretrained[name])
    interpolation = pretrained.get("interpolation", "bicubic")
    fields["interpolation"] = _choice(
        "interpolation", interpolation, _TIMM_INTERPOLATIONS, TIMM_SOURCE
    )
    fields["crop_fraction"] = _timm_number("crop_pct", pretrained.get("crop_pct") or 0.875)
    mode = pretrained.get("crop_mode") or "center"
    return {**fields, "resize": _choice("crop_mode", mode, _TIMM_CROPS, TIMM_SOURCE)}


def _timm_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise _error(name, "of numbers", value, TIMM_SOURCE) from error
