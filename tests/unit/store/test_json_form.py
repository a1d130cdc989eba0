from typing import Any

import msgspec
import pytest

from quadriga.store.query.filters.comparisons import EXPECTED_MOMENT
from quadriga.store.query.filters.forms import parse
from quadriga.store.query.filters.syntax import (
    And,
    Compare,
    Filter,
    GeoBox,
    GeoCircle,
    GeoPolygon,
    Not,
    Or,
    PlaceCondition,
    PredictionCondition,
)
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import REVIEWS

NOW_US = 1_770_000_000_000_000
ALL = And(())


@pytest.mark.parametrize(
    ("where", "tree"),
    [
        (None, ALL),
        ({}, ALL),
        ({"and": []}, ALL),
        ({"or": []}, Or(())),
        ({"not": {}}, Not(ALL)),
        ({"meta.a": 1}, Compare("meta.a", "eq", 1)),
        ({"meta.a.b c.\"'": True}, Compare("meta.a.b c.\"'", "eq", True)),
        ({"meta.a": {"ne": "x"}}, Not(Compare("meta.a", "eq", "x"))),
        ({"meta.a": {"ge": 1, "lt": 2.5}}, And((Compare("meta.a", "ge", 1), Compare("meta.a", "lt", 2.5)))),
        ({"meta.a": {"in": [1, "1", True, 1.5]}}, Compare("meta.a", "in", (1, "1", True, 1.5))),
        ({"meta.a": {"in": []}}, Compare("meta.a", "in", ())),
        ({"meta.a": {"exists": True}}, Compare("meta.a", "exists", True)),
        ({"meta.a": {"exists": False}}, Not(Compare("meta.a", "exists", True))),
        ({"meta.a": {"contains": ""}}, Compare("meta.a", "contains", "")),
        ({"action": "predict", "model": "M-X"}, And((Compare("action", "eq", "predict"), Compare("model", "eq", "M-X")))),
        ({"label": "circle"}, PredictionCondition(("circle",))),
        ({"label": {"eq": "circle"}}, PredictionCondition(("circle",))),
        ({"label": {"ne": "circle"}}, Not(PredictionCondition(("circle",)))),
        ({"label": {"in": ["a", "b"]}}, PredictionCondition(("a", "b"))),
        ({"label": {"name": "a"}}, PredictionCondition(("a",))),
        ({"label": {"name": "a", "score": 1}}, PredictionCondition(("a",), (("score", "eq", 1.0),))),
        ({"label": {"name": "a", "score": {"ge": 0.5, "lt": 1}}},
         PredictionCondition(("a",), (("score", "ge", 0.5), ("score", "lt", 1.0)))),
        ({"label": {"name": {"in": ["a", "b"]}, "area": {"gt": 9}, "n": 2}},
         PredictionCondition(("a", "b"), (("area", "gt", 9.0),), (("eq", 2.0),))),
        ({"box": {"cx": {"lt": 5}}}, PredictionCondition(None, (("cx", "lt", 5.0),))),
        ({"geo": {"near": [51.5, -0.12], "within": "5km"}}, PlaceCondition(GeoCircle(51.5, -0.12, 5000.0))),
        ({"geo": {"box": [1, 2, 3, -4]}}, PlaceCondition(GeoBox(1.0, 2.0, 3.0, -4.0))),
        ({"geo": {"polygon": [[1, 2], [3, 4], [5, 6]]}}, PlaceCondition(GeoPolygon(((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))))),
        ({"geo": {"exists": False}}, Not(Compare("geo", "exists", True))),
        ({"std.stage.decode_ms": {"lt": 2}}, Compare("std.stage.decode_ms", "lt", 2)),
        ({"answer": {"contains": "ship"}}, Compare("answer", "contains", "ship")),
        ({"ground_truth.label": {"ne": "a"}}, Not(Compare("ground_truth.label", "eq", "a"))),
        ({"ground_truth.review": "approved"}, Compare("ground_truth.review", "eq", "approved")),
        ({"feedback": {"exists": True}}, Compare("feedback", "exists", True)),
        ("meta.a=1 & action=embed", And((Compare("meta.a", "eq", 1), Compare("action", "eq", "embed")))),
        ({"or": ["meta.a=1", {"id": "2"}]}, Or((Compare("meta.a", "eq", 1), Compare("id", "eq", 2)))),
        ({"ts": {"ge": "-999999999w"}}, Compare("ts", "ge", 0)),
        ({"id": "12"}, Compare("id", "eq", 12)),
        ({"latency_ms": {"gt": 3}}, Compare("latency_ms", "gt", 3.0)),
        ({"input.hash": {"exists": False}}, Not(Compare("input.hash", "exists", True))),
        ({"ts": {"le": "now"}}, Compare("ts", "le", NOW_US)),
        ({"ts": {"ge": "-90s"}}, Compare("ts", "ge", NOW_US - 90_000_000)),
        ({"ts": {"ge": "-15m"}}, Compare("ts", "ge", NOW_US - 900_000_000)),
        ({"ts": {"ge": "-24h"}}, Compare("ts", "ge", NOW_US - 86_400_000_000)),
        ({"ts": {"ge": "-7d"}}, Compare("ts", "ge", NOW_US - 7 * 86_400_000_000)),
        ({"ts": {"lt": "1970-01-01T01:00:00.000001+01:00"}}, Compare("ts", "lt", 1)),
        ({"ts": {"lt": "1969-12-31T23:59:59Z"}}, Compare("ts", "lt", -1_000_000)),
        ({"or": [{"meta.a": 1}, {"and": [{"task": "detection"}], "not": {"id": "1"}}]},
         Or((Compare("meta.a", "eq", 1),
             And((Compare("task", "eq", "detection"), Not(Compare("id", "eq", 1))))))),
    ],
)  # fmt: skip
def test_filters_parse_to_trees(where: Any, tree: Filter) -> None:
    assert parse(where, NOW_US) == tree


def nested(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {}
    for _ in range(depth - 1):
        node = {"not": node}
    return node


FIELDS = (
    "id, request_id, model, version, model.sha256, task, action, ts, latency_ms, status, predictions, answer, input.hash, "
    "ground_truth, ground_truth.label, ground_truth.review, feedback, report, truth, predicted, label, best, box, geo, meta.<key>, std.<key>, sig.<signal>"
)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([], "expected where to be an object, got a list"),
        ({"and": {}}, "expected where.and to be a list of filters, got an object"),
        ({"or": [{}, 3]}, "expected where.or[1] to be an object, got an integer '3'"),
        ({"not": []}, "expected where.not to be an object, got a list"),
        ({"gio": {}}, f"expected where.gio to name one of {FIELDS}, got 'gio'"),
        ("x", "expected = after 'x'"),
        ({"model.sha256": "cafe123"}, "expected where.model.sha256 to be the hash of a model's file, or its first 8 digits or more, got a string 'cafe123'"),
        ({"model.sha256": {"in": ["cafe1234", ""]}}, "expected where.model.sha256.in[1] to be the hash of a model's file"),
        ({"model.sha256": {"ne": 12345678}}, "expected where.model.sha256.ne to be a string"),
        ({"geo": {}}, 'expected where.geo to be {"near": [latitude, longitude], "within": "5km"}, {"box"'),
        ({"geo": {"near": [91, 0], "within": "5km"}}, "expected where.geo.near to be a latitude of -90 to 90 degrees"),
        ({"geo": {"near": [1, True], "within": "5km"}}, "expected where.geo.near to be a latitude"),
        ({"geo": {"near": [1, 1], "within": 5}}, "expected where.geo.within to be a distance with m, km, mi or nmi, such as 5km, got an integer '5'"),
        ({"geo": {"near": [1, 1], "within": "-5km"}}, "expected where.geo.within to be a distance"),
        ({"geo": {"near": [1, 1], "within": "1e999km"}}, "expected where.geo.within to be a distance"),
        ({"geo": {"box": [3, 0, 2, 0]}}, "expected where.geo.box to have its south first, got 3.0 before 2.0"),
        ({"geo": {"polygon": [[1, 2], [3, 4]]}}, "expected where.geo.polygon to be 3 to 100 pairs"),
        ({"geo": {"polygon": [[1, 2]] * 101}}, "expected where.geo.polygon to be 3 to 100 pairs"),
        ({"geo": {"exists": 1}}, "expected where.geo.exists to be true or false"),
        ({"box": {}}, "expected where.box to be an object with some of score, area, cx, cy, width, height, n, got an object"),
        ({"box": {"x" * 81: 1}}, f"cx, cy, width, height, n, got '{'x' * 80}'"),
        ({"box": {"name": "a"}}, "expected where.box to have some of score, area, cx, cy, width, height, n, got 'name'"),
        ({"label": {"name": {"eq": "a"}, "score": 1}}, "expected where.label.name to have one of in, got 'eq'"),
        ({"ground_truth": {"eq": 1}}, "expected where.ground_truth to have one of exists, got 'eq'"),
        ({"answer": {"gt": "a"}}, "expected where.answer to have one of eq, ne, in, exists, contains, got 'gt'"),
        ({'std.a"b': 1}, "to name letters, digits, _, - and dots"),
        ({"meta.a": "a\0b"}, "expected 'where.meta.a' to be text without NUL, got one"),
        ({"meta.a\0": 1}, "expected 'the name of a field' to be text without NUL"),
        ({"meta.a": "\ud800"}, "expected 'where.meta.a' to be Unicode, got a surrogate"),
        ({"\ud800": 1}, "to be Unicode, got a surrogate"),
        ({"meta.a": "x" * 65537}, "expected where.meta.a to be at most 65536 bytes, got 65537"),
        ({"meta.": 1}, "expected where.meta. to name one of"),
        ({"meta": 1}, "expected where.meta to name one of"),
        ({"sig.image.colour": 1}, "expected where.sig.image.colour to name one of sig.image.brightness, sig.image.contrast, "),
        ({"sig.image.blur": "a"}, "expected where.sig.image.blur to be a number, got a string 'a'"),
        ({"sig.image.blur": {"contains": "a"}}, "expected where.sig.image.blur to have one of eq, ne, gt, ge, lt, le, in, exists"),
        ({"score": 1}, "got 'score'; of a prediction it stands in label or box, of the metadata it is"),
        ({"metadata": 1}, "got 'metadata'; of the metadata it is meta.<key>"),
        ({"metadata.camera": 1}, "got 'metadata.camera'; of the metadata it is meta.camera"),
        ({"x" * 81: 1}, f"got '{'x' * 80}'; of the metadata it is meta.{'x' * 80}"),
        ({"and": [{}, {"meta.altitude": None}]},
         'expected where.and[1].meta.altitude to be a value, got null; ask for {"exists": false}'),
        ({"meta.a": [1]}, "expected where.meta.a to be a string, a number or a boolean, got a list"),
        ({"meta.a": {}}, "expected where.meta.a to have one of eq, ne, gt, ge, lt, le, in, exists, contains, got nothing"),
        ({"meta.a": {"x" * 81: 1}}, f"le, in, exists, contains, got '{'x' * 80}'"),
        *(({"meta.a": {bound: True}}, f"expected where.meta.a.{bound} to be a number or a string, got a boolean 'True'")
          for bound in ("gt", "ge", "lt", "le")),
        ({"meta.a": {"contains": 1}}, "expected where.meta.a.contains to be a string, got an integer '1'"),
        ({"meta.a": {"exists": 1}}, "expected where.meta.a.exists to be true or false, got an integer '1'"),
        ({"meta.a": {"in": 1}}, "expected where.meta.a.in to be a list, got an integer '1'"),
        ({"meta.a": {"in": [1, {}]}}, "expected where.meta.a.in[1] to be a string, a number or a boolean, got an object"),
        ({"meta.a": {"in": [1] * 1001}}, "expected at most 1000 values in where.meta.a.in, got more"),
        ({"and": [{"meta.a": {"in": [1] * 1000}}] * 11}, "expected at most 10000 values in all lists together"),
        ({"meta.a": 1 << 63}, "expected where.meta.a to be a number of 64 bits, got one of 65"),
        ({"latency_ms": {"lt": 10**400}}, "to be a number of 64 bits, got one of 1330"),
        ({"latency_ms": "3"}, "expected where.latency_ms to be a number, got a string '3'"),
        ({"latency_ms": True}, "expected where.latency_ms to be a number, got a boolean 'True'"),
        ({"latency_ms": float("nan")}, "expected where.latency_ms to be a finite number, got a number 'nan'"),
        ({"id": 5}, "expected where.id to be an id as a string of digits, got an integer '5'"),
        ({"id": "٣"}, "expected where.id to be an id as a string of digits"),
        ({"action": {"eq": 5}}, "expected where.action.eq to be a string, got an integer '5'"),
        ({"model": {"gt": "a"}}, "expected where.model to have one of eq, ne, in, exists, got 'gt'"),
        ({"label": 1}, "expected where.label to be a string, got an integer '1'"),
        ({"label": {"in": ["a", 1]}}, "expected where.label.in[1] to be a string, got an integer '1'"),
        ({"ground_truth.review": "good"}, f"expected where.ground_truth.review to be one of {', '.join(REVIEWS)}, got a string 'good'"),
        ({"label": {"score": {"ge": 1}}}, "expected where.label.name to be a string, got null"),
        ({"label": {"name": "a", "count": 1}}, "expected where.label to have some of name, score, area, cx, cy, width, height, n, got 'count'"),
        ({"label": {"name": "a", "score": {"ne": 1}}}, "expected where.label.score to have one of eq, gt, ge, lt, le, got 'ne'"),
        ({"label": {"name": "a", "score": "x"}}, "expected where.label.score to be a number, got a string 'x'"),
        ({"ts": {"ge": "yesterday"}}, f"expected where.ts.ge to be {EXPECTED_MOMENT}, got a string 'yesterday'"),
        ({"ts": {"ge": "2026-01-31T12:00:00"}}, "expected where.ts.ge to be a moment such as"),
        ({"ts": {"ge": 1}}, f"expected where.ts.ge to be {EXPECTED_MOMENT}, got an integer '1'"),
        (nested(17), "expected the filter to be at most 16 deep, got more at where.not.not"),
        ({"and": [{"meta.a": 1}] * 201}, "expected at most 200 comparisons in a filter, got more"),
        ({"and": [{}] * 1000}, "expected at most 1000 objects in a filter, got more"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_named_with_its_place(where: Any, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(where, NOW_US)
    assert message in str(caught.value)
    assert caught.value.status == 400


def test_the_largest_filters_are_read() -> None:
    assert parse(nested(16), NOW_US)
    assert parse({"and": [{"meta.a": {"in": [1] * 50}}] * 200}, NOW_US)
    assert parse({"and": [{}] * 999}, NOW_US)
    assert parse(msgspec.json.decode(b'{"meta.a": 9223372036854775807}'), NOW_US)
