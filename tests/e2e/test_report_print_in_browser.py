"""The whole report of a job in Chromium: its links lead to the console in the session of who reads it, and nothing runs."""

import pytest
from msgspec.structs import replace

from quadriga.engine.config.settings import Settings
from quadriga.monitor.report.page import render_page
from quadriga.monitor.report.saved import PAGE_FILE
from quadriga.monitor.report.schema import Metric, Worst
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from tests.onnx_models import doubling
from tests.server_process import ServerProcess
from tests.unit.engine.drift_reports import drift_report, keep_report
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import store_entries

pytestmark = pytest.mark.browser

ID = 700_000_000_001
BOX = {"label": "<b>ship", "xmin": 10.0, "ymin": 10.0, "xmax": 200.0, "ymax": 200.0}


def test_links_of_the_whole_report_stay_in_the_session(browser, tmp_path):
    data = tmp_path / "data"
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    settings = Settings(data=str(data))
    migrate(settings.database_url)
    store_entries(settings.database_url, settings.journal_directory, [make_record(ID)])
    with writer_engine(settings.database_url) as engine:
        key = create_key(engine, name="mara", roles=["read"])[1]
    worst = Worst(
        str(ID), "miss", 1, width=640, height=480, predictions=[BOX | {"score": 0.9}], ground_truth=[BOX]
    )  # fmt: skip
    report = replace(drift_report(0), kind="evaluation", metrics=[Metric("AP", 0.5)], worst=[worst])
    page = keep_report(settings, report) / PAGE_FILE
    page.write_text(render_page(report, lambda _: None))
    with ServerProcess(data, tmp_path / "models") as server:
        browser.open(f"http://{server.host}/console/reports/{report.id}")
        browser.wait_for("!!document.querySelector('input[name=key]')")
        browser.run(f"document.querySelector('input[name=key]').value = '{key}'")
        browser.run("document.querySelector('form').requestSubmit()")
        browser.wait_for(
            "!!document.querySelector('main a[href$=\"/page\"]')",
        )
        browser.errors.clear()
        for link, path in (
            (f"a[href$='/inferences/{ID}']", f"/console/inferences/{ID}"),
            (".back a", f"/console/reports/{report.id}"),
        ):
            browser.open(f"http://{server.host}/console/reports/{report.id}")
            browser.run("document.querySelector('main a[href$=\"/page\"]').click()")
            browser.wait_for("location.pathname.endsWith('/page')")
            browser.wait_for("!!document.querySelector('.back a')")
            names = browser.run(
                "[...document.querySelectorAll('.gallery text')].map((text) => text.textContent)"
            )
            assert names == ["<b>ship", "<b>ship 0.90"]
            browser.run(f'document.querySelector("{link}").click()')
            browser.wait_for(f"location.pathname === '{path}'")
            browser.wait_for("!!document.querySelector('main h1')")
            assert not browser.run("!!document.querySelector('input[name=key]')")
        browser.open(page)  # as a file, wherever it was sent
        assert browser.run("document.querySelectorAll('a[href]').length") == 0
        assert str(ID) in browser.run("document.querySelector('.gallery').innerText")
