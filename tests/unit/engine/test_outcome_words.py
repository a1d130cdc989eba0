"""Words for what a model got wrong: they lead to the images that the newest evaluations list for it."""

import html
import re
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from msgspec.structs import replace

from quadriga.engine.console.filter_line import check, outcome_line
from quadriga.monitor.report.cells import Cell, save_cells
from quadriga.monitor.report.schema import Confusion, ReportedModel
from quadriga.store.records.records import InputReference, JournaledChange, TruthStatement
from tests.unit.engine.console_harness import open_page
from tests.unit.engine.drift_reports import drift_report, keep_report, report_id
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

REPORT = "1790000000000000000-00a1"
FIRST = 700_000_000_000
HOSTILE = '<b>"a", b & (c)'


@pytest.mark.parametrize(
    ("confusion", "lines"),
    [
        (Confusion(), {}),
        (Confusion(["a", "b"], [[5, 0], [0, 3]]), {}),
        (
            Confusion(["a"], [[5]], misses={"a": 2}),
            {"missed": 'report=R & predicted=""', "wrong": 'report=R & predicted=""'},
        ),
        (
            Confusion(["a"], [[5]], hallucinations={"a": 2}),
            {"false positives": 'report=R & truth=""', "wrong": 'report=R & truth=""'},
        ),
        (
            Confusion(["a", "b", "c"], [[5, 1, 2], [0, 3, 0], [4, 0, 0]], {"a": 1}, {"b": 7, "c": 0}),
            {
                "missed": 'report=R & predicted=""',
                "false positives": 'report=R & truth=""',
                "wrong": '(report=R & predicted="") | (report=R & truth="") | (report=R & truth=a & predicted=in:b,c)'
                " | (report=R & truth=c & predicted=a)",
            },
        ),
        (
            Confusion([HOSTILE, ""], [[0, 1], [1, 0]]),
            {"wrong": r'(report=R & truth="<b>\"a\", b & (c)" & predicted="") | (report=R & truth="" & predicted="<b>\"a\", b & (c)")'},
        ),
        (Confusion([str(n) for n in range(60)], [[1] * 60] * 60), {}),
    ],
)  # fmt: skip
def test_the_cells_of_a_report_are_a_filter(confusion, lines):
    made = {
        kind: outcome_line(REPORT, confusion, kind)
        for kind in ("missed", "false positives", "wrong")
    }
    report = f'report="{REPORT}"'
    expected = {kind: lines.get(kind, "").replace("report=R", report) for kind in made}
    assert made == expected
    assert all(check(line) is None for line in made.values())


def test_the_cells_of_one_label():
    confusion = Confusion(
        ["a", "b", "c"],
        [[5, 1, 2], [0, 3, 0], [4, 0, 0]],
        misses={"a": 1, "b": 2},
        hallucinations={"b": 7},
    )
    report = f'report="{REPORT}"'
    assert outcome_line(REPORT, confusion, "missed", "a") == f'{report} & truth=a & predicted=""'
    assert outcome_line(REPORT, confusion, "missed", "c") == ""
    assert (
        outcome_line(REPORT, confusion, "false positives", "b")
        == f'{report} & truth="" & predicted=b'
    )
    wrong = f"({report} & truth=a & predicted=c) | ({report} & truth=c & predicted=a)"
    assert outcome_line(REPORT, confusion, "wrong", "c") == wrong


def meant(page: str) -> list[tuple[str, str]]:
    """Return the filter and the words of each link that a page offers."""
    links = re.findall(r'<a href="([^"]*)" data-meant>.*?</a> <span class="quiet">([^<]*)', page)
    return [(parse_qs(urlsplit(html.unescape(link)).query)["q"][0], html.unescape(words)) for link, words in links]  # fmt: skip


def keep_evaluation(settings, number, confusion, cells, **fields):
    made = replace(drift_report(number), kind="evaluation", confusion=confusion, **fields)
    folder = keep_report(settings, made)
    save_cells(folder, cells)
    return folder


def test_each_word_leads_to_the_images_of_the_newest_evaluation(settings, server):
    records = [make_record(FIRST + n) for n in range(3)]
    store_entries(settings.database_url, settings.journal_directory, records)
    confusion = Confusion(["star"], [[5]], hallucinations={"star": 1}, misses={"star": 2})
    cells = [
        Cell("star", None, [str(FIRST), str(FIRST + 1)]),
        Cell(None, "star", [str(FIRST + 1), str(FIRST + 2)]),
    ]
    keep_evaluation(settings, 0, confusion, [])
    keep_evaluation(settings, 1, confusion, cells)
    folder = keep_evaluation(settings, 2, confusion, cells, model=ReportedModel("damaged", "1"))
    (folder / "report.json").write_bytes(b"{")
    kinds = {
        "missed": 2,
        "not found": 2,
        "false positives": 2,
        "false positives star": 2,
        "Stars missed": 2,
        "wrong": 3,
        "mistakes": 3,
    }
    for word, found in kinds.items():
        typed = word.replace(" ", "+").upper()
        for before in ("", f"id={FIRST}+%26+"):
            page = open_page(server, f"/console/inferences?q={before}{typed}")
            assert page.status == 303
            (line,) = parse_qs(urlsplit(page.headers["location"]).query)["q"]
            assert f'report="{report_id(1)}"' in line
            assert line.startswith(f"id={FIRST} & ") == bool(before)
            shown = open_page(server, page.headers["location"])
            there = found if not before else 0 if "false" in word else 1
            assert shown.status == 200
            assert (f"<b>{there} inference" if there else "No inference matches.") in shown.text


def square(left: int, label: str = "square", score: float | None = None) -> dict[str, Any]:
    sides = {"xmin": left, "ymin": 20, "xmax": left + 50, "ymax": 70}
    return {"label": label, **({} if score is None else {"score": score}), **sides}


def test_the_list_of_a_cell_shows_what_the_evaluation_counts_there(settings, server):
    predictions = [
        square(10, score=0.9),  # right
        square(100, score=0.8),
        square(200, "star", 0.7),
        square(300, score=0.27),  # below the score of the evaluation
    ]
    source = InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg", kept=True)
    record = make_record(FIRST, predictions=predictions, input=source)
    truth = TruthStatement("id", str(FIRST), [square(10), square(400, "ring")], "mara", task=record.task)  # fmt: skip
    entries = [record, JournaledChange(FIRST + 1, truth)]
    store_entries(settings.database_url, settings.journal_directory, entries)
    confusion = Confusion(
        ["ring", "square", "star"],
        [[0, 0, 0], [0, 1, 0], [0, 0, 0]],
        hallucinations={"square": 1, "star": 1},
        misses={"ring": 1},
        parameters={"of": "objects", "score": 0.3, "iou": 0.5},
    )
    sides = [(None, "square"), (None, "star"), ("ring", None), ("square", "square")]
    cells = [Cell(truth, predicted, [str(FIRST)]) for truth, predicted in sides]
    keep_evaluation(settings, 1, confusion, cells)

    def objects(line: str) -> list[tuple[str, str]]:
        line = quote(f'report="{report_id(1)}" & {line}')
        page = open_page(server, f"/console/inferences?q={line}&view=objects").text
        return re.findall(r'(?s)class="mark o-(\w+)[^"]*".*?<b>([^<]*)', page)

    assert objects('truth="" & predicted=square') == [("false", "square 0.80")]
    assert objects('truth=""') == [("false", "square 0.80"), ("false", "star 0.70")]
    assert objects('predicted=""') == [("missed", "ring")]
    assert objects("truth=square") == [("matched", "square 0.90")]
    line = quote(f'report="{report_id(1)}" & truth=""')
    page = html.unescape(open_page(server, f"/console/inferences?q={line}").text)
    assert ("0.27" in page, "lowest 0.70" in page, "</svg>false</span>" in page) == (False, True, True)  # fmt: skip
    links = re.findall(r'href="([^"]*)"[^>]*><span class="box" aria-hidden="true"></span><span title="(square|star)">', page)  # fmt: skip
    narrowed = {name: parse_qs(urlsplit(link).query)["q"][0] for link, name in links}
    assert narrowed == {name: f'report="{report_id(1)}" & truth="" & predicted={name}' for name in ("square", "star")}  # fmt: skip
    cell = open_page(server, f"/console/reports/{report_id(1)}/images?truth=&predicted=square").text
    (image,) = re.findall(rf'href="(/console/inferences/{FIRST}[^"]*)"', html.unescape(cell))
    assert parse_qs(urlsplit(image).query)["q"] == [narrowed["square"]]


@pytest.mark.parametrize("path", ["inferences", "live", "label"])
def test_of_two_evaluated_models_the_page_asks_which(settings, server, path):
    confusion = Confusion(["star"], [[5]], misses={"star": 2})
    keep_evaluation(settings, 1, confusion, [Cell("star", None, [str(FIRST)])])
    keep_evaluation(settings, 2, confusion, [], model=ReportedModel("other", "3"))
    page = open_page(server, f"/console/{path}?q=missed")
    assert page.status == 200
    assert "“missed” is what an evaluation finds: which one?</h2>" in page.text
    assert [words for _, words in meant(page.text)] == [
        "objects not found in the evaluation of other 3, 21 September 2026, finds 0",
        "objects not found in the evaluation of shapes-detector 1, 21 September 2026, finds 0",
    ]


def test_without_an_evaluation_the_page_says_what_is_needed(settings, server):
    keep_report(settings, drift_report(0))
    page = open_page(server, "/console/inferences?q=missed")
    assert (page.status, meant(page.text), "This is no filter" in page.text) == (200, [], False)
    assert "<h2>“missed” is what an evaluation finds, and none has found any yet.</h2>" in page.text
    assert 'href="/console/reports/new">Evaluate a model' in page.text


@pytest.mark.parametrize("path", ["inferences", "live", "label"])
def test_an_error_leads_to_the_syntax_and_names_no_key_that_is_not_there(server, path):
    page = open_page(server, f"/console/{path}?q=nothing%3D5")
    assert (page.status, "as in meta.KEY=VALUE." in page.text) == (400, True)
    assert 'href="/console/words#filter"' in page.text
    assert 'id="filter"' in open_page(server, "/console/words").text
    assert "meta.camera" not in page.text.partition("<main")[2]
