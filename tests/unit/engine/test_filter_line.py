"""The filter line of the console: cut into parts and joined again, values quoted so that they come back, errors with their place."""

from urllib.parse import urlencode

import pytest

from quadriga.engine.console.filter_line import (
    MAX_CHIPS,
    FilterLinks,
    as_part,
    comparison_text,
    field_and_rest,
    filter_from_url,
    joined,
    number_text,
    parts,
)
from quadriga.store.query.filters.syntax import And, Compare, conjuncts
from quadriga.store.query.request import QueryRequest


def texts(line: str) -> list[str]:
    return [part.text for part in parts(line)]


@pytest.mark.parametrize(
    ("line", "cut"),
    [
        ("", []),
        ("  ", []),
        ("a=1", ["a=1"]),
        ("a=1 & b=2&c=3", ["a=1", "b=2", "c=3"]),
        ("(a=1 & b=2) & c=3", ["(a=1 & b=2)", "c=3"]),
        ("(a=1 | b=2) & !c=3", ["(a=1 | b=2)", "!c=3"]),
        ("a=1 | b=2 & c=3", ["a=1 | b=2 & c=3"]),
        ('a="x & y" & b=2', ['a="x & y"', "b=2"]),
        (r'a="x \" & y" & b=2', [r'a="x \" & y"', "b=2"]),
        ('a="x & b=2', ['a="x & b=2']),
        ("a=1 & & b=2", ["a=1", "b=2"]),
        (")(&", [")("]),
    ],
)
def test_a_line_is_cut_where_all_must_hold(line, cut):
    assert texts(line) == cut
    for part in parts(line):
        assert line[part.start :].startswith(part.text)


@pytest.mark.parametrize("text", ["a=1", "a=1 & b=2", "a=1 | b=2", "(a=1 | b=2)", 'a="|"', "!a=1"])
def test_a_text_added_to_a_line_means_the_same(text):
    alone = QueryRequest(where=text.replace("a=", "meta.a=").replace("b=", "meta.b="))
    line = joined([as_part(alone.where), "meta.z=9"])
    both = QueryRequest(where={"and": [alone.where, "meta.z=9"]}).parse_filter()
    assert conjuncts(QueryRequest(where=line).parse_filter()) == conjuncts(both)


HOSTILE = ["north", "", "1", "1e5", "-3", "true", "gt:5", "in:a,b", "a, b", 'say "x"', "a&b", "(x)", "<script>", "a|b",
           "ends ", " begins", "é", "\\", "line\nbreak", "exists:true", "a=b", "!a", "null", "x" * 300]  # fmt: skip


@pytest.mark.parametrize("value", [*HOSTILE, True, False, 0, 1.5, -2e-7, 123456, 1764343620123, 1764343620123.0, 0.1 + 0.2, -1 / 3, 1e300])  # fmt: skip
def test_the_comparison_with_a_value_finds_that_value(value):
    line = joined([comparison_text("meta.key", value), "meta.z=9"])
    tree = QueryRequest(where=line).parse_filter()
    assert isinstance(tree, And)
    assert tree.operands[0] == Compare("meta.key", "eq", value)
    assert texts(line) == [comparison_text("meta.key", value), "meta.z=9"]


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1.0, "1"), (0.3, "0.3"), (0.1 + 0.2, "0.30000000000000004"), (1764343620123, "1764343620123"),
        (1764343620123.0, "1764343620123"), (2.5e-9, "2.5e-09"), (0, "0"),
    ],
)  # fmt: skip
def test_a_number_has_as_many_digits_as_it_takes(number, text):
    assert number_text(number) == text


@pytest.mark.parametrize(
    "key", ["a", "a.b", "a b", "a=b", "a&b", 'a"b', "<script>", "a|b", "!a", "(a", "gt:"]
)
def test_the_comparison_of_a_key_names_that_key(key):
    line = comparison_text(f"meta.{key}", "x")
    assert QueryRequest(where=line).parse_filter() == Compare(f"meta.{key}", "eq", "x")
    assert texts(line) == [line]
    assert field_and_rest(line)[1] == "x"


@pytest.mark.parametrize(
    ("query", "line", "is_canonical"),
    [
        ("", "", True),
        ("q=", "", True),
        ("q=label%3Dship", "label=ship", True),
        ("q=label%3Dship&q=", "label=ship", True),
        ("q=label%3Dship&q=label%3Dcar", "label=ship & label=car", False),
        ("q=a%3D1&q=b%3D1|c%3D2", "a=1 & (b=1|c=2)", False),
        ("meta.camera=north", '"meta.camera"=north', False),
        ("q=a%3D1&order=ts&view=table&cursor=x", "a=1", True),
        ("q=a%3D1&order=up&view=list", "a=1", True),
    ],
)
def test_a_url_is_read_and_said_in_one_filter(query, line, is_canonical):
    read = filter_from_url(query)
    assert (read.line, read.is_canonical) == (line, is_canonical)
    assert read.order in ("-ts", "ts")
    assert read.view in ("", "grid", "table")


def links(line: str, **options: str) -> FilterLinks:
    read = filter_from_url("")
    filled = type(read)(line, **options)
    return FilterLinks(
        filled, lambda path, **sent: (path, {k: v for k, v in sent.items() if v}), "/p"
    )


def test_very_many_parts_are_one_text_as_each_link_has_all_others():
    assert len(links(" & ".join(["a=1"] * MAX_CHIPS)).chips()) == MAX_CHIPS
    assert links("a&" * 4096).chips() == []


def test_chips_and_facets_change_the_line_and_keep_the_view():
    made = links("label=ship & meta.a=1", view="table", order="ts", cursor="x")
    kept = {"view": "table", "order": "ts"}
    first, second = made.chips()
    assert (first.field, first.rest, first.without) == (
        "label=",
        "ship",
        ("/p", {"q": "meta.a=1", **kept}),
    )
    assert second.without == ("/p", {"q": "label=ship", **kept})
    assert made.toggled("meta.a=1") == ("/p", {"q": "label=ship", **kept})
    assert made.toggled("meta.b=2") == ("/p", {"q": "label=ship & meta.a=1 & meta.b=2", **kept})
    assert made.current(view="grid") == (
        "/p",
        {"q": "label=ship & meta.a=1", "view": "grid", "order": "ts"},
    )


def test_a_bin_bounds_its_field_anew():
    made = links("meta.a=ge:1 & meta.a=lt:9 & meta.ab=ge:3 & ts=ge:-24h")
    assert made.between("meta.a", 2.0, 2.5) == (
        "/p",
        {"q": "meta.ab=ge:3 & ts=ge:-24h & meta.a=ge:2 & meta.a=lt:2.5"},
    )
    assert made.between("ts", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")[1]["q"].endswith(
        "ts=ge:2026-01-01T00:00:00Z & ts=lt:2026-01-02T00:00:00Z"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sig.image.blur=ge:-4.1", "blur at least 12.9 of 100"),
        ("sig.image.brightness=lt:40", "brightness less than 40"),
        ("sig.image.colour_a=gt:-3.5", "colour a more than -3.5"),
        ("!sig.image.blur=ge:-4.1", ""),
        ("sig.image.blur=exists:true", ""),
        ("meta.camera=north", ""),
    ],
)
def test_a_bound_of_a_measured_number_is_said_in_words(text, words):
    (chip,) = FilterLinks(filter_from_url(urlencode({"q": text})), lambda *_, **__: "", "/").chips()
    assert (chip.text, chip.words) == (text, words)
