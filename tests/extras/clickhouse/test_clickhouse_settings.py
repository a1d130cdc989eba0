"""The setting of ClickHouse: its form, and the writer that needs a package for it."""

import sys

import pytest

from quadriga.engine.config.extras import MissingExtra
from quadriga.engine.config.settings import Settings, SettingsError, load
from quadriga.engine.processes import worker


def test_a_url_of_another_kind_is_refused_without_its_password(tmp_path):
    file = tmp_path / "quadriga.toml"
    file.write_text("[extras.clickhouse]\nurl = 'clickhouse://u:canary-7f3a@host/db'\n")
    with pytest.raises(SettingsError) as caught:
        load({}, {}, file)
    expected = (
        'extras.clickhouse.url: expected text such as "https://user@clickhouse:8443/quadriga"'
    )
    assert str(caught.value) == f"{file}: {expected}, got 'clickhouse://host/db'"


def test_without_the_package_the_writer_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "_call_on_stop", lambda _: None)
    monkeypatch.delitem(sys.modules, "quadriga.extras.clickhouse.sending", raising=False)
    monkeypatch.setitem(sys.modules, "clickhouse_connect", None)
    settings = Settings(data=str(tmp_path), extras={"clickhouse": {"url": "http://127.0.0.1:9"}})
    with pytest.raises(MissingExtra, match=r"pip install 'quadriga\[clickhouse\]'"):
        worker._run_writer(settings)
