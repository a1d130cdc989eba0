"""What is offered to who types words and signs that are no filter, or values that nothing has."""

import time
from datetime import date

import pytest

from quadriga.engine.console.filter_problems import check
from quadriga.engine.console.inference_filter import FilterLinks, InferenceFilter
from quadriga.engine.console.pages.inferences import read_inferences
from quadriga.engine.console.search_words import StoredWords, corrections, phrases
from quadriga.store.blobs.files import FileBlobs
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest

TODAY = date(2026, 3, 1)
YESTERDAY = "ts=ge:2026-02-28T00:00:00Z & ts=lt:2026-03-01T00:00:00Z"
HOSTILE = '"><script>alert(1)</script>'
WORDS = StoredWords(
    {
        "label": ["star", "square", "Fire Truck", HOSTILE],
        "model": ["shapes-detector"],
        "predictions": [],
        "meta.camera_id": ["dock", "yard", "gate-north"],
        "meta.altitude": [],
    }
)


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("score<0.5", ["box=score:lt:0.5"]),
        ("score=lt:0.5", ["box=score:lt:0.5"]),
        ("score = 0.5", ["box=score:ge:0.5"]),
        ("Confidence below 50 %", ["box=score:lt:0.5"]),
        ("conf >= 80%", ["box=score:ge:0.8"]),
        ("score>0,25", ["box=score:gt:0.25"]),
        ("low score", ["box=score:lt:0.5"]),
        ("confidence", ["box=score:lt:0.5"]),
        ("low", ["box=score:lt:0.5"]),
        ("objects", ["predictions=ge:5"]),
        ("count>3", ["predictions=gt:3"]),
        ("yesterday", [YESTERDAY]),
        ("ts=yesterday", [YESTERDAY]),
        ("time>yesterday", ["ts=ge:2026-03-01T00:00:00Z"]),
        ("time>=yesterday", ["ts=ge:2026-02-28T00:00:00Z"]),
        ("ts=gt:yesterday", ["ts=ge:2026-03-01T00:00:00Z"]),
        ("ts=ge:yesterday", ["ts=ge:2026-02-28T00:00:00Z"]),
        ("ts=le:yesterday", ["ts=lt:2026-03-01T00:00:00Z"]),
        ("ts=eq:yesterday", [YESTERDAY]),
        ("ts=in:yesterday", []),
        ("time>today", ["ts=ge:2026-03-01T00:00:00Z"]),
        ("ts>last week", ["ts=ge:-7d"]),
        ("2026-02-28", [YESTERDAY]),
        ("ts=2026-02-28", [YESTERDAY]),
        ("day > 2026-02-28", ["ts=ge:2026-03-01T00:00:00Z"]),
        ("ts=ge:2026-02-28", ["ts=ge:2026-02-28T00:00:00Z"]),
        ("date<=2026-02-28", ["ts=lt:2026-03-01T00:00:00Z"]),
        ("date<2026-02-28", ["ts=lt:2026-02-28T00:00:00Z"]),
        ("date>2026-02-30", []),
        ("date=9999-12-31", []),
        ("ts=ge:2026-02-28T05:00:00Z", []),
        ("date<=yesterday", ["ts=lt:2026-03-01T00:00:00Z"]),
        ("date<yesterday", ["ts=lt:2026-02-28T00:00:00Z"]),
        ("date<=today", []),
        ("date<today", ["ts=lt:2026-03-01T00:00:00Z"]),
        ("stars yesterday", [f"label=star & {YESTERDAY}"]),
        ("label=Star", ["label=star"]),
        ("label=sqare:lt:0.5", ["label=square:lt:0.5"]),
        ("fire truck", ["label=Fire Truck"]),
        ("model=shape-detector", ["model=shapes-detector"]),
        ("meta.camera_id=Dock", ["meta.camera_id=dock"]),
        ("meta.camera_id=dok", ["meta.camera_id=dock"]),
        ("camera=dock", ["meta.camera_id=dock"]),
        ("meta.camera=DOCK", ["meta.camera_id=dock"]),
        ("camera", ["meta.camera_id=dock"]),
        ("altitude>100", ["meta.altitude=gt:100"]),
        ("altitude le : 100", ["meta.altitude=le:100"]),
        ("camera ne: dock", ["meta.camera_id=ne:dock"]),
        ("camera_id in: dock,yard", ["meta.camera_id=in:dock,yard"]),
        ("camera_id Is Not dock", ["meta.camera_id=ne:dock"]),
        ("meta.camera_id=dock or meta.camera_id=yard", ["meta.camera_id=in:dock,yard"]),
        ("camera=dock or yard", ["meta.camera_id=in:dock,yard"]),
        ("Camera = Dock or Yard", ["meta.camera_id=in:dock,yard"]),
        ("camera=dock or camera=yard", ["meta.camera_id=in:dock,yard"]),
        ("meta.camera=dock or yard & label=star", ["meta.camera_id=in:dock,yard & label=star"]),
        ("class=star or square", ["label=in:star,square"]),
        ("colour=red or blue", []),
        ("label=star or Square", ["label=in:star,square"]),
        ("star or dock", ["(label=star | meta.camera_id=dock)"]),
        ("label=star and score<0.5", ["label=star & box=score:lt:0.5"]),
        ("label=Star & score<0.5 & meta.altitude=ge:1",
         ["label=star & box=score:lt:0.5 & meta.altitude=ge:1"]),
        # Nothing is guessed where nothing is near, and nothing that is right is changed.
        ("zzz", []),
        ("a=b=c", []),
        ("((", []),
        ("score<", []),
        ("score<high", []),
        ("score!=0.5", []),
        ("ts!=today", []),
        ("date != yesterday", []),
        ("label!=star or square", []),
        ("label=star meta.camera_id=dock", ["label=star & meta.camera_id=dock"]),
        ("label=Star  meta.camera=Dock ts=2026-02-28", [f"label=star & meta.camera_id=dock & {YESTERDAY}"]),
        ("label=star & meta.camera=dock label=square", ["label=star & meta.camera_id=dock & label=square"]),
        ('meta.note="as label=star" meta.camera_id=dock', ['meta.note="as label=star" & meta.camera_id=dock']),
        ("low score label=star", ["box=score:lt:0.5 & label=star"]),
        ("brightness<50", ["sig.image.brightness=lt:50"]),
        ("Blur > -2", ["sig.image.blur=gt:-2"]),
        ("altitude!=gt:100", []),
        ("no square", []),
        ("not square", []),
        ("label=not square", []),
        ("non camera_id=dock", []),
        ("label=Zoo | label=Zebra", []),
        ("camera i\u017f dock", []),
        ("", []),
        (" & ", []),
        ("constructor=1", []),
        ("__proto__", []),
        ("label=star", []),
        ("meta.altitude=ge:100", []),
        ('label="a or b', []),
        ("x " * 600, []),
    ],
)  # fmt: skip
def test_what_was_meant_is_offered(typed, lines):
    offered = [correction.line for correction in corrections(typed, WORDS, TODAY)]
    assert offered == lines
    assert all(check(line) is None for line in offered)


def test_a_quoted_value_keeps_its_words():
    offered = corrections('meta.note="sugar and spice && all" & score<0.5', WORDS, TODAY)
    assert [correction.line for correction in offered] == [
        'meta.note="sugar and spice && all" & box=score:lt:0.5'
    ]


def test_a_stored_key_comes_before_the_field_that_its_name_also_stands_for():
    words = StoredWords({"label": ["star"], "meta.category": ["food"], "meta.score": []})
    offered = [correction.line for correction in corrections("category=Food", words, TODAY)]
    assert offered == ["meta.category=food", "label=Food"]
    offered = [correction.line for correction in corrections("score>3", words, TODAY)]
    assert offered == ["meta.score=gt:3", "box=score:gt:0.03"]


def test_a_stored_name_that_begins_with_not_is_found():
    words = StoredWords({"label": ["working", "not working"]})
    offered = corrections("label=not workin", words, TODAY)
    assert [correction.line for correction in offered] == ["label=not working"]


def test_many_words_beside_many_values_take_no_long_time():
    values = {f"meta.key_{key}": [f"{key}-{n}" for n in range(100)] for key in range(60)}
    begun_s = time.process_time()
    assert corrections("low " * 240 + "nothing", StoredWords(values), TODAY) == []
    # 57 s where each row of words is compared with each value
    assert time.process_time() - begun_s < 25


def test_a_hostile_value_is_quoted():
    (offered,) = corrections(HOSTILE.upper(), WORDS, TODAY)
    assert (
        QueryRequest(where=offered.line).parse_filter()
        == QueryRequest(where={"label": HOSTILE}).parse_filter()
    )


def test_a_wrong_filter_is_explained_while_the_database_is_away(tmp_path):
    store = InferenceReader(f"sqlite:///{tmp_path}/none.db", tmp_path, FileBlobs(tmp_path))
    filter_ = InferenceFilter("score<0.5")
    page = read_inferences(store, filter_, FilterLinks(filter_, lambda path, **_: path, "/"))
    store.close()
    assert page.problem is not None
    assert page.problem.position == 5
    assert page.meant == []


def test_every_phrase_is_a_filter_and_belongs_to_one_comparison():
    table = phrases(TODAY)
    names = [name for phrase in table for name in phrase.names]
    assert len(names) == len(set(names))
    assert all(check(phrase.line) is None for phrase in table)
