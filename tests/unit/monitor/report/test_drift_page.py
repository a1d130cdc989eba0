"""Reports of drift as pages."""

import re

import pytest

from quadriga.monitor.report.charts import drift
from quadriga.monitor.report.schema import (
    Data,
    Effect,
    Report,
    Signal,
    Window,
)
from tests.drift_reports import REPORTS
from tests.unit.monitor.report.page_reading import made, words


@pytest.fixture(scope="module")
def pages():
    return {name: made(report()) for name, report in REPORTS.items()}


def test_signals_stand_with_alarms_first(pages):
    text = words(pages["drift"])
    assert "Drift · b.csv against script" in text
    assert "Drift: 5 of 35 signals changed. Of 1 signal there is too little" in text
    assert "Compared: 400 images with 500 of the baseline." in text
    assert "Current 400 Baseline 500 Baseline from 2026-01-31T00:00:00.000Z Baseline to —" in text
    assert "p-value below 0.01" in text
    assert (
        "signal 29 changed \N{EN DASH} \N{EN DASH} \N{EN DASH} 0.716 (0.100) 2e-09 ks 0.934 (0.040)"
        in text
    )
    values = "0.3 % 4.7 % \N{EN DASH} 0.250 (0.050) 1e-04 chi-square"
    assert f"label share of the label label 17 changed low power {values}" in text
    assert (
        "as usual low power \N{EN DASH} \N{EN DASH} \N{EN DASH} 2e-05 (5e-04) 0.900 energy" in text
    )
    assert (
        "gone too few \N{EN DASH} \N{EN DASH} 0 % / 100 % — — ks \N{EN DASH} 500 / 0 rows, 0 / 0 independent expected"
        in text
    )
    rows = text.partition(" Rows, before / after ")[2]
    assert (
        rows.index("label share")
        < rows.index("signal 26 moved, may be chance")
        < rows.index("gone too few")
    )


def test_signals_are_pictured_baseline_beside_current(pages):
    changed, _, others = pages["drift"].partition(">Signals</h2>")
    titles = re.findall(r'<svg [^>]*class="chart"[^>]*aria-label="([^".]*)', changed)
    assert len(titles) == 5
    assert all(title.endswith("(alarm)") for title in titles)
    quiet = re.findall(r"<h3>(.*?)</h3>", others)
    assert len(quiet) == 24
    assert "constant" not in quiet
    assert "The signals that did not change, in pictures" in words(pages["drift"])
    assert "24 rarer labels are left out." in words(pages["drift"])
    assert ">$b$ (new)</text>" in pages["drift"]


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 1, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (-3.1, 2.9, ["-2", "0", "2"]),
        (100, 220, ["100", "150", "200"]),
        (1e9, 1e9 + 2, ["1000000000", "1000000000.5", "1000000001", "1000000001.5", "1000000002"]),
        (-1e300, 1e300, ["-1e+300", "1e+300"]),
        (0, 5e-324, ["0", "4.94066e-324"]),
    ],
)
def test_axes_are_ticked_at_round_numbers(low, high, texts):
    assert [text for _, text in drift.ticks(low, high)] == texts


def test_what_moved_stands_with_the_effect_elsewhere(pages):
    text = words(pages["watched"])
    assert "meta.camera_id is camera è signal 3 40 1.250 0.040 1e-07" in text
    assert re.search(r"meta\.camera_id is camera è <script>\S+ long 40 0\.300 — 0\.010", text)


def test_estimates_stand_with_when_they_hold(pages):
    text = words(pages["watched"])
    assert (
        "EstimatedAccuracy 0.871 0.840 to 0.902 atc max confidence 400 EstimatedAccuracy — — cbpe 400"
        in text
    )
    assert text.count("Valid unless <script>") == 1
    assert "Over all labels" not in text


def test_windows_over_time_are_pictured_and_their_alarms_listed(pages):
    text = words(pages["watched"])
    assert "30 windows from 2026-01-03T00:00:00.000Z to 2026-01-04T09:00:00.000Z" in text
    assert (
        "2026-01-04T08:00:00.000Z 2026-01-04T09:00:00.000Z 400 signal 1, signal 2, signal 3, label,"
        in text
    )
    over_time = pages["watched"].partition(">Over time</h2>")[2].partition("</section>")[0]
    titles = re.findall(r"<h3>(.*?)</h3>", over_time)
    assert titles[:2] + titles[6:] == ["signal 3", "label", "Adjusted p-values over time"]


def test_images_unlike_the_baseline_stand_beside_their_neighbours(pages):
    shown = pages["watched"].partition(">Least like the baseline</h2>")[2]
    assert shown.count('class="beside"') == 3
    assert shown.count("data:image/jpeg") == 5
    text = words("<section><header>" + shown.partition("</section>")[0] + "</section>")
    order = [
        "Semantic score 1e-04",
        "Inference 201",
        "Distance 0.125",
        "Inference 70",
        "Distance 0.325",
    ]
    assert [text.index(text_part) for text_part in order] == sorted(
        text.index(text_part) for text_part in order
    )
    assert "Semantic score 0.020 The image is not kept. Inference 202" in text
    assert "What is nearest to it is not known." in text


@pytest.mark.parametrize(
    ("status", "signals", "expected"),
    [
        ("insufficient", [], "Insufficient: there are too few independent values"),
        ("insufficient", ["insufficient"], "Insufficient: there are too few independent values"),
        ("ok", ["ok"], "No drift in 1 signal."),
        ("ok", ["ok", "low_power"], "No drift in 2 signals. In 1 signal only large changes"),
        ("ok", ["ok", "insufficient"], "No drift in 1 signal. Of 1 signal there is too little"),
        (
            "ok",
            ["ok", "chance"],
            "No drift in 2 signals. 1 signal moved by more than matters, which may be chance.",
        ),
        ("error", ["ok"], "The report could not be finished"),
    ],
)
def test_what_came_out_is_said_in_words(status, signals, expected):
    made_of = [
        Signal(
            str(at),
            "numeric",
            "ks",
            effect=Effect("wasserstein_iqr", 0.473 if signal == "chance" else 0.0, 0.1),
            n=(5, 5),
            status="ok" if signal == "chance" else signal,
        )
        for at, signal in enumerate(signals)
    ]
    report = Report("drift", "", Data(Window(), Window()), status=status, signals=made_of)
    assert expected in words(made(report))
