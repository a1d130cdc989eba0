"""The signals of a drift report in Chromium: the numbers of rows and the reasons are in sight."""

import pytest

from quadriga.engine.config.settings import Settings
from quadriga.store.database.database import migrate
from tests.e2e.test_console_pages_in_browser import open_page
from tests.onnx_models import doubling
from tests.server_process import ServerProcess
from tests.unit.engine.drift_reports import drift_report, keep_report, numeric

pytestmark = pytest.mark.browser

REASON = "rows of a source resemble rows much later, so that the number of independent ones is not certain, however large"


@pytest.mark.parametrize("width", [1200, 1000])
def test_why_nothing_can_be_said_of_a_signal_is_in_sight(browser, tmp_path, width):
    data = tmp_path / "data"
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    settings = Settings(data=str(data))
    migrate(settings.database_url)
    moved = numeric("image.blur", 5, 7, alarm=False, status="insufficient", reason=REASON)
    report = drift_report(0, moved, numeric("score", 5, 5))
    keep_report(settings, report)
    with ServerProcess(data, tmp_path / "models") as server:
        open_page(browser, server, f"/console/reports/{report.id}", width=width)
        cell = "[...document.querySelectorAll('td .under')].find((under) => under.textContent.startsWith('rows of a source'))"
        assert browser.run(f"{cell}.textContent") == REASON
        assert browser.run(
            f"{cell}.getBoundingClientRect().right <= {cell}.closest('section').getBoundingClientRect().right"
        )
        assert browser.run(f"getComputedStyle({cell}).display") == "block"


@pytest.mark.parametrize("width", [1440, 1200, 390])
def test_names_of_signals_are_whole_beside_many_windows(browser, tmp_path, width):
    data = tmp_path / "data"
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    settings = Settings(data=str(data))
    migrate(settings.database_url)
    names = (
        "image.burnt",
        "image.colour_b",
        "bytes_per_pixel",
        "meta." + "a_long_key" * 6,
        "score",
    )
    for number in range(24):
        signals = [numeric(name, 5, 5.2) for name in names]
        keep_report(settings, drift_report(number, *signals, model="doubling"))
    with ServerProcess(data, tmp_path / "models") as server:
        open_page(browser, server, "/console/models/doubling/drift", width=width)
        assert browser.run("document.querySelectorAll('.windows thead th').length") == 25
        rows = browser.run("""[...document.querySelectorAll('.windows tbody th')].map((th) => {
            th.scrollIntoView({ block: 'center', inline: 'nearest' });
            const words = document.createRange(), table = th.closest('.flush').getBoundingClientRect();
            words.selectNodeContents(th);
            const { left, right, top, bottom } = words.getBoundingClientRect(), cell = th.getBoundingClientRect();
            const isOnTop = th.contains(document.elementFromPoint((cell.left + cell.right) / 2, (cell.top + cell.bottom) / 2));
            return left >= table.left && right <= cell.right && top >= cell.top - 1 && bottom <= cell.bottom + 1 && isOnTop; })""")
        assert rows == [True] * len(names)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
