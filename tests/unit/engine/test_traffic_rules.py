"""Rules of traffic: what is refused, how requests are divided, and which of them keep to one version."""

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from quadriga.engine.serving.traffic import (
    MAX_SHARES,
    TrafficRule,
    check_versions,
    decode_rule,
    draw_version,
)
from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import InferRequest, Tensor

REFUSED = {
    "no JSON": (b"{", "expected a JSON object"),
    "a list": (b"[]", "expected a JSON object"),
    "another field": (b'{"share": {"1": 1}}', "unknown field `share`"),
    "a share that is a text": (b'{"shares": {"1": "all"}}', "Expected `float`"),
    "a negative share": (b'{"shares": {"1": 1.5, "2": -0.5}}', "from 0 to 1, got 1.5"),
    "not a number": (b'{"shares": {"1": NaN}}', "expected a JSON object"),
    "an infinite share": (b'{"shares": {"1": 1e999}}', "expected a JSON object"),
    "too little": (b'{"shares": {"1": 0.5, "2": 0.4}}', "add up to 1, got 0.9"),
    "nothing of all": (b'{"shares": {"1": 0}}', "add up to 1, got 0"),
    "sticky without shares": (b'{"sticky_by": "camera"}', "expected shares beside sticky_by"),
    "an empty key": (b'{"shares": {"1": 1}, "sticky_by": ""}', "1 to 256 characters, got 0"),
    "a shadow": (b'{"shadow": {"version": "2"}}', "unknown field `shadow`"),
    "a deep body": (b"[" * 100_000, "expected a JSON object"),
    "no UTF-8": (b'{"sticky_by": "\xff"}', "expected a JSON object"),
    "too many versions": (
        json.dumps({"shares": {str(n): 1 / 17 for n in range(MAX_SHARES + 1)}}).encode(),
        "at most 16 versions, got 17",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_rule_is_refused_in_plain_words(name):
    body, message = REFUSED[name]
    with pytest.raises(InvalidRequest, match=message):
        decode_rule(body)


def test_thirds_add_up():
    rule = decode_rule(b'{"shares": {"1": 0.3333333, "2": 0.3333333, "3": 0.3333334}}')
    assert math.fsum(rule.shares.values()) == pytest.approx(1)


def test_versions_that_are_not_there_are_named():
    with pytest.raises(InvalidRequest, match="version of 'shapes' among 1, 2, 10, got '3'"):
        check_versions(TrafficRule({"3": 1.0}), "shapes", ["10", "2", "1"])


def request(id_: str, metadata: Any = None, shared: Any = None) -> InferRequest:
    parameters = {} if metadata is None else {"metadata": metadata}
    tensor = Tensor("x", "FP32", (1,), data=np.zeros(1, np.float32), parameters=parameters)
    return InferRequest("shapes", None, id_, [tensor], parameters=shared or {})


SHARES = {
    "nine to one": {"1": 0.9, "2": 0.1},
    "all": {"1": 0.0, "2": 1.0},
    "thirds": {"1": 1 / 3, "2": 1 / 3, "10": 1 / 3},
    "one in a hundred": {"1": 0.01, "2": 0.99},
}


@pytest.mark.parametrize("name", SHARES)
def test_shares_are_kept_within_what_chance_explains(name):
    shares, n = SHARES[name], 20_000
    rule = TrafficRule(shares)
    counts = Counter(
        draw_version(rule, "shapes", request(f"r-{number}"), shares).version for number in range(n)
    )
    for version, share in shares.items():
        assert abs(counts[version] - n * share) <= 4 * math.sqrt(n * share * (1 - share))


METADATA = {
    "an object": {"camera": "north"},
    "a text": '{"camera": "north"}',
    "a list of entries": [{"key": "camera", "type": "str", "value": "north"}],
    "beside others": {"camera": "north", "other": 1},
}


@pytest.mark.parametrize("name", METADATA)
def test_one_value_has_one_version_however_it_is_written(name):
    rule = TrafficRule({"1": 0.5, "2": 0.5}, "camera")
    expected = draw_version(rule, "shapes", request("r", {"camera": "north"}), ["1", "2"])
    for number in range(50):
        drawn = draw_version(rule, "shapes", request(f"r-{number}", METADATA[name]), ["1", "2"])
        assert drawn == expected
    shared = request("other", shared={"metadata": METADATA[name]})
    assert draw_version(rule, "shapes", shared, ["1", "2"]) == expected


def test_values_keep_their_version_from_release_to_release():
    rule = TrafficRule({"1": 0.7, "2": 0.3}, "site.camera")
    drawn = [
        draw_version(rule, "shapes", request("r", {"site": {"camera": camera}}), ["1", "2"]).version
        for camera in (*range(12), "north", "south", True, 1.0, 1.5)
    ]
    assert "".join(map(str, drawn)) == "11212121111111112"


ABSENT = {
    "no metadata": None,
    "another key": {"site": "a"},
    "null": {"camera": None},
    "a list": {"camera": ["north"]},
    "no JSON": "{",
    "deep": "[" * 100_000,
    "another kind": 5,
}


@pytest.mark.parametrize("name", ABSENT)
def test_without_the_key_the_request_decides(name):
    rule = TrafficRule({"1": 0.5, "2": 0.5}, "camera")
    plain = TrafficRule({"1": 0.5, "2": 0.5})
    for number in range(50):
        one = request(f"r-{number}", ABSENT[name])
        assert draw_version(rule, "shapes", one, ["1", "2"]) == draw_version(
            plain, "shapes", one, ["1", "2"]
        )


def test_the_share_of_what_is_not_ready_goes_to_the_others_who_keep_their_own():
    rule = TrafficRule({"1": 0.4, "2": 0.4, "3": 0.2}, "camera")
    moved = Counter()
    for camera in range(5000):
        one = request("r", {"camera": camera})
        before = draw_version(rule, "shapes", one, ["1", "2", "3"]).version
        after = draw_version(rule, "shapes", one, ["1", "3"])
        assert after.wanted == before
        if before == "2":
            moved[after.version] += 1
        else:
            assert after.version == before
    n = moved.total()
    assert abs(moved["1"] - n * 2 / 3) <= 4 * math.sqrt(n * 2 / 9)
    assert draw_version(rule, "shapes", request("r"), []).version is None


def test_a_growing_share_takes_values_and_gives_none_away():
    moved = 0
    for camera in range(2000):
        one = request("r", {"camera": camera})
        small, large = (
            draw_version(TrafficRule({"1": 1 - share, "2": share}, "camera"), "shapes", one, "12")
            for share in (0.1, 0.3)
        )
        moved += small.version != large.version
        assert small.version == "1" or large.version == "2"
    assert 0 < moved < 600
