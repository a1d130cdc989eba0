"""Named checks of a tool, printed as JSON lines; the script reads from standard input what the test describes."""

import json
import math
import sys
import traceback
from collections.abc import Callable
from typing import Any

described: dict[str, Any] = json.load(sys.stdin)


def check(name: str) -> Callable[[Callable[[], Any]], None]:
    """Run the decorated function as a check, and print its line."""

    def run(function: Callable[[], Any]) -> None:
        line: dict[str, Any] = {"check": name, "ok": True, "detail": ""}
        try:
            function()
        except Exception:  # noqa: BLE001 - a failing check is the result
            line |= {"ok": False, "detail": traceback.format_exc()[-1500:]}
        print(json.dumps(line), flush=True)

    return run


def near(found: Any, expected: Any, tolerance: float = 1e-3) -> bool:
    """Compare sequences of numbers, in order."""
    pairs = list(zip(found, expected, strict=True))
    return all(abs(float(a) - float(b)) <= tolerance for a, b in pairs)


def oriented_corners(item: dict[str, Any], width: float, height: float) -> list[float]:
    """Return x and y of the four corners of an oriented box, clockwise on the screen from its own top left."""
    half_w, half_h = item["w"] * width / 2, item["h"] * height / 2
    cosine, sine = math.cos(item["r"]), math.sin(item["r"])
    offsets = ((-half_w, -half_h), (half_w, -half_h), (half_w, half_h), (-half_w, half_h))
    return [
        value
        for dx, dy in offsets
        for value in (
            item["cx"] * width + dx * cosine - dy * sine,
            item["cy"] * height + dx * sine + dy * cosine,
        )
    ]
