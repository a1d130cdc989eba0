"""Named checks of one client, printed as JSON lines; what all client scripts share.

A script reads from standard input where the server is and what it serves (see `conftest.py`), and prints
one line a check: `{"check", "ok", "detail"}`, or `{"check", "awaits"}` where the server lacks a part.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS: dict[str, np.ndarray] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 7, 255]], np.uint8),
    "UINT16": np.array([[0, 7, 65535]], np.uint16),
    "UINT32": np.array([[0, 7, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 7, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 7, 127]], np.int8),
    "INT16": np.array([[-(2**15), 7, 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 7, 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 7, 2**63 - 1]], np.int64),
    "FP16": np.array([[-0.5, 1.25, 65504]], np.float16),
    "FP32": np.array([[-0.5, 0.1, 3e38]], np.float32),
    "FP64": np.array([[-0.5, 0.1, 1e300]], np.float64),
    "BYTES": np.array([["", "a b", "ä€😀"]], dtype=object),
}
"""One tensor of each datatype, for the models `identity-<datatype>`: input `x`, output `y`."""

NOT_FINITE = np.array([[np.nan, np.inf, -np.inf, -0.0]], np.float32)
LARGE = (np.arange(8 * 1024 * 1024, dtype=np.int64) % 8191).astype(np.float32).reshape(8, -1)
"""32 MiB."""
A, B = np.array([[1, 2, 3, 4]], np.float32), np.array([[10, 20, 40, 30]], np.float32)
"""Inputs of the model `sum`, which answers `total` and `difference`."""

Check = Callable[[], Any]


class Checks:
    """The table of one client's checks."""

    def __init__(self) -> None:
        self.server: dict[str, Any] = json.load(sys.stdin)
        sys.argv = sys.argv[:1]
        self._table: dict[str, tuple[tuple[str, ...], Check]] = {}

    def add(self, name: str, check: Check, *features: str) -> None:
        """Add a check that needs these features of the server."""
        assert name not in self._table, name
        self._table[name] = (features, check)

    def __call__(self, name: str, *features: str) -> Callable[[Check], Check]:
        """Add the decorated function as a check."""

        def decorate(check: Check) -> Check:
            self.add(name, check, *features)
            return check

        return decorate

    def image(self, task: str) -> bytes:
        """Read the sample image of a task."""
        return Path(self.server["images"][task]).read_bytes()

    def run(self) -> None:
        """Run all, and print a line for each."""
        for name, (features, check) in self._table.items():
            line: dict[str, Any] = {"check": name}
            awaited = sorted({*features} - {*self.server["features"]})
            if awaited:
                line["awaits"] = awaited
            else:
                begun = time.perf_counter()
                try:
                    check()
                except Exception as error:  # noqa: BLE001 - a failing check is the result
                    place = traceback.extract_tb(error.__traceback__)[-1]
                    shown = f"{type(error).__name__}: {error}"[:600]
                    line.update(
                        ok=False, detail=f"{shown} ({Path(place.filename).name}:{place.lineno})"
                    )
                else:
                    line.update(ok=True, detail=f"{time.perf_counter() - begun:.3f} s")
            print(json.dumps(line), flush=True)


def equal(actual: object, expected: object) -> None:
    """Demand the same type of elements, shape and values; NaN equals NaN."""
    if isinstance(expected, np.ndarray):
        array = np.asarray(actual)
        if expected.dtype == object:
            texts = [x.decode() if isinstance(x, bytes) else x for x in array.ravel()]
            assert texts == expected.ravel().tolist(), f"expected {expected}, got {array}"
        else:
            assert array.dtype == expected.dtype, f"expected {expected.dtype}, got {array.dtype}"
            np.testing.assert_array_equal(array, expected)
        assert array.shape == expected.shape, f"expected {expected.shape}, got {array.shape}"
    else:
        assert actual == expected, f"expected {expected!r:.200}, got {actual!r:.200}"


def within(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Demand that a condition holds soon."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"expected it within {seconds} s"
        time.sleep(0.05)
