"""The keys that a worker accepts: when it needs them, which are valid, and what happens while the database is away."""

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from quadriga.engine.access.key_ring import (
    COPY_FILE,
    FIRST_KEY_FILE,
    KeyGate,
    KeyMetrics,
    KeyRing,
    is_loopback,
)
from quadriga.engine.config.settings import Settings
from quadriga.engine.processes.serving import wait_until
from quadriga.proto.access import admit
from quadriga.proto.errors import KeysNotRead, Unauthenticated
from quadriga.store.database.database import migrate, writer_engine
from quadriga.store.keys.access_keys import (
    create_key,
    end_session,
    read_ended_sessions,
    read_keys,
    revoke_key,
    rotate_key,
)
from quadriga.store.keys.key_texts import make_key
from quadriga.store.records.errors import NotFoundError, StoreError

DAY_MS = 86_400_000
OTHERS_REACH_IT = "192.0.2.1"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def settings_of(data: Path, host: str = "127.0.0.1", **more: object) -> Settings:
    return Settings(data=str(data), host=host, **more)


RINGS: list[KeyRing] = []
"""Rings of a test, which are closed at its end."""


@pytest.fixture(autouse=True)
def close_rings() -> Iterator[None]:
    yield
    while RINGS:
        RINGS.pop().close()


def new_ring(settings: Settings, internal_key: str = "") -> KeyRing:
    """Return a ring that has read nothing."""
    RINGS.append(KeyRing(settings, internal_key))
    return RINGS[-1]


def opened(settings: Settings, internal_key: str = "") -> KeyRing:
    """Return a ring that has read the keys."""
    migrate(settings.database_url)
    ring = new_ring(settings, internal_key)
    ring.refresh()
    return ring


def changed(settings: Settings, change: Callable[..., object], *arguments: object, **options):
    with writer_engine(settings.database_url) as engine:
        return change(engine, *arguments, **options)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:192.168.1.7", False),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.7", False),
        ("127.1", False),  # a form that is not known is taken for an address that others reach
        ("example.org", False),
        ("", False),
    ],
)
def test_only_addresses_of_this_machine_are_loopback(host, expected):
    assert is_loopback(host) is expected


def test_on_loopback_no_key_is_needed_until_there_is_one(data):
    settings = settings_of(data)
    ring = new_ring(settings)  # no database yet
    assert ring.is_open
    with pytest.raises(StoreError):
        ring.refresh()
    assert ring.is_open
    ring = opened(settings)
    assert ring.is_open
    assert not (data / FIRST_KEY_FILE).exists()
    key, text = changed(settings, create_key, name="line 4", roles=["infer"])
    ring.refresh()
    assert not ring.is_open
    caller = ring.find(text)
    assert (caller.name, caller.key_id, caller.rights) == ("line 4", key.id, {"infer"})
    changed(settings, revoke_key, key.id)
    ring.refresh()
    assert not ring.is_open  # whoever made a key wants them, the last one revoked or not
    refused = ring.find(text)  # the audit log says whose it was
    assert (refused.name, refused.key_id, refused.rights) == ("line 4", key.id, frozenset())
    assert "revoked" in refused.refusal
    assert ring.find(text[:-1] + "-").key_id == ""  # nobody else is that key


@pytest.mark.parametrize("store", [True, False])
def test_elsewhere_a_first_key_is_made_once(data, store):
    settings = settings_of(data, OTHERS_REACH_IT, store=store)
    migrate(settings.database_url)
    rings = [new_ring(settings) for _ in range(4)]
    assert not any(ring.is_open for ring in rings)
    threads = [threading.Thread(target=ring.refresh) for ring in rings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = data / FIRST_KEY_FILE
    text = file.read_text().strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert all("admin" in ring.find(text).rights for ring in rings)
    rings[0].refresh()
    assert file.read_text().strip() == text
    file.unlink()  # revokes it
    rings[0].refresh()
    assert not rings[0].find(text).rights
    assert file.read_text().strip() != text


@pytest.mark.parametrize(
    "more", [{"trusted_proxies": "127.0.0.1"}, {"public_url": "https://models.example.org"}]
)
def test_behind_a_proxy_a_key_is_needed_on_loopback_too(data, more):
    settings = settings_of(data, **more)
    ring = new_ring(settings)  # no database yet: a lost setting must open nothing
    assert not ring.is_open
    assert not KeyGate(ring).identify({}.get).rights  # others come from this machine, too
    migrate(settings.database_url)
    ring.refresh()
    text = (data / FIRST_KEY_FILE).read_text().strip()
    assert not ring.is_open
    assert "admin" in ring.find(text).rights


def test_no_first_key_is_made_where_there_is_another(data):
    settings = settings_of(data, OTHERS_REACH_IT)
    migrate(settings.database_url)
    changed(settings, create_key, name="", roles=["read"])
    opened(settings)
    assert not (data / FIRST_KEY_FILE).exists()
    given = make_key("ops")[1]
    ring = opened(settings_of(data.with_name("other"), OTHERS_REACH_IT, admin_key=given))
    assert not (data.with_name("other") / FIRST_KEY_FILE).exists()
    assert "admin" in ring.find(given).rights


def test_no_first_key_is_made_before_the_database_was_read(data):
    ring = new_ring(settings_of(data, OTHERS_REACH_IT))
    with pytest.raises(StoreError):
        ring.refresh()
    assert not (data / FIRST_KEY_FILE).exists()


def test_a_server_on_loopback_is_closed_until_it_has_read_the_keys(data):
    settings = settings_of(data)
    migrate(settings.database_url)
    _, text = changed(settings, create_key, name="", roles=["infer"])
    ring = new_ring(settings)
    assert not ring.is_open
    gate = KeyGate(ring)
    headers = {b"x-api-key": text.encode()}
    for presented in ({}, headers):
        with pytest.raises(KeysNotRead, match="the keys are there"):
            admit(gate.identify(presented.get), "infer")
        admit(gate.identify(presented.get), "nothing")
    ring.refresh()
    admit(gate.identify(headers.get), "infer")
    with pytest.raises(Unauthenticated):
        admit(gate.identify({}.get), "infer")


def test_the_first_request_of_a_new_folder_waits_for_the_tables_of_the_keys(data):
    settings = settings_of(data)
    data.mkdir()
    Path(settings.database_url.removeprefix("sqlite:///")).touch()  # as the writer begins
    ring = new_ring(settings)
    ring.start()

    async def serve() -> bool:
        stopped = asyncio.create_task(asyncio.sleep(60))
        await wait_until(lambda: ring.is_known, stopped, 0.2)
        assert not ring.is_known
        making = asyncio.to_thread(migrate, settings.database_url)
        await asyncio.gather(wait_until(lambda: ring.is_known, stopped), making)
        return stopped.cancel()

    assert asyncio.run(serve())
    assert ring.is_open


def test_keys_outlast_the_database(data):
    settings = settings_of(data, OTHERS_REACH_IT)
    migrate(settings.database_url)
    key, text = changed(settings, create_key, name="", roles=["infer"])
    opened(settings)
    assert (data / COPY_FILE).stat().st_mode & 0o777 == 0o600
    assert text.partition(".")[2] not in (data / COPY_FILE).read_text()
    for path in data.glob("store.db*"):
        path.unlink()
    ring = new_ring(settings)
    with pytest.raises(StoreError):
        ring.refresh()
    assert ring.find(text).key_id == key.id


@pytest.mark.parametrize(
    "text",
    ["", "quadriga", "quadriga-", "quadriga-.", "quadriga-x.y", ".", "a.b", "é.ü", "\udcff.", "x" * 70_000],
)  # fmt: skip
def test_texts_that_are_no_key_are_unknown(data, text):
    ring = opened(settings_of(data, OTHERS_REACH_IT))
    assert "unknown" in ring.find(text).refusal


def test_the_secret_counts_to_its_last_character(data):
    settings = settings_of(data)
    migrate(settings.database_url)
    _, text = changed(settings, create_key, name="", roles=["infer"])
    ring = opened(settings)
    last = "A" if text[-1] != "A" else "B"
    for wrong in (text[:-1], text[:-1] + last, text + "A", text.upper()):
        assert not ring.find(wrong).rights


def test_a_key_ends_at_its_time(data, monkeypatch):
    settings = settings_of(data)
    migrate(settings.database_url)
    key, text = changed(settings, create_key, name="", roles=["infer"], expires_in_ms=60_000)
    ring = opened(settings)
    assert ring.find(text).rights
    monkeypatch.setattr(time, "time", lambda: (key.expires_ms + 1) / 1000)
    assert "has expired" in ring.find(text).refusal


def test_a_key_is_replaced_while_the_old_one_goes_on(data):
    settings = settings_of(data)
    migrate(settings.database_url)
    old, old_text = changed(
        settings, create_key, name="line", roles=["infer", "read"], models=[], expires_in_ms=10**9
    )
    new, new_text = changed(settings, rotate_key, old.id, 60_000)
    assert (new.name, new.roles, new.expires_ms) == (old.name, old.roles, old.expires_ms)
    ring = opened(settings)
    assert ring.find(old_text).rights == ring.find(new_text).rights
    _, third_text = changed(settings, rotate_key, new.id, 0)
    ring.refresh()
    assert "has expired" in ring.find(new_text).refusal
    assert ring.find(third_text).rights
    changed(settings, revoke_key, old.id)
    with pytest.raises(StoreError, match="revoked or has expired"):
        changed(settings, rotate_key, old.id, 0)
    for change in (revoke_key, lambda engine, key_id: rotate_key(engine, key_id, 0)):
        with pytest.raises(NotFoundError, match="quadriga keys list"):
            changed(settings, change, "nobody's")


def test_the_last_use_is_noted(data):
    settings = settings_of(data)
    migrate(settings.database_url)
    key, text = changed(settings, create_key, name="", roles=["infer"])
    ring = opened(settings)
    before_ms = time.time() * 1000
    ring.find(text)
    ring.find(text[:-3])
    ring.close()
    with writer_engine(settings.database_url) as engine, closing(engine.connect()) as connection:
        (stored,) = read_keys(connection)
    assert before_ms - 1 <= stored.used_ms <= time.time() * 1000
    assert stored.id == key.id


def test_the_key_of_jobs_runs_models_and_closes_nothing(data):
    internal_key = make_key("jobs")[1]
    ring = opened(settings_of(data), internal_key)
    assert ring.is_open
    assert ring.find(internal_key).rights == {"infer"}


HOSTILE_NAMES = [
    "jobs", "admin.key", "admin_key", "internal", "anybody", "nobody", "", "\u0458obs", "jobs ", "admin\uff0ekey"
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_makes_no_key_another_one(data, name):
    internal_key = make_key()[1]
    settings = settings_of(data, key_limits="requests=7/hour")
    migrate(settings.database_url)
    key, text = changed(settings, create_key, name=name, roles=["infer"])
    ring = opened(settings, internal_key)
    assert not ring.is_open  # the first key closes the server, whatever its name
    caller = ring.find(text)
    assert caller.quota is not None
    assert set(caller.quota.limits) == {"requests"}  # default limits hold
    gate = KeyGate(ring)
    teams = [
        gate.identify({b"x-api-key": key_text.encode(), b"x-quadriga-team": b"other"}.get).team
        for key_text in (text, internal_key)
    ]
    assert teams == ["", "other"]  # only jobs of the server speak for a team
    elsewhere = opened(settings_of(data, OTHERS_REACH_IT))
    assert not (data / FIRST_KEY_FILE).exists()
    assert elsewhere.find(text).key_id == key.id


@pytest.mark.parametrize("key_id", ["jobs", "session-x", "admin.key"])
def test_the_id_of_an_administrators_key_means_nothing(data, key_id):
    given, internal_key = make_key(key_id)[1], make_key()[1]
    settings = settings_of(data, OTHERS_REACH_IT, admin_key=given, key_limits="requests=7/hour")
    ring = opened(settings, internal_key)
    assert "admin" in ring.find(given).rights
    assert not ring.find(given).is_of_jobs
    assert not ring.find(given).quota.is_limited
    assert ring.find(internal_key).is_of_jobs
    assert not (data / FIRST_KEY_FILE).exists()


def test_a_role_of_a_newer_version_has_no_rights(data):
    settings = settings_of(data)
    migrate(settings.database_url)
    _, text = changed(settings, create_key, name="", roles=["infer", "teleport"])
    assert opened(settings).find(text).rights == {"infer"}


def test_a_data_folder_that_is_gone_ends_no_server(data):
    settings = settings_of(data, OTHERS_REACH_IT)
    ring = opened(settings)
    shutil.rmtree(data)
    with pytest.raises(StoreError):
        ring.refresh()
    migrate(settings.database_url)
    ring.refresh()
    assert (data / FIRST_KEY_FILE).exists()


def test_a_session_that_was_ended_counts_nowhere_and_is_no_key(data):
    settings = settings_of(data)
    first, second = opened(settings), opened(settings)
    ends_ms = int(time.time() * 1000) + 60_000
    first.end_session("s1", "mara", ends_ms)
    first.end_session("s1", "mara", ends_ms)  # a second click
    assert first.is_ended("s1")
    assert not second.is_ended("s1")
    for ring in (first, second):
        ring.refresh()
        assert ring.is_ended("s1")
        assert not ring.is_ended("s2")
        assert ring.is_open  # it is no key that would close the server
    assert new_ring(settings).is_ended(
        "s1"
    )  # by the copy in the data folder, before the database answers
    with writer_engine(settings.database_url) as engine, engine.connect() as connection:
        assert read_keys(connection) == []
        assert len(read_ended_sessions(connection)) == 1
    first.end_session("s3", "omar", ends_ms - 90_000_000)  # its time was over a day ago
    first.end_session("s4", "omar", ends_ms)
    with writer_engine(settings.database_url) as engine, engine.connect() as connection:
        ended = [session.id for session in read_ended_sessions(connection)]
    assert ended == ["session-s1", "session-s4"]


def test_a_session_is_ended_while_the_database_is_away_and_written_later(data, caplog):
    settings = settings_of(data)
    ring, other = opened(settings), opened(settings)
    (data / "store.db").rename(data / "away.db")
    (data / "store.db").mkdir()
    ring.end_session("s1", "mara", int(time.time() * 1000) + 60_000)
    assert ring.is_ended("s1")
    assert "do not know yet" in caplog.text
    (data / "store.db").rmdir()
    (data / "away.db").rename(data / "store.db")
    for each in (ring, other):
        each.refresh()
        assert each.is_ended("s1")


def test_a_server_with_an_identity_provider_is_never_open(data):
    extras = {"sign_on": {"issuer": "https://login.example.org"}}
    assert not opened(settings_of(data, extras=extras)).is_open


def ends_of(ring: KeyRing | None) -> list[tuple[str, str, float]]:
    """Return the key, the name and the end of each key whose end the metrics show."""
    families = {family.name: family.samples for family in KeyMetrics(ring).collect()}
    samples = families["quadriga_key_end_timestamp_seconds"]
    return [(sample.labels["key"], sample.labels["name"], sample.value) for sample in samples]


def test_metrics_say_when_the_keys_end_that_end_within_30_days(data):
    settings = settings_of(data)
    ring = opened(settings)
    assert ends_of(None) == ends_of(ring) == []
    keys = {
        name: changed(settings, create_key, name=name, roles=["infer"], expires_in_ms=expires_in_ms)
        for name, expires_in_ms in (
            ("for 29 days", 29 * DAY_MS),
            ("for 31 days", 31 * DAY_MS),
            ("for ever", None),
            ("for an hour", DAY_MS // 24),
            ("ended", 0),
            ("revoked", DAY_MS),
            ("", 2 * DAY_MS),
        )
    }
    changed(settings, revoke_key, keys["revoked"][0].id)
    changed(settings, end_session, "a" * 12, name="somebody", expires_ms=int(time.time() * 1000) + DAY_MS)  # fmt: skip
    ring.refresh()
    shown = [keys[name][0] for name in ("for an hour", "", "for 29 days")]
    assert ends_of(ring) == [(key.id, key.name or key.id, key.expires_ms / 1000) for key in shown]
    changed(settings, rotate_key, keys["for 29 days"][0].id, DAY_MS // 48)
    ring.refresh()
    names = [name for _, name, _ in ends_of(ring)]
    assert names == ["for 29 days", "for an hour", shown[1].id, "for 29 days"]


def test_metrics_show_the_ends_of_100_keys_the_soonest_first(data):
    settings = settings_of(data)
    ring = opened(settings)
    with writer_engine(settings.database_url) as engine:
        for number in range(130):
            hours = number * 7 % 130 + 1
            create_key(engine, name=str(hours), roles=["read"], expires_in_ms=hours * DAY_MS // 24)
    ring.refresh()
    assert [int(name) for _, name, _ in ends_of(ring)] == [*range(1, 101)]
