"""What the command line says of a drift report."""

import io

from rich.console import Console

from engine.drift_output import drift
from tests.reports import watched


def said(report):
    console = Console(width=300, file=io.StringIO())
    for part in drift(report):
        console.print(part)
    return console.file.getvalue()


def test_where_signals_moved_and_what_is_estimated_is_said_in_short():
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
