"""The compact form: what it says, what it refuses, and that every tree can be written in it."""

from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quadriga.store.query.filters.forms import parse, split_url
from quadriga.store.query.filters.syntax import (
    BOUNDS,
    FIELDS,
    OPERATORS,
    PROPERTIES,
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
    join_operands,
)
from quadriga.store.records.errors import QueryError
from tests.filter_text import render

NOW_US = 1_770_000_000_000_000
A, B, C = (Compare("meta.a", "eq", value) for value in (1, "b", True))


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("", And(())),
        ("  ", And(())),
        ("()", And(())),
        ("(|)", Or(())),
        ("meta.a=1", A),
        ("((meta.a=1))", A),
        (" meta.a = 1 & meta.a = b|meta.a=true ", Or((And((A, B)), C))),
        ("meta.a=1 & (meta.a=b | !meta.a=true)", And((A, Or((B, Not(C)))))),
        ("!!(meta.a=1 & meta.a=b)", Not(Not(And((A, B))))),
        ('meta.a="1"', Compare("meta.a", "eq", "1")),
        ('meta.a="x & \\"y\\" \\u00e9"', Compare("meta.a", "eq", 'x & "y" é')),
        ('"meta.odd = key"=ge:2.5', Compare("meta.odd = key", "ge", 2.5)),
        ("meta.a=", Compare("meta.a", "eq", "")),
        ("meta.a=in:", Compare("meta.a", "in", ())),
        ('meta.a=in:1, b ,true,"true",', Compare("meta.a", "in", (1, "b", True, "true", ""))),
        ("meta.a=ne:b", Not(B)),
        ("meta.a=exists:false", Not(Compare("meta.a", "exists", True))),
        ("meta.a=contains:15", Compare("meta.a", "contains", "15")),
        ("meta.a=007", Compare("meta.a", "eq", "007")),
        ("meta.a=-1e3", Compare("meta.a", "eq", -1000.0)),
        ("meta.a=eq:in:x", Compare("meta.a", "eq", "in:x")),
        ("model=yolo:3", Compare("model", "eq", "yolo:3")),
        ("request_id=5", Compare("request_id", "eq", "5")),
        ("ts=ge:-24h", Compare("ts", "ge", NOW_US - 86_400_000_000)),
        ("ts=lt:1970-01-01T01:00:01+01:00", Compare("ts", "lt", 1_000_000)),
        ("label=car", PredictionCondition(("car",))),
        ("label=in:car,bus:ge:0.8", PredictionCondition(("car", "bus"), (("score", "ge", 0.8),))),
        ("label=ne:car", Not(PredictionCondition(("car",)))),
        ('label="a:b":score:gt:0.5:lt:0.9:area:ge:100:n:ge:2',
         PredictionCondition(("a:b",), (("score", "gt", 0.5), ("score", "lt", 0.9), ("area", "ge", 100.0)), (("ge", 2.0),))),
        ("best=ring", PredictionCondition(("ring",), is_best=True)),
        ("best=in:ring,a b", PredictionCondition(("ring", "a b"), is_best=True)),
        ('best="in"', PredictionCondition(("in",), is_best=True)),
        ("best=ne:ring", Not(PredictionCondition(("ring",), is_best=True))),
        ("box=width:ge:10:height:lt:5", PredictionCondition(None, (("width", "ge", 10.0), ("height", "lt", 5.0)))),
        ("geo=51.5,-0.12,5km", PlaceCondition(GeoCircle(51.5, -0.12, 5000.0))),
        ("geo=box:1,2,3,4", PlaceCondition(GeoBox(1.0, 2.0, 3.0, 4.0))),
        ("geo=polygon:1,2,3,4,5,6", PlaceCondition(GeoPolygon(((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))))),
        ("geo=exists:true", Compare("geo", "exists", True)),
    ],
)  # fmt: skip
def test_text_parses_to_trees(text: str, tree: Filter) -> None:
    assert parse(text, NOW_US) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("meta.a", "expected = after 'meta.a', as in meta.altitude=ge:100, at character 7 of the filter, got its end"),
        ("=1", "expected a comparison such as meta.camera=north at character 1 of the filter, got '=1'"),
        ("meta.a=1 &", "expected a comparison such as meta.camera=north at character 11"),
        ("meta.a=1)", "expected & or | and another comparison, an operator as in ge:5, or quotes around"),
        ("(meta.a=1", "expected a closing parenthesis at character 10 of the filter, got its end"),
        ('meta.a="x', "expected a closing quote at character 8"),
        ('meta.a="x"y', "expected text in double quotes with JSON's escapes, got '\"x\"y'"),
        ('meta.a=x"y"', "expected quotes around all of a value, got 'x\"y\"'"),
        ("meta.a=1e999", "expected a number of 64 bits, got 1e999"),
        ("latency_ms=fast", "expected latency_ms to be a number, got a string 'fast'"),
        ("label=a:b", "expected label to go on with one of score, area, cx, cy, width, height, n, one of eq, gt"),
        ("label=a:0.5", "and a number, with : between as in score:ge:0.5, got '0.5'"),
        ("label=a:ge:0.5:ge:0.6", "expected label to have score:ge once, got it twice"),
        ("label=ne:a:ge:1", "expected nothing after the name of label=ne"),
        ("geo=1,2", "expected geo to be {"),
        ("geo=polygon:1,2,3", "expected geo to be {"),
        ("x=1", "expected x to name one of id, request_id"),
        ("(" * 17 + "meta.a=1", "expected the filter to be at most 16 deep, got more"),
        ("meta.altitude>=5", "expected = after 'meta.altitude', as in meta.altitude=ge:100, at character 14"),
        ("meta.altitude=>=5", "an operator as in ge:5, or quotes around the value at character 15"),
        ("label=circle>0.8", "an operator as in ge:5, or quotes around the value at character 13"),
        ("meta.altitude=gte:5", "expected meta.altitude to have one of eq, ne, gt, ge,"),
        ("ground_truth=false", """expected ground_truth to be {"exists": true} or {"exists": false}, got a string 'false'"""),
        ("!" * 100_000, "expected a filter of at most 65536 characters, got 100000"),
        ("!" * 60_000, "expected the filter to be at most 16 deep"),
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        parse(text, NOW_US)
    assert message in str(caught.value)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
integers = st.integers(-(1 << 63), (1 << 63) - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.one_of(
    texts, integers, numbers, st.booleans(), st.sampled_from(["1", "true", "in:a", "eq"])
)
metadata = texts.map(lambda path: f"meta.{path}x")
ordered = st.sampled_from(["eq", "gt", "ge", "lt", "le"])
plain = [name for name, kind in FIELDS.items() if kind in {"text", "texts", "name"}]
optional = [name for name, kind in FIELDS.items() if "exists" in OPERATORS[kind]]
compares = st.one_of(
    st.builds(Compare, metadata, st.just("eq"), values),
    st.builds(Compare, metadata, ordered, st.one_of(texts, integers, numbers)),
    st.builds(Compare, metadata, st.just("in"), st.lists(values, max_size=3).map(tuple)),
    st.builds(Compare, metadata, st.just("contains"), texts),
    st.builds(Compare, st.sampled_from([*optional, "geo", "std.a.b"]), st.just("exists"), st.just(True)),
    st.builds(Compare, st.sampled_from(plain), st.just("eq"), texts),
    st.builds(Compare, st.sampled_from(plain), st.just("in"), st.lists(texts, max_size=3).map(tuple)),
    st.builds(Compare, st.just("id"), ordered, st.integers(0, 10**19 - 1)),
    st.builds(Compare, st.just("ts"), ordered, st.integers(0, 4 * 10**15)),
    st.builds(Compare, st.sampled_from(["status", "latency_ms", "predictions"]), ordered, numbers),
)  # fmt: skip
bounds = st.lists(
    st.tuples(st.sampled_from(PROPERTIES), st.sampled_from(BOUNDS), numbers),
    max_size=3, unique_by=lambda bound: bound[:2],
).map(lambda bounds_: tuple(sorted(bounds_, key=lambda bound: PROPERTIES.index(bound[0]))))  # fmt: skip
counts = st.lists(
    st.tuples(st.sampled_from(BOUNDS), numbers), max_size=2, unique_by=lambda bound: bound[0]
).map(tuple)
latitudes, longitudes = st.floats(-90, 90), st.floats(-180, 180)
shapes = st.one_of(
    st.builds(GeoCircle, latitudes, longitudes, st.floats(0, 1e9, exclude_max=True)),
    st.tuples(latitudes, longitudes, latitudes, longitudes).map(
        lambda v: GeoBox(min(v[0], v[2]), v[1], max(v[0], v[2]), v[3])
    ),
    st.lists(st.tuples(latitudes, longitudes), min_size=3, max_size=5).map(
        lambda points: GeoPolygon(tuple(points))
    ),
)
leaves = st.one_of(
    compares,
    st.builds(PredictionCondition, st.lists(texts, max_size=3).map(tuple), bounds, counts),
    st.builds(PredictionCondition, st.none(), bounds.filter(bool), counts),
    st.builds(PlaceCondition, shapes),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, max_size=3).map(lambda parts: join_operands(And, parts)),
        st.lists(inner, max_size=3).map(lambda parts: join_operands(Or, parts)),
    ),
    max_leaves=8,
)


@given(tree=trees)
def test_every_tree_can_be_written_and_read_again(tree: Filter) -> None:
    text = render(tree)
    assert parse(text, NOW_US) == tree
    in_url, options = split_url(urlencode({"q": text, "limit": "5"}))
    assert ([parse(text_, NOW_US) for text_ in in_url], options) == ([tree], {"limit": "5"})


@given(text=st.text(max_size=40) | st.text('meta.ab=1()&|!":,ingel ', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text, NOW_US)
    except QueryError as error:
        str(error).encode()  # it can be answered
