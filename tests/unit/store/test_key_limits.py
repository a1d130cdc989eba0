"""Limits of keys as texts: which are understood, how they are written again, and how a wrong one is explained."""

import pytest

from quadriga.store.key_limits import amount_text, limits_text, parse_limits, split_limits


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], ""),
        (["requests=1/second"], "requests=1/second"),
        (["requests=100/minute"], "requests=100/minute"),
        ([" concurrency=8 "], "concurrency=8"),
        (["jobs=4", "requests=1/day"], "requests=1/day,jobs=4"),
        (["bytes=500/hour"], "bytes=500/hour"),
        (["bytes=500B/hour"], "bytes=500/hour"),
        (["bytes=1000/hour"], "bytes=1kB/hour"),
        (["bytes=1KB/hour"], "bytes=1kB/hour"),
        (["bytes=1024/hour"], "bytes=1KiB/hour"),
        (["bytes=1500MB/hour"], "bytes=1500MB/hour"),
        (["bytes=1000MB/hour"], "bytes=1GB/hour"),
        (["export-bytes=10GB/day"], "export-bytes=10GB/day"),
        (["stored-bytes=2TiB/day"], "stored-bytes=2TiB/day"),
        (["bytes=999999999999999/day"], "bytes=999999999999999/day"),
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
        (["requests=/second"], "at least 1"),
        (["requests=0/second"], "at least 1"),
        (["requests=-1/second"], "at least 1"),
        (["requests=1.5/second"], "a whole number"),
        (["requests=1k/second"], "a whole number"),
        (["requests=\u0661/second"], "a whole number"),
        (["requests=1"], "requests=1/second, requests=1/minute"),
        (["requests=1/week"], "requests=1/day"),
        (["requests=1/second/second"], "expected one of"),
        (["concurrency=8/second"], "which has no period"),
        (["jobs=4/"], "which has no period"),
        (["bytes=1GB"], "bytes=1GB/second"),
        (["bytes=1gb/hour"], "such as 500000, 10MB or 2GiB"),
        (["bytes=9999TB/day"], "at most 999999999999999"),
        (["bytes=9999999999999999/day"], "at least 1"),
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
        ("bytes", 1, "1 byte"), ("bytes", 1001, "1001 bytes"), ("export-bytes", 10**10, "10 GB"),
    ],
)  # fmt: skip
def test_amounts_for_people(name: str, amount: int, expected: str):
    assert amount_text(name, amount) == expected
