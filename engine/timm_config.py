"""config.json of timm, read as fields of `tasks.specification.InputSpec`.

Source: timm 1.0, `data/config.py` resolve_data_config and `data/transforms_factory.py`
transforms_imagenet_eval.
"""

from collections.abc import Mapping
from typing import Any

from engine.session import LoadError

_INTERPOLATIONS = {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}


def input_from_timm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the pre-processing of a timm model; empty where the file is none of timm's.

    Raises:
        LoadError: A value is one that no specification can express.
    """
    written = config.get("pretrained_cfg")
    if not isinstance(written, Mapping):
        return {}
    fields: dict[str, Any] = {"antialias": True}
    size = written.get("input_size")
    if isinstance(size, list) and len(size) == 3:
        fields["size_wh"] = (size[2], size[1])
    for name in ("mean", "std"):
        if isinstance(written.get(name), list):
            fields[name] = tuple(map(float, written[name]))
    interpolation = written.get("interpolation", "bicubic")
    if interpolation not in _INTERPOLATIONS:
        raise _error("interpolation", ", ".join(_INTERPOLATIONS), interpolation)
    fields["interpolation"] = _INTERPOLATIONS[interpolation]
    fraction = written.get("crop_pct") or 0.875
    mode = written.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise _error("crop_mode", "center, squash", mode)
    fields["crop_fraction"] = float(fraction)
    fields["resize"] = "shortest_crop" if mode == "center" else "stretch_crop"
    return fields


def _error(name: str, allowed: str, value: Any) -> LoadError:
    return LoadError(
        f"expected {name} in config.json of timm to be one of {allowed}, got {value!r:.80}: "
        "describe the input in model.toml, [input]"
    )
