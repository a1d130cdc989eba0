"""Random records and random filters that may find them."""

import random
from typing import Any

from hypothesis import strategies as st

from quadriga.store.records.errors import MetadataError
from quadriga.store.records.ids import smallest_id_at
from quadriga.store.records.metadata import check
from quadriga.store.records.records import InputReference, ModelReference, timestamp_text

BASE_MS = 1_770_000_000_000

NUMBERS = [0, 1, 2, -1, 2.0, 0.1, 1 / 3, 0.30000000000000004, -2.5, 5e-324, 1.7976931348623157e308,
           (1 << 53) - 1, 1 << 53, (1 << 53) + 1, float(1 << 53), (1 << 63) - 1, -(1 << 63)]  # fmt: skip
STRINGS = ["", "a", "A", "ab", "é", "\uffff", "\U0001f600", "1", "true", "x" * 256, "x" * 257,
           "x" * 256 + "a", "%", "a'b\"\\"]  # fmt: skip
scalars = st.sampled_from([*NUMBERS, *STRINGS, True, False])
MODELS = [
    ("m1", "1", "OBJECT_DETECTION"),
    ("m1", "2", "IMAGE_CLASSIFICATION"),
    ("M2", "1", "TENSOR"),
]
FILES = {"m1": "cafe1234" * 8, "M2": ""}
"""Hashes of the files of models."""
ACTIONS = ["predict", "embed"]
HASHES = [None, "blake3:" + "0" * 64]
LATENCIES = [0.0, 1.001, 4.35, 7.0]


def is_allowed(given_metadata: dict[str, Any]) -> bool:
    try:
        check(given_metadata)
    except MetadataError:
        return False
    return True


def random_metadata(pick: random.Random, depth: int = 0) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for key in pick.sample(["a", "b", "a.b", "n", 'q"'], pick.randint(0, 4)):
        if pick.random() < 0.3 and depth < 2:
            metadata[key] = random_metadata(pick, depth + 1)
        else:
            metadata[key] = pick.choice([*NUMBERS, *STRINGS, True, False, None, [1]])
    return metadata if depth or is_allowed(metadata) else random_metadata(pick)


def random_place(pick: random.Random) -> dict[str, Any]:
    if pick.random() < 0.3:
        return {}
    latitude = pick.choice(
        [pick.uniform(-90, 90), pick.uniform(-90, 90), 89.9, -90, 0.2137, "1", 91]
    )
    return {
        "latitude": latitude,
        "longitude": pick.choice([pick.uniform(-180, 180), 180, -180, 0.7351]),
    }


def random_shape(pick: random.Random) -> dict[str, Any]:
    x, y, w, h = (pick.choice([1, 2.5, 10, 40]) for _ in range(4))
    return pick.choice([
        {"xmin": x, "ymin": y, "xmax": x + w, "ymax": y + h},
        {"cx": x / 64, "cy": y / 64, "w": w / 64, "h": h / 64, "r": 0.5},
        {"contour": [[{"x": x, "y": y}, {"x": x + w, "y": y}], [{"x": x, "y": y + h}]]},
        {"prompt": "?", "answer": pick.choice(STRINGS)},
        {},
    ])  # fmt: skip


def random_records(pick: random.Random) -> list[dict[str, Any]]:
    records = []
    for ms, counter in sorted({(pick.randint(0, 5), pick.randint(0, 40)) for _ in range(160)}):
        name, version, task = pick.choice(MODELS)
        scored = [
            {"label": pick.choice(["a", "b", "c", 1])}
            | (
                {"score": pick.choice([0, 0.25, 0.5, 0.75, 1, None, "1"])}
                if pick.random() < 0.8
                else {}
            )
            | random_shape(pick)
            for _ in range(pick.randint(0, 3))
        ]
        records.append(
            {
                "seq": smallest_id_at(BASE_MS + ms) | counter,
                "request_id": f"r{ms}",
                "model": ModelReference(name, version, FILES[name] if version == "1" else "0" * 64),
                "task": task,
                "action": pick.choice(ACTIONS),
                "latency_ms": pick.choice(LATENCIES),
                "input": InputReference(
                    "x", pick.choice(HASHES), *pick.choice([(None, None), (200, 100)])
                ),
                "predictions": scored,
                "metadata": random_metadata(pick) | random_place(pick),
                "status": pick.choice([200, 500]),
                "standard": {
                    "a": pick.choice([1, 2.5, "1", True, None]),
                    "b": {"c": pick.choice(STRINGS)},
                },
            }
        )
    return records


def asked(value: st.SearchStrategy[Any], operators: list[str]) -> st.SearchStrategy[Any]:
    """Give a bare value, or one or two operators."""
    operands = {
        "in": st.lists(value, max_size=3),
        "exists": st.booleans(),
        "contains": st.sampled_from(STRINGS),
    }
    operands_by_operator = {operator: operands.get(operator, value) for operator in operators}
    objects = st.fixed_dictionaries({}, optional=operands_by_operator).filter(
        lambda properties_: 1 <= len(properties_) <= 3
    )
    return st.one_of(value, objects)


ORDERED = ["eq", "ne", "gt", "ge", "lt", "le", "in", "exists"]
moments = st.integers(-1, 6).map(lambda ms: timestamp_text(BASE_MS + ms))
ids = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(
    lambda p: str(smallest_id_at(BASE_MS + p[0]) | p[1])
)
meta_values = asked(st.sampled_from([*NUMBERS, *STRINGS]), [*ORDERED, "contains"])
BOUNDS = ["eq", "gt", "ge", "lt", "le"]
properties = st.fixed_dictionaries({}, optional={
    "score": asked(st.sampled_from([0, 0.25, 0.5]), BOUNDS),
    **{name: asked(st.sampled_from([1, 2.5, 10, 20, 42.5]), BOUNDS) for name in ("width", "height", "cx", "cy")},
    "area": asked(st.sampled_from([25, 100, 400]), BOUNDS),
    "n": asked(st.integers(0, 2), BOUNDS),
})  # fmt: skip
latitudes = st.floats(-90, 90) | st.sampled_from([90.0, -90.0])
longitudes = st.floats(-180, 180) | st.sampled_from([180.0, -180.0])
points = st.tuples(latitudes, longitudes).map(list)
metres = st.sampled_from(["0m", "100km", "2500.5km", "1000mi", "19000km", "30000km"])
shapes = st.one_of(
    st.booleans().map(lambda v: {"exists": v}),
    st.tuples(points, metres).map(lambda v: {"near": v[0], "within": v[1]}),
    st.tuples(points, points).map(
        lambda v: {"box": [min(v[0][0], v[1][0]), v[0][1], max(v[0][0], v[1][0]), v[1][1]]}
    ),
    st.lists(st.tuples(st.floats(-89, 89), st.floats(-179, 179)).map(list), min_size=3, max_size=7)
    .map(lambda v: {"polygon": v}),
)  # fmt: skip
comparisons = st.one_of(
    *[
        st.one_of(meta_values, asked(scalars, ["eq", "ne", "in", "exists"])).map(
            lambda value, path=path: {f"meta.{path}": value}
        )
        for path in ("a", "b", "a.b", "n", 'a.q"', "n.n", "none")
    ],
    asked(moments, ORDERED).map(lambda v: {"ts": v}),
    asked(ids, ORDERED).map(lambda v: {"id": v}),
    asked(st.sampled_from(["r1", "r2", "r9"]), [*ORDERED, "contains"]).map(lambda v: {"request_id": v}),
    asked(st.sampled_from(ACTIONS), [*ORDERED, "contains"]).map(lambda v: {"action": v}),
    asked(st.sampled_from(["m1", "M1:2", "m-m2", "m3"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"model": v}),
    asked(st.sampled_from(["detection", "tensor", "TENSOR"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"task": v}),
    asked(st.sampled_from(LATENCIES), ORDERED).map(lambda v: {"latency_ms": v}),
    asked(st.sampled_from(["CAFE1234", "00000000", "cafe12345"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"model.sha256": v}),
    asked(st.sampled_from(["blake3:" + "0" * 64, "x"]), [*ORDERED, "contains"]).map(lambda v: {"input.hash": v}),
    asked(st.sampled_from(["a", "b", "z"]), ["eq", "ne", "in"]).map(lambda v: {"label": v}),
    asked(st.sampled_from(["a", "b", "z"]), ["eq", "ne", "in"]).map(lambda v: {"best": v}),
    st.builds(
        lambda name, score: {"label": {"name": name, "score": score}},
        st.sampled_from(["a", "b", "c"]),
        asked(st.sampled_from([0, 0.25, 0.5, 1]), BOUNDS),
    ),
    st.tuples(properties, st.sampled_from(["a", "b", "z"])).map(lambda p: {"label": {"name": p[1], **p[0]}}),
    properties.filter(bool).map(lambda properties_: {"box": properties_}),
    asked(st.sampled_from([200, 500]), ORDERED).map(lambda v: {"status": v}),
    asked(st.integers(0, 3), ORDERED).map(lambda v: {"predictions": v}),
    asked(st.sampled_from(["1", "2"]), ["eq", "ne", "in", "exists"]).map(lambda v: {"version": v}),
    asked(st.sampled_from(STRINGS), ["eq", "ne", "in", "exists", "contains"]).map(lambda v: {"answer": v}),
    asked(st.sampled_from([1, 2.5, "1"]), [*ORDERED, "contains"]).map(lambda v: {"std.a": v}),
    asked(st.sampled_from(STRINGS), [*ORDERED, "contains"]).map(lambda v: {"std.b.c": v}),
    shapes.map(lambda v: {"geo": v}),
)  # fmt: skip
filters = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: {"and": parts}),
        st.lists(inner, max_size=3).map(lambda parts: {"or": parts}),
        inner.map(lambda part: {"not": part}),
        st.tuples(inner, inner).map(lambda pair: {**pair[0], **pair[1]}),
    ),
    max_leaves=6,
)
