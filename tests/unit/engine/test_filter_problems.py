"""Why a line is no filter: in plain words, with the caret below the beginning of the wrong word."""

from itertools import count

import pytest

from quadriga.engine.console import filter_line
from quadriga.engine.console.filter_line import absent, check


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("camera", "camera", "“camera” is compared with nothing."),
        ("a b c", "a b c", "“a b c” is compared with nothing."),
        ("label=ship & altitude", "altitude", "“altitude” is compared with nothing."),
        ("(label=ship | altitude) & status=200", "altitude) & status=200", "“altitude” is compared with nothing."),
        ('"a key"', '"a key"', "is compared with nothing."),
        ("score<0.5", "<0.5", "A filter has no <. Write =lt: instead"),
        ("status >= 500", ">= 500", "A filter has no >=. Write =ge: instead"),
        ("status >= ", ">= ", "Write =ge: instead"),
        ("brightness<50", "<50", "Write =lt: instead"),
        ("meta.lens!=a & status=200", "!=a & status=200", "Write =ne: instead"),
        ("Missed", "Missed", "“Missed” is what an evaluation finds"),
        ("label=ship & wrong", "wrong", "“wrong” is what an evaluation finds"),
        ("label=ship & meta.camera!=north", "!=north", "A filter has no !=. Write =ne: instead"),
        ("label=ship &", "", "expected a comparison"),
        ("label=ship & & status=200", "& status=200", "expected a comparison"),
        ("!(", "", "expected a comparison"),
        ("status=200 & (label=ship", "", "expected a closing parenthesis"),
        ('(meta.a="(" | (label=ship)', "", "expected a closing parenthesis"),
        ("=5", "=5", "expected a comparison"),
        ("label=ship & =5", "=5", "expected a comparison"),
        ('""=5 & label=ship', '""=5 & label=ship', "There is no field “”."),
        ("label=ship)", ")", "expected & or | and another comparison"),
        ('meta.a="x', '"x', "expected a closing quote"),
        ("meta.a=a<b", "<b", "or quotes around the value"),
        ('meta.a=a"b"', 'a"b"', "expected quotes around all of a value"),
        ("label=ship & nothing=5", "nothing=5", "There is no field “nothing”."),
        ("!nothing=5", "nothing=5", "There is no field “nothing”."),
        ("status=200 & score=lt:0.5", "score=lt:0.5", "There is no field “score”."),
        ("meta.altitude=gt:", "", "A value is missing after gt:"),
        ("label=ship & meta.altitude=ge: & label=car", " & label=car", "A value is missing after ge:"),
        ("ts=ge:yesterday", "yesterday", "expected ts.ge to be a moment such as 2026-01-31T12:00:00Z, -24h or now"),
        ("ts = noon", "noon", "got a string 'noon'"),
        ("predictions=many", "many", "expected predictions to be a number"),
        ("status=in:200, 300, a, b", "a, b", "to be a number, got a string 'a'"),
        ("latency_ms=contains:5", "contains:5", "got 'contains'"),
        ("latency_ms=lt:1e999", "1e999", "expected a number of 64 bits, got 1e999"),
        ("meta.a=gte:5", "gte:5", "got 'gte:5'"),
        ("meta.a=ge:true", "ge:true", "expected meta.a.ge to be a number or a string"),
        ("meta.a=exists:maybe", "maybe", "to be true or false"),
        ("ground_truth=yes", "yes", "Write ground_truth=exists:true"),
        ("ground_truth.review=ok", "ok", "needs_review, approved, rejected"),
        ("id=abc", "abc", "expected id to be an id"),
        ("label=star:foo:3", "foo:3", "got 'foo:3'"),
        ("label=star:ge:0.5:width:x", "x", "got 'x'"),
        ("label=ne:star:ge:0.5", "ne:star:ge:0.5", "expected nothing after the name"),
        ("box=score", "score", "as in score:ge:0.5"),
        ("best=star:ge:0.5", "star:ge:0.5", "expected nothing after the name"),
        ("model.sha256=in:cafe1234,cafe", "cafe", "or its first 8 digits or more"),
        ("geo=51.5", "51.5", "geo=51.5,-0.12,5km"),
        ("label=ship & truth=star", "star", "report=ID & truth=star"),
        ("ts=" + "x" * 200, "x" * 200, "expected ts to be a moment"),
    ],
)  # fmt: skip
def test_an_error_names_the_wrong_word_and_points_to_its_beginning(line, wrong, words):
    problem = check(line)
    assert problem is not None
    assert line[problem.position :] == wrong
    assert words in problem.message
    assert " at character " not in problem.message
    assert len(problem.message) < 600


def test_an_unknown_field_is_answered_without_the_list_of_all():
    problem = check("labell=star")
    assert problem is not None
    assert "labell" in problem.message
    assert "ground_truth" not in problem.message


@pytest.mark.parametrize("line", ["", "label=ship", "()", "meta.a=in:", 'meta.note=""', "meta.a=x:y"])  # fmt: skip
def test_a_filter_has_no_error(line):
    assert check(line) is None


@pytest.mark.parametrize(
    "line", ["=", "==", '"', '"=', "!", "(|", "a=(", "=1", "\n", " & ", "&" * 300, "(" * 40, "status=2" + " & status=2" * 300,
             "label=", "label=:", "box=", "geo=", "meta.=1", "std.a b=1", "label=in:", "label=a:ge:", "id=in:1,,2", 'meta.a="\\q"'],
)  # fmt: skip
def test_whatever_is_typed_has_words_and_a_place_within_the_line(line):
    problem = check(line)
    # Some are filters after all, such as of an empty label.
    assert problem is None or (problem.message and 0 <= problem.position <= len(line))


@pytest.mark.parametrize(
    ("line", "error", "wrong"),
    [
        ("label=ship & model=gauge", "model not found: gauge", "gauge"),
        ("status=200 & (report=7 & truth=star)", "report not found: 7", "7 & truth=star)"),
        ("label=ship", "model not found: gauge", "label=ship"),
        ("", "report not found", ""),
    ],
)
def test_what_is_not_there_is_pointed_to(line, error, wrong):
    problem = absent(line, error)
    assert (problem.message, line[problem.position :]) == (error, wrong)


@pytest.mark.parametrize(
    "line", ["label=" + ":" * 8000, "label=" + "a:" * 4000, "box=" + "score:ge:0.5:" * 600 + "x"]
)
def test_a_hostile_condition_is_read_few_times(line, monkeypatch):
    reads, error_of = count(1), filter_line._error_of
    monkeypatch.setattr(filter_line, "_error_of", lambda text: (next(reads), error_of(text))[1])
    assert "expected" in check(line).message
    assert next(reads) < 5
