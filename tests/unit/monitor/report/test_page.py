"""Reports as pages: what they show, and that nothing in them escapes, loads or changes."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from quadriga.monitor.report.metric_texts import headline, headlines, titles
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.schema import (
    ComparedSlice,
    Comparison,
    Confusion,
    Data,
    Example,
    Metric,
    Report,
    ReportedModel,
    Slice,
    Window,
)
from quadriga.quoting import one_line
from tests.drift_reports import REPORTS
from tests.reports import HOSTILE, detection, undefined
from tests.unit.monitor.report.page_reading import Elements, made, words

ROOT = Path(__file__).parents[4]
SVG = "{http://www.w3.org/2000/svg}"
ADDRESSES = {"src", "href", "srcset", "action", "data", "poster", "background"}


@pytest.fixture(scope="module")
def pages():
    return {name: made(report()) for name, report in REPORTS.items()}


@pytest.fixture(params=list(REPORTS))
def html(request, pages):
    return pages[request.param]


def test_page_is_well_formed_with_ids_that_occur_once(html):
    elements = Elements(html).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r'(?:href="|url\(|aria-labelledby=")#?([\w.-]+)[")]', html)
    assert set(used) - {"data"} <= set(ids)


def test_each_picture_is_xml_with_a_name(html):
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        root = ET.fromstring(svg)
        assert root.get("aria-hidden") == "true" or (root.get("role"), bool(root.get("aria-label"))) == ("img", True)  # fmt: skip


def test_page_loads_nothing_and_runs_nothing(html):
    for tag, attributes in Elements(html).found:
        assert tag not in {"script", "iframe", "object", "embed", "link", "base", "form"}
        assert not any(name.startswith("on") for name in attributes)
        for name in ADDRESSES & set(attributes):
            assert attributes[name].startswith(("#", "data:image/jpeg;base64,"))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    assert set(re.findall(r"https?://[^\s\"'<]*", html)) <= {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in html


def test_colours_are_those_of_the_page(html):
    style, _, body = html.partition("</style>")
    assert "style=" not in body
    assert not re.search(r'(?:fill|stroke)="', body)
    for name in set(re.findall(r"var\((--[\w-]+)\)", style)):
        assert f"{name}: " in style, name


def test_texts_of_users_stay_texts(html):
    assert "<script" not in html
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", html)
    html.encode()


def test_texts_of_users_are_shown_as_they_are(pages):
    text = words(pages["detection"])
    assert '<script>alert("1")</script>\'$x_1$ \\frac &' in text
    svg = re.search(r'<svg[^>]*aria-label="Precision over.*?</svg>', pages["detection"], re.DOTALL)
    assert f"0.45 {one_line(HOSTILE, 24)}" in [
        element.text for element in ET.fromstring(svg[0]).iter(f"{SVG}text")
    ]


def test_page_of_decoded_json_is_the_page(pages):
    decoded = msgspec.json.decode(msgspec.json.encode(detection()), type=Report)
    assert made(decoded) == pages["detection"]


def test_report_is_described():
    described = (
        (ROOT / "docs" / "evaluation-reference.md")
        .read_text("utf-8")
        .partition("## The report\n")[2]
    )
    for field in msgspec.structs.fields(Report):
        assert f"`{field.encode_name}`" in described, field.encode_name


def test_documented_lines_write_a_page(tmp_path, monkeypatch):
    document = (ROOT / "docs" / "evaluation-reference.md").read_text("utf-8")
    lines = (
        document.partition("## The report as a page")[2]
        .partition("```python\n")[2]
        .partition("```")[0]
    )
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_bytes(msgspec.json.encode(REPORTS["oriented"]()))
    exec(lines, {})
    assert "<h1>AP is 0.500 (0.470 to 0.524) on 3 images" in Path("report.html").read_text("utf-8")


def test_usual_report_is_small(pages):
    assert all(len(html) < 500_000 for html in pages.values())


def test_head_says_what_was_looked_at(pages):
    text = words(pages["detection"])
    assert "shapes-detector 3" in text
    assert "Images 500 From 2026-01-31T00:00:00.000Z To 2026-02-06T23:59:59.999Z" in text
    assert "12 images whose truth is not known; 3 predictions of a label that no truth has" in text


def test_headlines_stand_above_with_their_intervals(pages):
    text = words(pages["detection"])
    assert "95 % interval From AP 0.550 0.520 to 0.574 500 AP, IoU 0.5 0.750" in text
    assert "AR, large 0.650 0.620 to 0.674 500 Precision, score ≥ 0.3, IoU 0.5" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "detection",
            (
                "AP is 0.550 (0.520 to 0.574) on 500 images, worse than shapes-detector 2 by 0.030 "
                "(of the 480 images that both have answered)."
            ),
        ),
        ("classification", "Accuracy is 0.800 (0.770 to 0.824) on 4,000 images."),
        ("undefined", "shapes-detector 3"),
    ],
)
def test_an_evaluation_begins_with_how_good_the_model_is(pages, name, expected):
    assert f"<h1>{expected}</h1>" in pages[name]


@pytest.mark.parametrize(
    ("metric", "difference", "ci95", "expected"),
    [
        ("AP", 0.05, (0.01, 0.09), "better than other by 0.050"),
        ("AP", 0.05, (-0.01, 0.09), "no certain difference to other"),
        ("AP", 0.05, None, "no certain difference to other"),
        ("AP", None, None, "not comparable with other"),
        ("ECE", 0.05, (0.01, 0.09), "worse than other by 0.050"),
        ("ECE", -0.05, (-0.09, -0.01), "better than other by 0.050"),
    ],
)
def test_the_first_sentence_says_which_model_is_better(metric, difference, ci95, expected):
    other = Comparison(
        ReportedModel("other"), 10, [Metric(metric, 0.5)], [Metric(metric, difference, ci95=ci95)]
    )
    report = Report(
        "evaluation", "", Data(Window(n=10)), metrics=[Metric(metric, 0.5)], comparisons=[other]
    )
    assert headline(report).endswith(f" is 0.500 on 10 images, {expected}.")


def test_the_first_sentence_says_where_a_model_is_better_or_worse():
    def slice_of(value, difference, ci95, reason="", by="meta.light"):
        metric = Metric("AP", difference, ci95=ci95, ci_reason=reason)
        return ComparedSlice(by, value, 40, [metric])

    slices = [
        slice_of("dusk", 0.04, (0.01, 0.07)),
        slice_of("night", 0.094, (0.05, 0.14)),
        slice_of("day", 0.2, (-0.1, 0.5)),
        slice_of("<b>fog", None, None, "fewer than 30 images"),
        slice_of("false", -0.02, (-0.03, -0.01), by="barges"),
    ]
    differences = [Metric("AP", 0.01, ci95=(-0.1, 0.12))]
    other = Comparison(
        ReportedModel("other", "1"), 200, [Metric("AP", 0.5)], differences, slices=slices
    )
    report = Report(
        "evaluation", "", Data(Window(n=200)), metrics=[Metric("AP", 0.51)], comparisons=[other]
    )
    assert headline(report).endswith(
        "no certain difference to other 1; better where meta.light=night by 0.094, meta.light=dusk by 0.040; "
        "worse where not barges by 0.020."
    )
    page = render_page(report, lambda _: None)
    assert "<b>fog" not in page
    assert "fewer than 30 images" in page
    assert "no difference shown" in page


def test_tables_name_their_rows_and_columns(html):
    elements = Elements(html).found
    assert all(
        attributes.get("scope") in {"row", "col"} for tag, attributes in elements if tag == "th"
    )


def test_pictures_of_what_the_report_has(pages):
    titles = {name: re.findall(r"<h[23]>(.*?)</h[23]>", html) for name, html in pages.items()}
    assert titles["detection"] == [
        "Numbers",
        "Confusion",
        "Look at these first",
        "Beside shapes-detector 2",
        "Labels",
        "Precision and recall",
        "Slices",
        "In pictures",
        "What the errors cost",
        "Are the scores honest?",
        "Scores of right and of wrong predictions",
        "All numbers",
        "The data",
    ]
    assert "Receiver operating characteristic" in titles["classification"]
    assert "F1" in words(pages["classification"]).partition("Labels the worst first Label ")[2][:3]
    assert "IOU" in words(pages["segmentation"]).partition("Labels the worst first Label ")[2][:4]
    assert "Confusion by pixels" in titles["segmentation"]
    assert titles["text"][:3] == ["Numbers", "Look at these first", "Beside shapes-detector 2"]
    assert titles["empty"] == ["The data"]


def test_empty_report_says_why_it_is_empty(pages):
    assert "Insufficient. No image has ground truth" in words(pages["empty"])


def test_undefined_is_a_dash_in_tables_and_no_curve(pages):
    assert "AP — — to — 500" not in words(pages["undefined"])
    assert "nan" not in words(pages["undefined"])
    assert "Precision over recall" not in pages["undefined"]
    assert ">undefined</text>" in pages["undefined"]


def test_numbers_by_label_are_a_row_for_each_label():
    metrics = [
        Metric("AP", 0.5),
        Metric("AP", 0.25, {"label": "car"}),
        Metric("F1", None, {"label": "car", "score": 0.5}),
        Metric("AP", 0.125, {"label": "bus"}),
    ]
    text = words(made(Report("evaluation", "OBJECT_DETECTION", Data(Window()), metrics=metrics)))
    assert "Label AP F1, score ≥ 0.5 car 0.250 — bus 0.125" in text


def test_metrics_of_one_name_are_told_apart():
    metrics = [
        Metric("mIOU", 0.5, {"background": True}),
        Metric("mIOU", 0.25, {"background": False}),
    ]
    metrics += [Metric("ECE", 0.125, {"bins": 15, "rule": "equal width"}, (0.1, 0.2))]
    text = words(made(Report("evaluation", "IMAGE_SEGMENTATION", Data(Window()), metrics=metrics)))
    assert "From mIOU, with background 0.500 — — mIOU, without background 0.250 — —" in text
    assert "ECE (less is better) 0.125 0.100 to 0.200 —" in text
    assert "ECE, 15 bins, equal width 0.125" in text


def test_a_number_without_difference_has_none(pages):
    assert "AR, medium 0.620 0.590 to 0.644 0.070 0.050 to 0.090" in words(pages["detection"])
    assert "AR, large 0.620 0.590 to 0.644 Left out: 20" in words(pages["detection"])


def test_confusions_name_inferences_to_look_at():
    confusion = Confusion(
        ["a", "b"],
        [[5, 2], [0, 7]],
        {"a": 3},
        misses={"b": 1},
        examples=[Example("a", "b", "17"), Example(None, "a", "19")],
    )
    text = words(
        made(Report("evaluation", "OBJECT_DETECTION", Data(Window()), confusion=confusion))
    )
    assert "(nothing) a 3 19 a b 2 17 b (nothing) 1" in text


def test_slices_of_values_that_are_missing_are_named():
    slices = [Slice("day", None, 3, [Metric("AP", 0.5)]), Slice("day", "", 2, [Metric("AP", None)])]
    report = Report("evaluation", "OBJECT_DETECTION", Data(Window()), slices=slices)
    text = words(made(report))
    assert "(none) 3 0.500 (empty) 2 —" in text
    assert "day=(none) 3 0.500 — day=(empty) 2 — —" in text


def test_what_a_report_has_not_leaves_no_empty_part(pages):
    for heading in (
        "moved more than the rest of it",
        "Estimated",
        "Over time",
        "Least like",
        "Windows with alarms",
    ):
        assert heading not in words(pages["drift"])
        assert heading in words(pages["watched"])
    assert "All numbers" not in words(pages["watched"])


def test_many_labels_are_cut_to_what_can_be_read():
    names = [f"label {number}" for number in range(300)]
    matrix = [[int(row == column) for column in range(300)] for row in range(300)]
    matrix[299][0] = 7
    metrics = [Metric("AP", at / 300, {"label": name}) for at, name in enumerate(names)]
    report = Report(
        "evaluation",
        "OBJECT_DETECTION",
        Data(Window()),
        metrics=metrics,
        confusion=Confusion(names, matrix),
    )
    html = made(report)
    assert "the 25 labels with the most errors, 275 are left out" in html
    assert all(f">{name}</th>" in html for name in names)
    assert "no object" not in html


def test_undefined_numbers_of_every_kind_have_a_page():
    report = msgspec.structs.replace(
        undefined(), metrics=[Metric(HOSTILE, None, {HOSTILE: [HOSTILE, None]})]
    )
    assert ">—</b>" in made(report)


def test_what_a_comparison_leaves_out_is_said():
    report = detection()
    assert report.comparisons[0].excluded == {"not_answered": 20}
    assert "Left out: 20 images that one of them did not answer." in render_page(
        report, lambda _: None
    )


def test_models_without_an_image_in_common_are_not_drawn_beside_each_other():
    (comparison,) = detection().comparisons
    report = msgspec.structs.replace(
        detection(), comparisons=[msgspec.structs.replace(comparison, n=0)]
    )
    html = made(report)
    assert "No image was answered by both." in words(html)
    assert "The other" not in words(html)


def test_a_reason_stands_where_a_metric_has_no_interval():
    report = detection()
    first = msgspec.structs.replace(report.metrics[0], ci95=None, ci_reason="fewer than 30 images")
    without = msgspec.structs.replace(report, metrics=[first, *report.metrics[1:]])
    assert f"No interval of {titles(headlines(report))[0]}: fewer than 30 images." in words(
        made(without)
    )
    assert "No interval of" not in words(made(report))
