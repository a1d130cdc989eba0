"""Two versions of a detector in Chromium: evaluated together from the page, with the slice where one is better, and its images."""

import hashlib

import pytest

from tests.e2e.test_console_pages_in_browser import AXE, AXE_SHA256, open_page
from tests.server_process import ServerProcess
from tests.two_versions import LIGHTS, MODEL, answer_all, images, write_two_versions

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    with ServerProcess(folder / "data", write_two_versions(folder / "models")) as server:
        answer_all(server)
        yield server


def evaluate(browser):
    """Have both versions evaluated from the page that is open; the page looks again by itself until they are."""
    browser.run("document.querySelector('form[action$=evaluate] button').click()")
    browser.wait_for("!!document.querySelector('table.fits')")


def open_evaluated(browser, server, **options):
    """Open the page with its evaluation, whichever test comes first."""
    open_page(browser, server, "/console/compare", **options)
    if not browser.run("!!document.querySelector('table.fits')"):
        evaluate(browser)
        open_page(browser, server, "/console/compare", **options)
    assert browser.run("!!document.querySelector('table.fits')")


def test_which_version_is_better_at_night(browser, server):
    open_page(browser, server, "/console/")
    browser.run("document.querySelector('.nav a[data-key=c]').click()")
    browser.wait_for("location.pathname === '/console/compare'")
    assert browser.run("document.querySelector('h1').textContent") == (
        "Version 2 of shapes-detector beside version 1"
    )
    assert browser.run("document.querySelectorAll('.compare-row .media').length") == 24
    assert browser.run("document.querySelectorAll('.mark.o-false').length") > 12
    assert browser.run("document.querySelector('input[value=\"meta.light\"]').checked")
    evaluate(browser)
    heading = browser.run("document.querySelector('h1').textContent")
    assert heading.startswith("shapes-detector 2 is better than shapes-detector 1 by 0.")
    assert "better where" not in heading  # as it is everywhere
    rows = browser.run(
        "[...document.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    total = len(list(images()))
    assert [row[1] for row in rows[:3]] == [str(total), str(total // 2), str(total // 2)]
    assert {row[0] for row in rows[1:3]} == {f"meta.light={light}" for light in LIGHTS}
    assert {row[-1] for row in rows[:3]} == {"better"}
    # The numbers agree with the report, whose curves follow the score that is chosen.
    browser.run("document.querySelector('main a[href*=\"/console/reports/\"]').click()")
    browser.wait_for("location.pathname.startsWith('/console/reports/')")
    report = server.call("GET", f"/api/reports/{browser.run('location.pathname').split('/')[-1]}")
    (comparison,) = report[1]["comparisons"]
    shown = {row[0]: row[5].split()[0].replace("+", "") for row in rows}
    for part in comparison["slices"]:
        if part["by"] == "meta.light":
            assert shown[f"meta.light={part['value']}"] == f"{part['differences'][0]['value']:.3f}"
    browser.run(
        "((input) => { input.value = 0.9; input.dispatchEvent(new Event('input')); })(document.querySelector('[data-curve-score] input'))"
    )
    chosen = browser.run(
        "[...document.querySelectorAll('[data-curve-row]')].map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    for label, recall, precision in chosen:
        (curve,) = [
            row for row in report[1]["curves"]["pr"] if (row["label"], row["iou"]) == (label, 0.5)
        ]
        reached = [
            point
            for point in zip(curve["recall"], curve["precision"], curve["score"], strict=True)
            if point[2] is not None and round(point[2], 4) >= 0.9
        ]
        expected = max(reached)[:2] if reached else None
        assert (recall, precision) == (
            tuple(f"{value:.2f}" for value in expected) if expected else 2 * ("\N{EN DASH}",)
        )
    assert len(chosen) == 4
    links = browser.run(
        "[...document.querySelectorAll('a[href*=\"report%3D\"]')].map((a) => a.pathname + a.search)"
    )
    for path in links:  # the errors of each label, all that are missed, and all that are false
        open_page(browser, server, path)
        assert browser.run("document.querySelectorAll('.shot').length") > 0, path
    of_labels = [path for path in links if "%3Din%3A" in path]
    assert 2 <= len(of_labels) <= 2 * 5
    assert len(links) == 2 + len(of_labels)


def test_a_phone_shows_images_and_both_values_without_scrolling_sideways(browser, server):
    open_evaluated(browser, server, width=390)
    said = browser.run(
        "[...document.querySelectorAll('.fits tbody th .under')].map((words) => words.innerText.split('\\n'))"
    )
    assert said[0][0] == f"{len(list(images()))} images"
    for words in said:
        assert [name.rpartition(" ")[0] for name in words[1:]] in (
            [],
            ["shapes-detector:1", "shapes-detector:2"],
        )
    assert browser.run(
        "((box) => box.scrollWidth <= box.clientWidth)(document.querySelector('.fits').parentElement)"
    )
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_a_long_outcome_is_whole(browser, server):
    open_evaluated(browser, server, width=1200)
    assert browser.run("""(() => {
        const cells = [...document.querySelectorAll('.fits tbody td:last-child')], box = document.querySelector('.fits').parentElement;
        for (const cell of cells) cell.textContent = 'undecided, fewer than 30 images';
        return cells.length > 2 && box.scrollWidth <= box.clientWidth; })()""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_the_page_is_accessible_and_fits(browser, server, scheme, width):
    open_evaluated(browser, server, scheme=scheme, width=width)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    if not AXE.exists():
        pytest.skip("axe-core is not there: `make browser` gets it with npm")
    script = AXE.read_text("utf-8")
    assert hashlib.sha256(script.encode()).hexdigest() == AXE_SHA256
    browser.run(script + "; 0")
    assert not browser.run(
        "axe.run().then((r) => r.violations.map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 300))]))"
    )


def test_the_next_page_has_the_next_images(browser, server):
    open_page(browser, server, "/console/compare")
    shown = "[...document.querySelectorAll('.compare-row a')].map((a) => a.pathname)"
    first = browser.run(shown)
    browser.run("document.querySelector('a[rel=next]').click()")
    browser.wait_for("location.search.includes('cursor=')")
    assert not set(first) & set(browser.run(shown))


def test_cards_behind_a_cell_name_the_version_where_a_page_has_several(browser, server):
    for body, versions in (({"model": MODEL, "version": "2"}, set()), ({"model": MODEL}, {"version 1", "version 2"})):  # fmt: skip
        _, job = server.call("POST", "/api/evaluations", body)
        assert server.ended(job["id"])["state"] == "succeeded"
        open_page(browser, server, f"/console/reports/{job['id']}/images?truth=circle&predicted=circle")  # fmt: skip
        words = browser.run("[...document.querySelectorAll('.shot .words')].map((words) => words.innerText)")  # fmt: skip
        assert len(words) > 10
        assert {name for text in words for name in ("version 1", "version 2") if name in text} == versions  # fmt: skip
