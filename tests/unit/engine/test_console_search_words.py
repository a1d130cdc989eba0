"""What is offered to who types everyday words, signs and names that are no filter, or values that nothing has."""

import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from quadriga.engine.console.filter_line import (
    EVERYDAY_WORDS,
    FilterLinks,
    InferenceFilter,
    MeantLine,
    StoredWords,
    check,
    corrections,
    only_meaning,
)
from quadriga.engine.console.pages.inferences import read_inferences
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.browsing.facets import Facet, FacetValue, HistogramBin, tail_bound
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest

HOSTILE = '"><script>alert(1)</script>'


def stored(field: str, *values: str, bins: list[HistogramBin] | None = None) -> Facet:
    listed = [FacetValue(value, 5) for value in values]
    return Facet(field, "string", 5, distinct=len(values), values=listed, histogram=bins or [])


BLUR = [HistogramBin(low, low + 1, count) for low, count in ((-5, 10), (-4, 10), (-3, 30), (-2, 5))]
WORDS = StoredWords(
    [
        stored("label", "star", "square", "Fire Truck", HOSTILE),
        stored("model", "shapes-detector"),
        stored("score"),
        stored("predictions"),
        stored("meta.camera_id", "dock", "yard", "gate-north"),
        stored("meta.altitude"),
        stored("sig.image.blur", bins=BLUR),
    ]
)


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("blurred", ["sig.image.blur=ge:-2"]),
        ("Blur", ["sig.image.blur=ge:-2"]),
        ("sharp", ["sig.image.blur=lt:-4"]),
        ("blurred star", ["sig.image.blur=ge:-2 & label=star"]),
        ("stars blurry", ["sig.image.blur=ge:-2 & label=star"]),
        ("unsure  Dock", ["box=score:lt:0.5 & meta.camera_id=dock"]),
        ("dark", []),  # no brightness was measured
        ("blurred zebra", []),
        ("false positives", []),  # without reports
        ("low score", ["box=score:lt:0.5"]),
        ("objects", ["predictions=ge:5"]),
        ("label=star & unlabelled", ["label=star & ground_truth=exists:false"]),
        ("last week", ["ts=ge:-7d"]),
        ("score<0.5", ["box=score:lt:0.5"]),
        ("score=lt:0.5", ["box=score:lt:0.5"]),
        ("score = 0.5", ["box=score:ge:0.5"]),
        ("count>3", ["predictions=gt:3"]),
        ("brightness<50", ["sig.image.brightness=lt:50"]),
        ("brightnes<50", ["sig.image.brightness=lt:50"]),
        ("Blur > -2", ["sig.image.blur=gt:-2"]),
        ("labell=star", ["label=star", "ground_truth.label=star"]),
        ("labell", ["label=star"]),
        ("modell=shapes-detector", ["model=shapes-detector", "model.sha256=shapes-detector"]),
        ("camera=dock", ["meta.camera_id=dock"]),
        ("cameras=dock", ["meta.camera_id=dock"]),
        ("meta.camera=DOCK", ["meta.camera_id=dock"]),
        ("camera", ["meta.camera_id=dock"]),
        ("altitude>100", ["meta.altitude=gt:100"]),
        ("label=Star", ["label=star"]),
        ("label=sqare:lt:0.5", ["label=square:lt:0.5"]),
        ("fire truck", ["label=Fire Truck"]),
        ("model=shape-detector", ["model=shapes-detector"]),
        ("meta.camera_id=dok", ["meta.camera_id=dock"]),
        ("label=Star & score<0.5 & meta.altitude=ge:1", ["label=star & box=score:lt:0.5 & meta.altitude=ge:1"]),
        # Nothing is guessed where nothing is near, and nothing that is right is changed.
        *((typed, []) for typed in (
            "zzz", "a=b=c", "((", "score<", "score<high", "score!=0.5", "no square", "label=not square", "label=Zoo | label=Zebra", "", " & ",
            "altitude!=gt:100", "constructor=1", "__proto__", "label=star", "meta.altitude=ge:100", 'label="a or b', "x " * 600)),
    ],
)  # fmt: skip
def test_what_was_meant_is_offered(typed, lines):
    offered = [line for line, _ in corrections(typed, WORDS)]
    assert offered == lines
    assert all(check(line) is None for line in offered)


@pytest.mark.parametrize(
    ("typed", "is_clear"),
    [
        ("blurred", True),
        ("BLURRED", True),
        ("blurred star", True),
        ("stars blurry", True),
        ("label=star & unlabelled", True),
        ("dock & unsure", False),  # what was stored is asked about, alone and beside a word
        ("score", False),
        ("confidence", False),
        ("objects", False),
        ("unsure sqare", False),
        ("score<0.5 & blurred", False),
        ("camera=dock", False),
        ("model=shape-detector", False),
        ("labell", False),
        ("zzz", False),
        ("", False),
    ],
)
def test_everyday_words_of_one_meaning_are_that_filter(typed, is_clear):
    meant = [MeantLine(line, words, "") for line, words in corrections(typed, WORDS)]
    assert only_meaning(typed, meant) == (meant[0] if is_clear else None)
    assert only_meaning(typed, [*meant, MeantLine("label=a", "", ""), MeantLine("label=b", "", "")]) is None  # fmt: skip


def test_yesterday_is_the_day_before_in_utc():
    today = datetime.now(UTC).date()
    ((line, words),) = corrections("yesterday", WORDS)
    assert line in {
        f"ts=ge:{day - timedelta(days=1)}T00:00:00Z & ts=lt:{day}T00:00:00Z"
        for day in (today, datetime.now(UTC).date())
    }
    assert words == "yesterday, UTC"


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ([], None, None),
        ([7], 1, 0),
        ([1, 1, 1, 1], 1, 3),
        ([1, 1, 1, 1, 1, 1, 1, 1], 2, 6),
        ([90, 5, 5], 1, 1),
        ([5, 5, 90], 2, 2),
    ],
)
def test_an_end_holds_a_quarter_at_most_or_one_bin(counts, low, high):
    bins = [HistogramBin(place, place + 1, count) for place, count in enumerate(counts)]
    assert tail_bound(bins, is_low=True) == low
    assert tail_bound(bins, is_low=False) == high


def test_a_stored_key_comes_before_the_field_that_its_name_also_stands_for():
    words = StoredWords([stored("label", "star"), stored("meta.category", "food")])
    offered = [line for line, _ in corrections("category=Food", words)]
    assert offered == ["meta.category=food", "label=Food"]

    words = StoredWords([stored("label", "star"), stored("meta.score"), stored("score")])
    assert [line for line, _ in corrections("score=3", words)] == ["meta.score=3", "box=score:ge:3"]
    assert [line for line, _ in corrections("score=0.3", words)] == ["meta.score=0.3", "box=score:ge:0.3"]  # fmt: skip


def test_a_stored_name_that_begins_with_not_is_found():
    words = StoredWords([stored("label", "working", "not working")])
    assert corrections("label=not workin", words) == [("label=not working", "")]


def test_many_words_beside_many_values_take_no_long_time():
    facets = [stored(f"meta.key_{key}", *(f"{key}-{n}" for n in range(100))) for key in range(60)]
    begun_s = time.process_time()
    assert corrections("low " * 240 + "nothing", StoredWords(facets)) == []
    assert time.process_time() - begun_s < 25


def test_a_hostile_value_is_quoted():
    ((line, _),) = corrections(HOSTILE.upper(), WORDS)
    assert QueryRequest(where=line).parse_filter() == QueryRequest(where={"label": HOSTILE}).parse_filter()  # fmt: skip


def test_a_wrong_filter_is_explained_while_the_database_is_away(tmp_path):
    store = InferenceReader(f"sqlite:///{tmp_path}/none.db", tmp_path, FileBlobs(tmp_path))
    filter_ = InferenceFilter("score<0.5")
    page = read_inferences(store, filter_, FilterLinks(filter_, lambda path, **_: path, "/"))
    store.close()
    assert page["problem"] is not None
    assert page["problem"].position == 5
    assert page["meant"] == []


def test_every_everyday_word_leads_to_one_filter():
    names = [name for word in EVERYDAY_WORDS for name in word.names]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)
    for word in EVERYDAY_WORDS:
        line = re.sub(r"\{\w+\}", "2026-01-31", word.line) + (
            "1" if word.line.endswith(":") else ""
        )
        assert check(line) is None
        assert word.meaning
