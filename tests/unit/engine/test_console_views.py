"""The page of saved views: what it lists, how it writes hostile texts, and whose views it leaves out."""

import html

from quadriga.engine.assembly.app import Application
from quadriga.engine.config.settings import Settings
from quadriga.monitor.saved_views import ViewBody, ViewStore
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import create_key
from quadriga.store.records.scope import Scope
from tests.server_process import SAMPLE_MODELS
from tests.unit.engine.console_harness import open_page

HOSTILE = "<script>alert(1)</script>"


def views_page(folder, save, team: str | None = None) -> str:
    """Return the page as a key of a team sees it; without a team, as anybody of this machine."""
    settings = Settings(models=str(SAMPLE_MODELS), data=str(folder))
    migrate(settings.database_url)
    headers = {}
    if team is not None:
        with writer_engine(settings.database_url) as engine:
            key = create_key(engine, name=team, roles=["read"], team=team)[1]
        headers = {"authorization": f"Bearer {key}"}
    save(ViewStore(settings.views_directory))
    application = Application(settings)
    assert application._keys is not None
    application._keys.refresh()
    try:
        page = open_page(application, "/console/views", headers=headers)
    finally:
        application.close()
    assert page.status == 200
    return page.text


def test_a_view_opens_with_its_filter_and_order_and_hostile_texts_stay_text(tmp_path):
    body = ViewBody(f'meta.note=eq:"{HOSTILE}"', "ts")
    text = views_page(
        tmp_path, lambda views: views.put("north", body, HOSTILE, "", may_replace=False)
    )
    assert HOSTILE not in text
    assert html.escape(HOSTILE) in text
    assert "/console/inferences?q=meta.note%3Deq" in text
    assert "order=ts" in text
    assert '<span class="tag">oldest first</span>' in text


def test_a_view_with_the_usual_order_names_none(tmp_path):
    text = views_page(
        tmp_path, lambda views: views.put("north", ViewBody("model=x"), "", "", may_replace=False)
    )
    assert ">north</a>" in text
    assert "oldest first" not in text
    assert "newest first" not in text


def test_without_a_view_the_page_says_so(tmp_path):
    assert "No saved views yet." in views_page(tmp_path, lambda views: None)


def test_the_views_of_a_team_are_not_those_of_another(tmp_path):
    body = ViewBody("model=eq:x")

    def save(views: ViewStore) -> None:
        views.within(Scope("north", None)).put("secret", body, "", "", may_replace=True)

    assert "secret" in views_page(tmp_path, save, "north")
    assert "secret" not in views_page(tmp_path, save, "south")
