"""Readers of request parameters, for the `options` of tasks: each takes one value out of a JSON object and checks it.

A parameter that is null counts as absent. Nothing is converted: `true` is no number, nor is `"0.5"`, except in
`TextNumbers`. Each raises `ParameterError` if the value is of another type, or not allowed.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class TextNumbers(dict[str, Any]):
    """Parameters of a protocol that has no fractions: where a number is expected, a text of one may stand for it."""


_JSON_NUMBER: msgspec.json.Decoder[int | float] = msgspec.json.Decoder(int | float)


class ParameterError(ValueError):
    """A parameter of a request has a value that is not allowed; the message says which are."""


def action(parameters: Mapping[str, Any], allowed: Sequence[str]) -> str:
    """Read `action`, one of `allowed`; by default the first one."""
    return choice(parameters, "action", allowed)


def choice(
    parameters: Mapping[str, Any], name: str, allowed: Sequence[str], default: str | None = None
) -> str:
    """Read a word, one of `allowed`; by default `default`, or the first one."""
    value = parameters.get(name)
    if value is None:
        return allowed[0] if default is None else default
    if not isinstance(value, str) or value not in allowed:
        raise _error(name, f"one of {', '.join(allowed)}", value)
    return value


def flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """Read `true` or `false`."""
    value = parameters.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _error(name, "true or false", value)
    return value


def whole_number(
    parameters: Mapping[str, Any], name: str, low: int, high: int, default: int
) -> int:
    """Read a whole number from `low` to `high`, both included; 5.0 counts as 5."""
    value = parameters.get(name)
    if value is None:
        return default
    numeric = _number(parameters, value)
    if numeric is None or not low <= numeric <= high or numeric % 1:
        raise _error(name, f"a whole number from {low} to {high}", value)
    return int(numeric)


def share(parameters: Mapping[str, Any], name: str, default: float) -> float:
    """Read a number from 0 to 1, both included."""
    return number(parameters, name, low=0, high=1, default=default)


def number(
    parameters: Mapping[str, Any], name: str, low: float, high: float, default: float
) -> float:
    """Read a finite number from `low` to `high`, both included."""
    value = parameters.get(name)
    if value is None:
        return default
    # a whole number beyond floats is out of range too; NaN fails the comparison
    numeric = _number(parameters, value)
    if numeric is None or not low <= numeric <= min(high, sys.float_info.max):
        range_text = f"from {low:g} to {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise _error(name, f"a number {range_text}", value)
    return float(numeric)


def texts(
    parameters: Mapping[str, Any], name: str, max_count: int, max_characters: int
) -> tuple[str, ...]:
    """Read a list of 1 to `max_count` texts; an absent one is none."""
    value = parameters.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not 1 <= len(value) <= max_count:
        raise _error(name, f"a list of 1 to {max_count} texts", value)
    for index, text in enumerate(value):
        if not isinstance(text, str) or len(text) > max_characters:
            raise _error(f"{name}[{index}]", f"a text of at most {max_characters} characters", text)
    return tuple(value)


def _number(parameters: Mapping[str, Any], value: Any) -> int | float | None:
    """Return a value as a number; None if it is none."""
    if isinstance(value, str) and isinstance(parameters, TextNumbers):
        try:
            return _JSON_NUMBER.decode(value)
        except (msgspec.MsgspecError, UnicodeError):
            return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _error(name: str, allowed: str, value: Any) -> ParameterError:
    got = repr(value)
    if len(got) > 60:
        got = got[:57] + "..."
    return ParameterError(f"expected parameters.{name} to be {allowed}, got {got}")


class BudgetError(ValueError):
    """A request would cost more than its budget; the message says of what."""


class Budget:
    """Units that one request may spend; None is any number.

    Args:
        limit: Maximum units.
        unit: Name of the units in the message, such as `tiles`.
    """

    def __init__(self, limit: int | None, unit: str) -> None:
        self._limit = limit
        self._unit = unit
        self._spent = 0

    def spend(self, units: int) -> None:
        """Count units of work that is about to be done.

        Raises:
            BudgetError: They exceed what remains.
        """
        if self._limit is not None and self._spent + units > self._limit:
            raise BudgetError(
                f"expected at most {self._limit} {self._unit} in a request, got {self._spent + units} or more"
            )
        self._spent += units
