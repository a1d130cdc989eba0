"""The alerts of the release, made faster: all their times are divided by a factor, and nothing else changes.

Times are `for`, ranges in brackets, offsets, and the seconds that `predict_linear` looks ahead. What is compared stays as it
is, seconds too: an alert on what has waited for 120 s needs 120 s here as well.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.server_process import ROOT

RELEASED = ROOT / "deploy" / "prometheus" / "rules.yml"

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME = r"(\d+)(ms|s|m|h|d)"
_RANGE = re.compile(rf"\[{_TIME}\]")
_OFFSET = re.compile(rf"\boffset {_TIME}\b")
_AHEAD = re.compile(r"(\d+) \* 3600\b")


def scaled_time(text: str, factor: float) -> str:
    """Return a time such as `5m`, divided by a factor, in milliseconds."""
    match = re.fullmatch(_TIME, text)
    assert match is not None, f"expected a time such as 5m, got {text!r}"
    return f"{round(int(match[1]) * _UNITS_MS[match[2]] / factor)}ms"


def scaled_expression(expression: str, factor: float) -> str:
    """Return an expression whose ranges, offsets and looks ahead are divided by a factor."""
    expression = _RANGE.sub(lambda match: f"[{scaled_time(match[0][1:-1], factor)}]", expression)
    expression = _OFFSET.sub(
        lambda match: f"offset {scaled_time(match[1] + match[2], factor)}", expression
    )
    return _AHEAD.sub(lambda match: f"{int(match[1]) * 3600 / factor:g}", expression)


def scaled_rules(rules: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return the content of a file of rules with all times divided by a factor."""
    groups = []
    for group in rules["groups"]:
        scaled = []
        for rule in group["rules"]:
            changed = {"expr": scaled_expression(rule["expr"], factor)}
            if "for" in rule:
                changed["for"] = scaled_time(rule["for"], factor)
            scaled.append({**rule, **changed})
        groups.append({**group, "rules": scaled})
    return {**rules, "groups": groups}


def write_scaled_rules(path: Path, factor: float) -> list[str]:
    """Write the released alerts, made faster, and return their names."""
    rules = scaled_rules(yaml.safe_load(RELEASED.read_text()), factor)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(rules, sort_keys=False))
    return [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
