"""The drill with a Prometheus: times of alerts are scaled and nothing else, differences are seen, rows say what is wrong."""

import math

import pytest
import yaml

from tests.prometheus_drill.__main__ import soak_text
from tests.prometheus_drill.counting import Comparison
from tests.prometheus_drill.counting import table as count_table
from tests.prometheus_drill.faults import FAULTS
from tests.prometheus_drill.prometheus import resets, rise
from tests.prometheus_drill.scaled_rules import (
    RELEASED,
    scaled_expression,
    scaled_rules,
    scaled_time,
)
from tests.prometheus_drill.soak import SoakResult
from tests.prometheus_drill.watch import Alarm
from tests.prometheus_drill.watch import table as alarm_table

RULES = yaml.safe_load(RELEASED.read_text())


@pytest.mark.parametrize(
    ("text", "factor", "expected"),
    [("1m", 20, "3000ms"), ("500ms", 1, "500ms"), ("1h", 60, "60000ms"), ("1d", 1, "86400000ms")],
)
def test_times_are_divided(text: str, factor: float, expected: str) -> None:
    assert scaled_time(text, factor) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("up == 0", "up == 0"),
        ("a_seconds > 120", "a_seconds > 120"),
        ("rate(a[5m]) / rate(b[5m]) > 0.02", "rate(a[30000ms]) / rate(b[30000ms]) > 0.02"),
        ("a < 100e9 and a offset 45m", "a < 100e9 and a offset 270000ms"),
        ("predict_linear(a[6h], 24 * 3600) < 0", "predict_linear(a[2160000ms], 8640) < 0"),
    ],
)
def test_ranges_offsets_and_looks_ahead_are_divided(expression: str, expected: str) -> None:
    assert scaled_expression(expression, 10) == expected


def test_with_a_factor_of_one_the_rules_are_those_of_the_release() -> None:
    alerts = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
    scaled = scaled_rules(RULES, 1)
    rules = [rule for group in scaled["groups"] for rule in group["rules"]]
    assert [rule["alert"] for rule in rules] == alerts
    for rule, released in zip(
        rules, (rule for group in RULES["groups"] for rule in group["rules"]), strict=True
    ):
        assert rule.keys() == released.keys()
        assert rule["labels"] == released["labels"]
        assert ("[" in rule["expr"]) == ("[" in released["expr"])


def test_each_alert_has_a_fault_in_the_drill() -> None:
    alerts = {rule["alert"] for group in RULES["groups"] for rule in group["rules"]}
    assert {alert for _, expected in FAULTS.values() for alert in expected} == alerts


@pytest.mark.parametrize(
    ("values", "rises", "falls"),
    [
        ([], 0, 0),
        ([7], 0, 0),
        ([0, 3, 3, 10], 10, 0),
        ([5, 9, 2, 4], 8, 1),  # after the reset it has counted 4 since
        ([5, 0, 5, 0], 5, 2),
    ],
)
def test_counters_rise_through_resets(values: list[float], rises: float, falls: int) -> None:
    assert (rise(values), resets(values)) == (rises, falls)


RIGHT = Comparison("scene", 100, 101, 100, 0, 0.004, 0.009, 0, 0)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (RIGHT, ""),
        (RIGHT._replace(server_count=99, allowed=1), ""),
        (RIGHT._replace(server_count=98, allowed=1), "a difference of at most 1"),
        (RIGHT._replace(increase=120), "`increase`"),
        (RIGHT._replace(client_p95_s=0.02), "p95"),
        (RIGHT._replace(resets=1), "counters fell"),
        (RIGHT._replace(resets=1, restarts=1), ""),
        (RIGHT._replace(server_count=0, increase=math.nan), "`increase`"),
    ],
)
def test_rows_say_what_does_not_agree(row: Comparison, problem: str) -> None:
    assert bool(row.problems()) == bool(problem)
    assert problem in "; ".join(row.problems())
    assert problem in count_table([row])


@pytest.mark.parametrize(
    ("alarm", "is_right"),
    [
        (Alarm("A", "fault", 3.0, 4.0), True),
        (Alarm("A", "fault", None, 0.0), False),
        (Alarm("A", "fault", 3.0, None), False),
        (Alarm("A", "fault", 3.0, 4.0, broken="no room"), False),
    ],
)
def test_an_alert_has_to_fire_and_to_end(alarm: Alarm, is_right: bool) -> None:  # noqa: FBT001
    assert alarm.is_right() is is_right
    assert ("**" in alarm_table([alarm], 20)) is not is_right


def test_a_soak_names_what_fired() -> None:
    quiet = SoakResult(600, 1000, 0, (), ("QuadrigaDown",))
    assert "as 3.3 hours of the released times" in soak_text(quiet, 17, 20)
    assert "all were silent; true for a moment: QuadrigaDown." in soak_text(quiet, 17, 20)
    assert "FIRED: QuadrigaDown" in soak_text(quiet._replace(fired=("QuadrigaDown",)), 17, 20)
