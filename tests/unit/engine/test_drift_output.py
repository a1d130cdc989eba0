"""Output of a drift report on the command line."""

import io

import msgspec
from rich.console import Console

from quadriga.engine.commands.monitoring.reports import render_drift
from quadriga.monitor.report.schema import Effect, Signal
from tests.drift_reports import watched


def said(report):
    console = Console(width=300, file=io.StringIO())
    for renderable in render_drift(report):
        console.print(renderable)
    return console.file.getvalue()


def test_moved_signals_and_estimates_are_summarised():
    text = said(watched())
    assert (
        "Moved: signal 3, where meta.camera_id is camera è (n = 40): 1.250, elsewhere 0.040" in text
    )
    assert "EstimatedAccuracy, atc max confidence: 0.871 (0.840 to 0.902)" in text
    assert "EstimatedAccuracy, cbpe: —" in text
    assert text.count("Valid unless <script>") == 1


def test_many_parts_are_counted():
    report = watched()
    report.slices.extend(report.slices)
    text = said(report)
    assert text.count("Moved: ") == 6
    assert "Moved: 3 more, with smaller effects" in text


def test_signals_that_lack_the_same_are_named_together():
    nothing = Effect("wasserstein_iqr", None, 0.1)
    signals = [
        Signal(
            name, "numeric", "ks", effect=nothing, n=(9, 9), status="insufficient", reason=reason
        )
        for name, reason in (("a", "few"), ("b", "none"), ("c", "few"))
    ]
    text = said(msgspec.structs.replace(watched(), signals=signals))
    assert "Insufficient, a, c: few\nInsufficient, b: none\n" in text


def test_excluded_rows_and_other_models_are_reported():
    report = watched()
    data = msgspec.structs.replace(report.data, excluded={"other_space": 7, "baseline_failed": 2})
    parameters = report.parameters | {"baseline_sha256": "aa" * 32}
    text = said(msgspec.structs.replace(report, data=data, parameters=parameters))
    assert "Left out: 7 embeddings of another model\n" in text
    assert "Left out: 2 requests that failed in the baseline\n" in text
    assert "Another model answered than in the baseline." in text
