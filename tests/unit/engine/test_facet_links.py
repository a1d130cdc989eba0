"""Facets of the page of inferences: values of a chosen field stay to be chosen, counted as a filter with them finds them."""

import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.engine.console.filter_line import FilterLinks, InferenceFilter, choice_text, choices
from quadriga.engine.console.pages import inferences
from quadriga.store.browsing import sample
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.database.database import migrate
from quadriga.store.query.filters.syntax import Compare
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import ModelReference
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness, store_entries

FIRST = 700_000_000_000
HOSTILE = '<b>"north", east & (west)'
CAMERAS = ["north", "north", "east", "west", HOSTILE, "in", "true", ""]
VALUES: list[Any] = [
    "a,b",
    'say "x"',
    "true",
    True,
    "1",
    1,
    1.5,
    "",
    "in",
    "gt:5",
    "ä b",
    "x" * 300,
]


@pytest.mark.parametrize("count", [1, 2, len(VALUES)])
def test_a_choice_of_any_values_is_read_back_as_it_was(count):
    for at in range(len(VALUES)):
        values = (VALUES[at:] + VALUES[:at])[:count]
        text = choice_text("meta.a key", values)
        ((field, (part, read)),) = choices([text]).items()
        assert (field, part) == ("meta.a key", text)
        assert [(type(value), value) for value in read] == [(type(v), v) for v in values]
        tree = QueryRequest(where=text).parse_filter()
        assert isinstance(tree, Compare)


@pytest.mark.parametrize(
    ("texts", "chosen"),
    [
        (["meta.camera=north", "status=500"], {"meta.camera": ("north",), "status": (500.0,)}),
        (["meta.camera=in:north,east"], {"meta.camera": ("north", "east")}),
        (["meta.camera=a", "meta.camera=b", "version=2"], {"version": ("2",)}),  # which holds for none
        (["meta.camera=ne:north"], {}),
        (["!meta.camera=north", "(meta.camera=a | meta.floor=1)", "meta.altitude=ge:5"], {}),
        (["ground_truth=exists:false"], {"ground_truth": (False,)}),
        (["ground_truth=exists:true"], {"ground_truth": (True,)}),
        (["meta.camera=exists:true", "label=star", "box=score:ge:0.5", "ts=ge:-1h", "id=5", "nothing="], {}),
    ],
)  # fmt: skip
def test_what_chooses_values_is_told_from_what_does_not(texts, chosen):
    assert {field: values for field, (_, values) in choices(texts).items()} == chosen


@pytest.mark.parametrize(
    ("line", "field", "value", "changed"),
    [
        ("", "meta.camera", "north", "meta.camera=north"),
        ("label=star", "meta.camera", "north", "label=star & meta.camera=north"),
        ("meta.camera=north & label=star", "meta.camera", "east", "meta.camera=in:north,east & label=star"),
        ("meta.camera=in:north,east", "meta.camera", "north", "meta.camera=east"),
        ("label=star & meta.camera=north", "meta.camera", "north", "label=star"),
        ("meta.camera=north", "meta.camera", "", 'meta.camera=in:north,""'),
        ("meta.floor=1", "meta.floor", True, "meta.floor=in:1,true"),
        ("ground_truth=exists:true", "ground_truth", False, "ground_truth=exists:false"),
        ("ground_truth=exists:true", "ground_truth", True, ""),
        ("meta.camera=a & meta.camera=b", "meta.camera", "c", "meta.camera=a & meta.camera=b & meta.camera=c"),
    ],
)  # fmt: skip
def test_a_value_is_added_to_those_that_are_chosen_or_taken_away(line, field, value, changed):
    links = FilterLinks(InferenceFilter(line), lambda path, **options: options.get("q", ""), "/")
    assert links.toggled_value(field, value) == changed


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Application]:
    """Yield a server over inferences of several cameras, floors and versions."""
    settings = Settings(
        models=str(SAMPLE_MODELS), data=str(tmp_path_factory.mktemp("facets") / "data")
    )
    migrate(settings.database_url)
    records = [
        make_record(
            FIRST + number,
            model=ModelReference("shapes", str(number % 3), f"{number % 3}a" * 32),
            status=500 if number % 7 == 0 else 200,
            predictions=[{"label": ("star", "ring", "box")[number % 3], "score": 0.5}],
            metadata={"camera": CAMERAS[number % len(CAMERAS)], "floor": number % 2, "rare": f"r{number % 40}",
                      "taken_ms": 1764343620123 + number % 3, "ratio": (0.1 + 0.2) * (1 + number % 2),
                      "note": "x" * (300 if number % 2 else 5)},
        )
        for number in range(200)
    ]  # fmt: skip
    store_entries(settings.database_url, settings.journal_directory, records)
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    yield application
    application.close()


def facet(server: Application, line: str, field: str) -> dict[str, tuple[str, bool, str]]:
    """Return the values of a facet: count, whether it is chosen, and the line of its link."""
    page = open_page(server, f"/console/inferences?q={quote(line)}")
    assert page.status == 200
    section = re.search(rf"<section class=\"facet\"><h2><code title=\"{re.escape(field)}\">.*?</section>", page.text, re.DOTALL)  # fmt: skip
    rows = re.findall(
        r'<a href="([^"]*)" rel="nofollow"( aria-current="true")?><span class="box".*?<span title="([^"]*)">.*?<span class="n">([^<]*)<',
        section[0] if section else "",
    )
    return {
        html.unescape(name): (count, bool(chosen), query_of(link))
        for link, chosen, name, count in rows
    }


def query_of(link: str) -> str:
    return parse_qs(urlsplit(html.unescape(link)).query).get("q", [""])[0]


def found(server: Application, line: str) -> int:
    page = open_page(server, f"/console/inferences?q={quote(line)}")
    match = re.search(r"<b>([\d,]+) inferences?</b>", page.text)
    return int(match[1].replace(",", "")) if match else 0


@pytest.mark.parametrize(
    ("rest", "field", "values"),
    [
        ("", "meta.camera", CAMERAS),
        ("label=star & meta.floor=1", "meta.camera", CAMERAS[1::2]),
        ("label=star", "version", ["0"]),
        ("meta.camera=north", "version", ["0", "1", "2"]),
        ("meta.camera=north", "status", ["200", "500"]),
    ],
)
def test_other_values_stay_with_as_many_as_a_filter_with_them_finds(server, rest, field, values):
    for value in values:
        choice = choice_text(field, [float(value) if field == "status" else value])
        line = f"{rest} & {choice}" if rest else choice
        shown = facet(server, line, field)
        assert shown.keys() == set(values)
        assert [name for name, (_, is_chosen, _) in shown.items() if is_chosen] == [value]
        for name, (count, _, _) in shown.items():
            other = choice_text(field, [float(name) if field == "status" else name])
            assert int(count) == found(server, f"{rest} & {other}" if rest else other), name


def test_links_add_values_and_take_them_away(server):
    shown = facet(server, "meta.camera=north", "meta.camera")
    both = shown[HOSTILE][2]
    count = Counter(CAMERAS[number % len(CAMERAS)] for number in range(200))
    assert found(server, both) == count["north"] + count[HOSTILE]
    further = facet(server, both, "meta.camera")
    assert {name for name, (_, is_chosen, _) in further.items() if is_chosen} == {"north", HOSTILE}
    assert further["north"][2] == choice_text("meta.camera", [HOSTILE])
    assert facet(server, further["north"][2], "meta.camera")[HOSTILE][2] == ""


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("meta.taken_ms", ["1764343620123", "1764343620124", "1764343620125"]),
        ("meta.ratio", ["0.3", "0.6"]),
    ],
)
def test_numbers_of_many_digits_are_told_apart_and_found(server, field, names):
    shown = facet(server, "", field)
    assert sorted(shown) == names
    for name, (count, _, line) in shown.items():
        assert found(server, line) == int(count) > 0
        chosen = facet(server, line, field)
        assert sorted(chosen) == names
        assert [other for other, (_, is_chosen, _) in chosen.items() if is_chosen] == [name]


def test_what_was_chosen_is_shown_however_rare_it_is(server):
    shown = facet(server, "meta.rare=r39", "meta.rare")
    assert shown["r39"][:2] == ("5", True)
    assert len(shown) == inferences.VALUES


def test_a_choice_that_nothing_has_can_be_taken_back_in_the_list(server):
    shown = facet(server, "meta.camera=nrth", "meta.camera")
    assert shown["nrth"] == ("0", True, "")
    assert shown["north"][0] == "50"
    assert shown["north"][2] == "meta.camera=in:nrth,north"


@pytest.mark.parametrize("line", ["meta.rare=r39", "meta.rare=zzz", "meta.rare=in:r39,zzz"])
def test_as_many_further_values_are_said_as_there_are(server, line):
    page = open_page(server, f"/console/inferences?q={quote(line)}").text
    section = page[page.index(">meta.rare</code>") :]
    shown = facet(server, line, "meta.rare")
    there = [name for name, (count, _, _) in shown.items() if count != "0"]
    assert f"{40 - len(there)} more" in section[: section.index("</section>")]


@pytest.mark.parametrize(
    ("line", "zero"), [("best=z", []), ("best=zz", ["zz"]), ("best=in:z,zz", [])]
)
def test_only_what_no_inference_has_is_said_to_be_nowhere(tmp_path, line, zero):
    labels = [*(f"a{number}" for number in range(9)), "z"]  # more than a list has
    predictions = [{"label": label, "score": 0.5} for label in labels]
    url = f"sqlite:///{tmp_path}/store.db"
    store_entries(url, tmp_path / "journal", [make_record(FIRST, predictions=predictions)])
    harness = StoreHarness(tmp_path, url)
    links = FilterLinks(InferenceFilter(line), lambda path, **options: "", "/")
    facets = find_facets(harness.inferences, FacetsRequest(line, None, inferences.VALUES, 2))
    counted = inferences.counted_facets(harness.inferences, facets, links)
    harness.close()
    (of_labels,) = (each.facet for each in counted if each.facet.field == "label")
    assert [value.value for value in of_labels.values if not value.count] == zero


def test_a_text_that_is_too_long_for_a_list_has_no_link_that_finds_nothing(server):
    long = choice_text("meta.note", ["x" * 300])
    for line in ("", long):
        shown = facet(server, line, "meta.note")
        assert list(shown) in ([], ["xxxxx"])
        assert all(count != "0" for count, _, _ in shown.values())
    assert found(server, long) == 100


def test_labels_narrow_as_an_image_may_have_several(server):
    shown = facet(server, "label=star", "label")
    assert shown.keys() == {"star"}
    assert shown["star"][1]


def test_at_most_a_few_fields_are_counted_without_their_choice(server):
    chosen = ["meta.camera=north", "meta.floor=1", "version=0", "status=200"]
    assert len(chosen) > inferences.MAX_WIDER
    shown = [facet(server, " & ".join(chosen), part.partition("=")[0]) for part in chosen]
    assert [len(values) > 1 for values in shown] == [True, True, True, False]
    assert [[name for name in values if values[name][1]] for values in shown] == [["north"], ["1"], ["0"], ["200"]]  # fmt: skip


def test_each_facet_says_whether_its_numbers_are_estimates(server, monkeypatch):
    monkeypatch.setattr(sample, "EXACT_ROWS", 60)
    monkeypatch.setattr(sample, "ROWS", 60)
    line = "meta.camera=north"  # 50 inferences
    cameras, floors = facet(server, line, "meta.camera"), facet(server, line, "meta.floor")
    assert floors["0"][0] == "25"
    assert all(count.startswith("~") for count, _, _ in cameras.values())
    page = open_page(server, f"/console/inferences?q={quote(line)}").text
    assert "Numbers with ~ are estimates from a sample." in page
