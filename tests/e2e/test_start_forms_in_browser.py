"""A drift comparison, an evaluation and an export in Chromium, each started by its form and followed to what it makes."""

from datetime import datetime

import pytest

from tests.e2e.test_console_pages_in_browser import open_page
from tests.server_process import ServerProcess
from tests.two_versions import answer_all, write_two_versions

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start")
    with ServerProcess(folder / "data", write_two_versions(folder / "models")) as server:
        answer_all(server)
        yield server


@pytest.mark.parametrize("form", ["compare", "evaluate"])
def test_a_form_leads_to_its_report(browser, server, form):
    kind = {"compare": "drift", "evaluate": "evaluation"}[form]
    open_page(browser, server, f"/console/reports/new?kind={kind}&q=model%3Dshapes-detector")
    if (
        form == "compare"
    ):  # all images came within seconds: the later half is compared with the earlier one
        first, last = (
            datetime.fromisoformat(
                server.call("GET", f"/api/inferences?limit=1&order={order}")[1]["inferences"][0][
                    "created_at"
                ]
            )
            for order in ("ts", "-ts")
        )
        for name, moment in (("from", first + (last - first) / 2), ("to", last)):
            value = moment.isoformat(timespec="milliseconds")[:23]
            browser.run(f"document.querySelector('input[name={name}]').value = '{value}'")
        browser.run("document.querySelector('form[action$=\"reports/compare\"]').noValidate = true")
    browser.run(f"document.querySelector('form[action$=\"reports/{form}\"] .first').click()")
    browser.wait_for("location.pathname.startsWith('/console/jobs/')")
    browser.wait_for("document.querySelector('.sentence a[href*=\"/console/reports/\"]') !== null")
    job = browser.run("location.pathname.split('/').pop()")
    browser.run("document.querySelector('.sentence a[href*=\"/console/reports/\"]').click()")
    browser.wait_for("location.pathname.startsWith('/console/reports/')")
    assert server.call("GET", f"/api/reports/{job}")[1]["kind"] == kind


def test_the_export_of_a_list_leads_to_its_file(browser, server):
    open_page(browser, server, "/console/inferences?q=version%3D2")
    browser.run("document.querySelector('form[action$=\"inferences/export\"] button').click()")
    browser.wait_for("document.querySelector('.sentence a[href$=\"/result\"]') !== null")
    job = browser.run("location.pathname.split('/').pop()")
    parameters = server.call("GET", f"/api/jobs/{job}")[1]["parameters"]
    assert (parameters["where"], parameters["format"]) == ("version=2", "jsonl")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_the_forms_fit(browser, server, scheme, width):
    for path in ("/console/reports/new", "/console/reports/new?kind=drift", "/console/inferences"):
        open_page(browser, server, path, scheme=scheme, width=width)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), path


def test_the_counts_of_an_evaluation_follow_the_model_and_the_filter(browser, server):
    open_page(browser, server, "/console/reports/new")
    found = "document.getElementById('help-q').innerText"
    which = "document.getElementById('help-model').innerText"
    browser.run("document.querySelector('[name=by]').value = 'camera'; 0")
    first = browser.run("document.getElementById('field-model').value")
    assert browser.run(which).endswith(", too.")
    for version, count in (("1", None), ("2", None), ("1", "0 inferences match")):
        line = "label=none" if count else ""
        browser.run(f"""(() => {{ const form = document.querySelector('form[data-counted]');
            form.elements.model.value = 'shapes-detector:{version}'; form.elements.q.value = '{line}';
            form.elements.model.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()""")
        asked = {"model": "shapes-detector", "version": version}
        n = len(server.query(asked, limit=500))
        browser.wait_for(f"{found}.startsWith('{count or f'{n} inferences match'}')")
        browser.wait_for(f"{which} === ''")
    assert first.startswith("shapes-detector:")
    assert browser.run("document.querySelector('[name=by]').value") == "camera"
