"""A range of times in the console in Chromium: by a drag over the bars, by clicks and by keys."""

from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.engine.config.settings import Settings
from tests.e2e.test_console_pages_in_browser import open_page, send_images
from tests.e2e.test_console_search_in_browser import GRID, click, press, violations
from tests.server_process import SAMPLE_MODELS, ServerProcess
from tests.unit.engine.drift_reports import drift_report, keep_report, numeric, report_id

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Yield a server with images of several moments."""
    with ServerProcess(tmp_path_factory.mktemp("times") / "data", SAMPLE_MODELS) as server:
        send_images(server, "detection", "shapes-detector")
        server.query({})  # waits for the journal, so that each page has all of them
        settings = Settings(data=str(server.data))
        keep_report(settings, drift_report(0, numeric("image.brightness", 50, 20)))
        server.drift_report = report_id(0)
        yield server


@pytest.fixture
def page(browser, server):
    """Return a function that opens a page."""
    return lambda path=GRID, **options: open_page(browser, server, path, **options)


BARS = """[...document.querySelectorAll('.timeline a')].map((a) => { const r = a.querySelector('.hit').getBoundingClientRect();
  return {x: r.x + r.width / 2, y: r.y + r.height / 2, href: a.getAttribute('href'), count: Number.parseInt(a.ariaLabel), end: a.dataset.end}; })"""


def chosen_range(browser):
    """Return the bounds of the time in the filter of the page, and how many inferences it says there are."""
    browser.wait_for("new URLSearchParams(location.search).get('q')?.includes('ts=ge:')")
    parts = parse_qs(urlsplit(browser.run("location.href")).query)["q"][0].split(" & ")
    count = browser.run("Number.parseInt(document.querySelector('.row b').textContent)")
    return [part for part in parts if part.startswith("ts=")], count, parts


def bounds(first, last):
    """Return the comparisons that bound the time of two bars and all between."""
    of_first = parse_qs(urlsplit(first["href"]).query)["q"][0].split(" & ")
    of_last = parse_qs(urlsplit(last["href"]).query)["q"][0].split(" & ")
    return [of_first[-2], of_last[-1]]


def move(browser, kind, x, y, buttons=1):
    browser.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=buttons, clickCount=1)  # fmt: skip


def drag(browser, first, last, end="mouseReleased"):
    move(browser, "mousePressed", first["x"], first["y"])
    for step in (0.1, 0.5, 1):
        move(browser, "mouseMoved", first["x"] + step * (last["x"] - first["x"]), last["y"])
    if end:
        move(browser, end, last["x"], last["y"])


@pytest.mark.parametrize("is_backwards", [False, True])
@pytest.mark.parametrize("query", ["", "?q=meta.altitude%3Dge%3A104&order=ts"])
def test_a_drag_over_bars_takes_all_between(browser, page, query, is_backwards):
    page(GRID + query)
    bars = browser.run(BARS)
    first, last = bars[2], bars[-3]
    assert first["x"] < last["x"]
    drag(browser, *((last, first) if is_backwards else (first, last)))
    times, count, parts = chosen_range(browser)
    assert times == bounds(first, last)
    assert count == sum(bar["count"] for bar in bars[2:-2])
    assert ("meta.altitude=ge:104" in parts) is bool(query)
    assert ("order=ts" in browser.run("location.search")) is bool(query)


def test_a_bar_is_a_link_and_escape_leaves_a_drag(browser, page):
    page()
    bars = browser.run(BARS)
    drag(browser, bars[0], bars[-1], end="")
    shade = "document.querySelector('.timeline .brush').getAttribute('visibility')"
    assert browser.run(shade) == "visible"
    press(browser, "Escape")
    assert browser.run(shade) == "hidden"
    move(browser, "mouseReleased", bars[-1]["x"], bars[-1]["y"])
    assert "ts=" not in browser.run("location.search")
    click(browser, bars[1]["x"], bars[1]["y"])
    times, count, _ = chosen_range(browser)
    assert (times, count) == (bounds(bars[1], bars[1]), bars[1]["count"])


def test_shift_and_clicks_take_all_between(browser, page):
    page()
    bars = browser.run(BARS)
    click(browser, bars[4]["x"], bars[4]["y"], modifiers=8)
    note = browser.run("document.querySelector('[data-range-note]').innerText")
    assert note.startswith(f"From {bars[4]['count']}: ")
    assert "ts=" not in browser.run("location.search")
    click(browser, bars[1]["x"], bars[1]["y"], modifiers=8)
    times, count, _ = chosen_range(browser)
    assert times == bounds(bars[1], bars[4])
    assert count == sum(bar["count"] for bar in bars[1:5])


def test_keys_alone_take_a_range_of_bars(browser, page):
    page()
    bars = browser.run(BARS)
    for number in (1, 3):
        browser.run(f"document.querySelectorAll('.timeline a')[{number}].focus()")
        press(browser, "Enter", modifiers=8)
    times, count, _ = chosen_range(browser)
    assert times == bounds(bars[1], bars[3])
    assert count == sum(bar["count"] for bar in bars[1:4])


def test_the_overview_has_the_range_too(browser, page):
    page("/console/")
    bars = browser.run(BARS)
    drag(browser, {**bars[0], "x": bars[0]["x"] - 20}, {**bars[0], "x": bars[0]["x"] + 20})
    assert chosen_range(browser)[0] == bounds(bars[0], bars[0])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_axe_finds_nothing_while_a_range_is_begun(browser, page, scheme, width):
    page(scheme=scheme, width=width)
    browser.run("document.querySelectorAll('.timeline a')[1].focus()")
    press(browser, "Enter", modifiers=8)
    assert "Esc" in browser.run("document.querySelector('[data-range-note]').innerText")
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert violations(browser) == []


@pytest.mark.parametrize(
    ("zone", "said", "hour"),
    [("Asia/Kolkata", "Asia/Calcutta (UTC+5:30)", "13:32"), ("America/St_Johns", "(UTC−", "04:32"), ("UTC", "in UTC.", "08:02")],  # noqa: RUF001 - as it is written
)  # fmt: skip
def test_times_of_a_page_are_in_one_zone_and_it_is_said(browser, page, zone, said, hour):
    browser.send("Emulation.setTimezoneOverride", timezoneId=zone)
    try:
        page()
        note = browser.run("document.querySelector('[data-zone]').innerText")
        assert said in note or zone in note
        script = "document.querySelector('script[src*=console]').src.replace('console.js', 'axis.js')"  # fmt: skip
        # Nine hours from 2 past 8 in UTC: marks are round in the reader's zone, the first and a new day have their date.
        words = browser.run(f"import({script}).then((m) => m.marks(Date.UTC(2026, 10, 24, 8, 2), Date.UTC(2026, 10, 24, 17, 2)).map((mark) => mark.words))")  # fmt: skip
        assert words[0].startswith("24 Nov ")
        assert 2 < len(words) <= 7
        assert all(word.endswith(":00") for word in words)
        assert words[0] > f"24 Nov {hour}"
        bar = browser.run("[...document.querySelectorAll('.timeline a')].map((a) => [a.ariaLabel, a.querySelector('title').textContent, a.dataset.start])[0]")  # fmt: skip
        local = browser.run(f"new Date('{bar[2]}').toLocaleTimeString('en-GB')")
        assert all(local in text and "UTC" not in text for text in bar[:2])
        assert "UTC" not in browser.run("document.querySelector('.timeline').textContent")
    finally:
        browser.send("Emulation.setTimezoneOverride", timezoneId="")


def test_no_bar_has_a_bound_that_is_finer_than_it_is_wide(browser, page):
    page()
    ends = browser.run("[...document.querySelectorAll('.timeline a')].map((a) => [a.dataset.start, a.dataset.end])")  # fmt: skip
    assert len(ends) > 1
    said = browser.run("document.querySelector('.timeline-box').innerText")
    assert " buckets" in said
    assert "about" not in said


def test_marks_of_days_begin_at_midnight_where_the_clock_changes(browser, page):
    browser.send("Emulation.setTimezoneOverride", timezoneId="Europe/Berlin")
    try:
        page()
        script = "document.querySelector('script[src*=console]').src.replace('console.js', 'axis.js')"  # fmt: skip
        marks = browser.run(f"import({script}).then((m) => m.marks(Date.UTC(2026, 9, 22), Date.UTC(2026, 9, 28)).map((mark) => [mark.words, new Date(mark.at).getHours()]))")  # fmt: skip
        assert marks[:2] == [["23 Oct", 0], ["24 Oct", 0]]
        assert {hour for _, hour in marks} == {0}
    finally:
        browser.send("Emulation.setTimezoneOverride", timezoneId="")


@pytest.mark.parametrize(
    ("start_days", "end_days", "dated"),
    [(3, 0, [True, True]), (0, 3, [True, True]), (0, 0, [False, False]), (3, 3, [True, True]), (0, None, [False])],
)  # fmt: skip
def test_both_ends_of_a_span_have_their_date_unless_both_are_of_today(
    browser, page, start_days, end_days, dated
):
    page()
    script = "document.querySelector('script[src*=console]').src"
    days = [start_days] if end_days is None else [start_days, end_days]
    shown = browser.run(f"""import({script}).then((m) => {{
      const ends = {days}.map((days) => new Date(Date.now() - days * 86400000).toISOString());
      return ends.map((at, number) => {{
        const made = Object.assign(document.createElement('time'), {{ dateTime: at }});
        if (ends.length > 1) made.dataset.beside = ends[1 - number];
        m.showTime(made);
        return made.textContent;
      }});
    }})""")
    assert ["," in text for text in shown] == dated, shown
    assert all(text.count(":") == 2 for text in shown)


def test_the_span_of_a_report_says_what_each_end_is_beside(browser, server):
    open_page(browser, server, f"/console/reports/{server.drift_report}")
    ends = browser.run("[...document.querySelectorAll('time[data-beside]')].map((t) => [t.dateTime, t.dataset.beside])")  # fmt: skip
    assert len(ends) == 4  # of the images, and of the baseline
    assert [ends[0][::-1], ends[2][::-1]] == [ends[1], ends[3]]
