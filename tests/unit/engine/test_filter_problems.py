"""Why a line is no filter: in plain words, with the caret below the beginning of the wrong word."""

from itertools import count

import pytest

from quadriga.engine.console import filter_problems
from quadriga.engine.console.filter_problems import absent, check


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("camera", "camera", "“camera” is compared with nothing."),
        ("a b c", "a b c", "“a b c” is compared with nothing."),
        ("label=ship & altitude", "altitude", "“altitude” is compared with nothing."),
        ("(label=ship | altitude) & status=200", "altitude) & status=200", "“altitude” is compared with nothing."),
        ('"a key"', '"a key"', "is compared with nothing."),
        ("score<0.5", "<0.5", "A filter has no <. Write =lt: instead"),
        ("status >= 500", ">= 500", "A filter has no >=. Write =ge: instead, as in status=ge:500."),
        ("status >= ", ">= ", "as in latency_ms=ge:5."),
        ("brightness<50", "<50", "as in latency_ms=lt:5."),
        ("meta.lens!=a & status=200", "!=a & status=200", "as in meta.lens=ne:a."),
        ("Missed", "Missed", "What is “Missed” is known once an evaluation"),
        ("label=ship & wrong", "wrong", "What is “wrong” is known once an evaluation"),
        ("status=2" + " & status=2" * 250 + ' & meta.a="x & b=2', '"x & b=2', "The quotes that begin here have no end."),
        ('meta.b="y" & ' + "status=2 & " * 250 + '"', '"', "The quotes that begin here have no end."),
        ("label=ship & meta.camera!=north", "!=north", "A filter has no !=. Write =ne: instead"),
        ("label=ship &", "", "A comparison is missing here"),
        ("label=ship & & status=200", "& status=200", "A comparison is missing here"),
        ("!(", "", "A comparison is missing here"),
        ("status=200 & (label=ship", "(label=ship", "This parenthesis is not closed."),
        ('(meta.a="(" | (label=ship)', '(meta.a="(" | (label=ship)', "This parenthesis is not closed."),
        ("=5", "=5", "A field is missing before ="),
        ("label=ship & =5", "=5", "A field is missing before ="),
        ('""=5 & label=ship', '""=5 & label=ship', "A field is missing before ="),
        ("label=ship)", ")", "This parenthesis closes none"),
        ('meta.a="x', '"x', "The quotes that begin here have no end."),
        ("meta.a=a<b", "<b", "needs double quotes"),
        ('meta.a=a"b"', 'a"b"', "needs double quotes"),
        ("label=ship & nothing=5", "nothing=5", "There is no field “nothing”."),
        ("!nothing=5", "nothing=5", "There is no field “nothing”."),
        ("status=200 & score=lt:0.5", "score=lt:0.5", "box=score:ge:0.5"),
        ("meta.altitude=gt:", "", "A value is missing after gt:"),
        ("label=ship & meta.altitude=ge: & label=car", " & label=car", "A value is missing after ge:"),
        ("ts=ge:yesterday", "yesterday", "“yesterday” is no time."),
        ("ts = noon", "noon", "“noon” is no time."),
        ("predictions=many", "many", "“many” is no number"),
        ("status=in:200, 300, a, b", "a, b", "“a” is no number"),
        ("latency_ms=contains:5", "contains:5", "latency_ms cannot be compared by “contains”"),
        ("meta.a=gte:5", "gte:5", "meta.a cannot be compared by “gte”"),
        ("meta.a=ge:true", "true", "“true” is neither more nor less"),
        ("meta.a=exists:maybe", "maybe", "neither true nor false"),
        ("ground_truth=yes", "yes", "ground_truth=exists:true or ground_truth=exists:false"),
        ("ground_truth.review=ok", "ok", "needs_review, approved, rejected"),
        ("id=abc", "abc", "“abc” is no id."),
        ("label=star:foo:3", "foo:3", "“foo:3” is no condition of a prediction."),
        ("label=star:ge:0.5:width:x", "width:x", "“width:x” is no condition of a prediction."),
        ("label=ne:star:ge:0.5", "ge:0.5", "“ge:0.5” is no condition of a prediction."),
        ("box=score", "score", "as in box=score:ge:0.5."),
        ("best=star:ge:0.5", "star:ge:0.5", "best=in:star,ring"),
        ("model.sha256=in:cafe1234,cafe", "cafe", "“cafe” is too short"),
        ("geo=51.5", "51.5", "“51.5” is no place."),
        ("label=ship & truth=star", "star", "report=ID & truth=star"),
        ("ts=" + "x" * 300, "x" * 300, "xx… ".strip()),
    ],
)  # fmt: skip
def test_an_error_names_the_wrong_word_and_points_to_its_beginning(line, wrong, words):
    problem = check(line)
    assert problem is not None
    assert line[problem.position :] == wrong
    assert words in problem.message
    assert not problem.message.startswith("expected")
    assert len(problem.message) < 200


@pytest.mark.parametrize("line", ["camera", "a & ", "nothing=5"])
def test_an_example_is_of_the_store_or_says_that_it_is_none(line):
    for example, words in (((), "meta.KEY=VALUE"), (("meta.lens=a",), "meta.lens=a")):
        problem = check(line, *example)
        assert problem is not None
        assert words in problem.message
        assert "camera=north" not in problem.message


@pytest.mark.parametrize("line", ["label=ship & nothing=5", "(label=ship", 'meta.a="x'])
def test_the_caret_stands_below_the_place(line):
    problem = check(line)
    assert problem is not None
    assert problem.caret.index("^") == len(problem.before) == problem.position
    assert problem.before + problem.after == line


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


def test_long_lines_are_cut_around_the_place():
    problem = check("meta.a=" + "x" * 200 + " & & nothing=1")
    assert problem is not None
    assert len(problem.before) <= 60
    assert len(problem.after) <= 60


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
    reads, error_of = count(1), filter_problems._error_of
    monkeypatch.setattr(filter_problems, "_error_of", lambda text: (next(reads), error_of(text))[1])
    assert "is no condition of a prediction" in check(line).message
    assert next(reads) < 25
