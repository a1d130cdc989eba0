"""Limits of keys as texts: which are understood, how they are written again, and how a wrong one is explained."""

import pytest

from quadriga.store.keys.key_limits import (
    amount_text,
    is_retired,
    limits_text,
    parse_limits,
    split_limits,
)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ""),
        (["requests=1/second"], "requests=1/second"),
        (["requests=100/minute"], "requests=100/minute"),
        ([" concurrency=8 "], "concurrency=8"),
        (["jobs=4", "requests=1/day"], "requests=1/day,jobs=4"),
        (["requests=999999999999999/hour"], "requests=999999999999999/hour"),
    ],
)
def test_limits_are_written_as_they_are_read(texts: list[str], expected: str):
    text = limits_text(parse_limits(texts))
    assert text == expected
    assert limits_text(parse_limits(split_limits(text))) == expected


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([""], "expected NAME=AMOUNT/PERIOD"),
        (["requests"], "expected NAME=AMOUNT/PERIOD"),
        (["speed=1/second"], "a name of requests, concurrency"),
        (["Requests=1/second"], "a name of requests"),
        (["requests=/second"], "a whole number from 1"),
        (["requests=0/second"], "a whole number from 1"),
        (["requests=-1/second"], "a whole number from 1"),
        (["requests=1.5/second"], "a whole number"),
        (["requests=1k/second"], "a whole number"),
        (["requests=\u0661/second"], "a whole number"),
        (["requests=1"], "requests=1/second, requests=1/minute"),
        (["requests=1/week"], "requests=1/day"),
        (["requests=1/second/second"], "expected one of"),
        (["concurrency=8/second"], "which has no period"),
        (["jobs=4/"], "which has no period"),
        (["requests=9999999999999999/day"], "to 999999999999999, got '9999999999999999'"),
        (
            ["bytes=1GB/hour"],
            "a name of requests, concurrency, jobs, got 'bytes=1GB/hour', a limit that",
        ),
        (["export-bytes=10GB/day"], "a limit that no longer exists"),
        (["stored-bytes=2TiB/day"], "a limit that no longer exists"),
        (["requests=1/second", "requests=2/day"], "expected one limit of requests, got two"),
    ],
)
def test_a_wrong_limit_is_explained(texts: list[str], reason: str):
    with pytest.raises(ValueError, match="expected") as raised:
        parse_limits(texts)
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("name", "amount", "expected"),
    [
        ("requests", 1, "1 request"), ("concurrency", 8, "8 requests"), ("jobs", 1, "1 job"),
    ],
)  # fmt: skip
def test_amounts_for_people(name: str, amount: int, expected: str):
    assert amount_text(name, amount) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=1GB/hour", True), (" export-bytes=1/day", True), ("stored-bytes", True),
        ("requests=1/day", False), ("of-the-future=3", False), ("bytes-of-the-future=3", False),
    ],
)  # fmt: skip
def test_limits_of_version_0_2_are_known(text: str, *, expected: bool):
    assert is_retired(text) is expected
