"""The rows of signals on the page of a drift report, and its sentence: what moved, what may be chance, what is as usual."""

import html
import re

from msgspec.structs import replace

from quadriga.monitor.report.schema import Effect
from tests.unit.engine.console_harness import open_page
from tests.unit.engine.drift_reports import drift_report, keep_report, numeric, report_id

ROWS = {
    "far, significant": (0.473, 0.001, "ok", True, "warn", "changed"),
    "far, not significant": (0.473, 0.17, "ok", False, "note", "moved, may be chance"),
    "as far as matters": (0.1, 0.17, "ok", False, "note", "moved, may be chance"),
    "far, only large changes are seen": (0.473, 0.17, "low_power", False, "note", "moved, may be chance"),
    "less than matters": (0.099, 0.17, "ok", False, "fine", "as usual"),
    "less than matters, significant": (0.099, 0.001, "ok", False, "fine", "as usual"),
    "not at all": (0.0, 1.0, "ok", False, "fine", "as usual"),
    "no effect": (None, None, "insufficient", False, "note", "too few"),
    "far, too few": (0.473, None, "insufficient", False, "warn", "moved, too few"),
}  # fmt: skip
"""Effect, adjusted p-value, status and alarm of a signal, with the colour and the words of its row."""


def score(effect, p, status, alarm):
    made = numeric("score", 5, 5, status=status, alarm=alarm, p_adjusted=p)
    return replace(made, effect=Effect("wasserstein_iqr", effect, 0.1))


def test_each_row_and_the_sentence_say_no_more_than_the_numbers(server, settings):
    for number, (effect, p, status, alarm, colour, words) in enumerate(ROWS.values()):
        signal = score(effect, p, status, alarm)
        keep_report(settings, drift_report(number, signal, numeric("width", 5, 5)))
        page = html.unescape(open_page(server, f"/console/reports/{report_id(number)}").text)
        tags = re.findall(
            r'<code>width</code>|<td[^>]*><span class="tag ([a-z]*)">([^<]*)</span>', page
        )
        assert (colour, words) in tags, (effect, p, status)
        headline = re.search(r"<h1>(.*?)</h1>", page, re.DOTALL)
        assert headline is not None
        assert (headline[1] == "Nothing changed.") == (words in ("as usual", "too few")), headline[
            1
        ]
        assert ("score moved, which may be chance" in headline[1]) == (words == "moved, may be chance")  # fmt: skip


def test_a_comparison_in_which_something_may_be_chance_has_no_alarm_in_the_lists(server, settings):
    keep_report(settings, drift_report(0, score(0.473, 0.17, "ok", False)))
    for path in ("/console/reports", "/console/", "/console/models/shapes-detector"):
        page = open_page(server, path).text
        assert re.search(r'class="tag fine"[^>]*>no alarm</a>', page), path
        assert "as usual" not in page
