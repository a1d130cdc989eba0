"""Models of an object store: what is fetched, what is kept, and what a failure leaves."""

import errno
import resource
import shutil
from functools import partial

import pytest

from quadriga.extras.object_stores import cache as cache_module
from quadriga.extras.object_stores.cache import ModelCache
from quadriga.extras.object_stores.source import ChangingSourceError, SourceError
from tests.background import at_once
from tests.extras.object_stores.source_harness import MemoryObjects, files, look, open_models


def served_content(models, states, name="a"):
    """Return the contents of a model's versions in some states."""
    return {version: path.read_bytes() for version, path in models.find(states)[name].items()}


def snapshots(directory):
    return {path.name for path in (directory / "cache" / "snapshots").iterdir()}


def contents(directory):
    return {path.read_bytes() for path in (directory / "cache" / "files").iterdir()}


@pytest.mark.parametrize(
    ("objects", "name", "expected"),
    [
        ({"a__model": b"1"}, "models", {"a": {"1": b"1"}}),
        ({"a__1__model": b"1", "a__2__model": b"2"}, "models", {"a": {"1": b"1", "2": b"2"}}),
        ({"a__m": b"1", "b__m": b"2"}, "models", {"a": {"1": b"1"}, "b": {"1": b"2"}}),
        ({"model": b"1"}, "shapes", {"shapes": {"1": b"1"}}),
        ({"1__model": b"1", "2__model": b"2"}, "shapes", {"shapes": {"1": b"1", "2": b"2"}}),
        ({"onnx__model": b"1"}, "shapes", {"shapes": {"1": b"1"}}),
        ({"a__x": b"1", "a__y": b"2", "b__m": b"3"}, "models", {"b": {"1": b"3"}}),
        ({"A__m": b"1", "a__m": b"2", "b__m": b"3"}, "models", {"b": {"1": b"3"}}),
    ],
)
def test_a_source_has_the_models_that_a_folder_of_its_files_has(tmp_path, objects, name, expected):
    models = open_models(tmp_path, MemoryObjects(**objects), name=name)
    assert models.newest() == {}
    look(models)
    found = models.find(models.newest())
    read = {
        name: {version: path.read_bytes() for version, path in versions.items()}
        for name, versions in found.items()
    }
    assert read == expected


def test_only_what_has_changed_is_fetched(tmp_path):
    objects = MemoryObjects(a__1__model=b"1", b__model=b"2")
    models = open_models(tmp_path, objects)
    look(models)
    first = models.newest()
    look(models)
    assert sorted(objects.fetched) == ["a/1/model.onnx", "b/model.onnx"]
    objects.put(a__2__model=b"3")
    look(open_models(tmp_path, objects))
    assert objects.fetched[2:] == ["a/2/model.onnx"]
    assert models.newest()["b"] == first["b"]
    assert models.newest()["a"] != first["a"]
    assert served_content(models, models.newest()) == {"1": b"1", "2": b"3"}
    assert served_content(models, first) == {"1": b"1"}
    del objects.contents["a/2/model.onnx"]
    look(models)
    assert models.newest() == first


def test_equal_contents_are_kept_once(tmp_path):
    objects = MemoryObjects(a__model=b"same", b__model=b"same")
    models = open_models(tmp_path, objects)
    look(models)
    assert contents(tmp_path) == {b"same"}
    (path,) = (tmp_path / "cache" / "files").iterdir()
    assert path.stat().st_nlink == 3
    assert path.stat().st_mode & 0o777 == 0o400


def test_a_source_that_changes_while_it_is_read_is_not_taken(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    before, objects.contents["a/model.onnx"] = models.newest(), b"half"
    objects.before_fetch = lambda _: objects.put(a__other=b"late")
    with pytest.raises(ChangingSourceError):
        look(models)
    assert models.newest() == before
    objects.before_fetch = lambda _: objects.put(a__model=b"whole")
    with pytest.raises(ChangingSourceError):
        look(models)
    assert served_content(models, models.newest()) == {"1": b"1"}
    objects.before_fetch = lambda _: None
    del objects.contents["a/other.onnx"]
    look(models)
    assert served_content(models, models.newest()) == {"1": b"whole"}


def test_what_was_fetched_before_a_failure_is_not_fetched_again(tmp_path):
    objects = MemoryObjects(a__1__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    objects.put(a__2__model=b"2", a__3__model=b"3")
    before = models.newest()

    def leave(path):
        objects.is_away = path == "a/3/model.onnx"

    objects.before_fetch = leave
    with pytest.raises(SourceError, match="does not answer"):
        look(models)
    assert models.newest() == before
    objects.is_away, objects.before_fetch = False, lambda _: None
    already = list(objects.fetched)
    look(models)
    assert not set(objects.fetched[len(already) :]) & set(already)
    assert served_content(models, models.newest()) == {"1": b"1", "2": b"2", "3": b"3"}


@pytest.mark.parametrize("objects", [{}, {"a__x": b"1", "a__y": b"2"}])
def test_a_source_without_a_model_is_no_state(tmp_path, objects):
    source = MemoryObjects(**objects)
    models = open_models(tmp_path, source)
    for _ in range(2):
        with pytest.raises(SourceError, match="their source has no model"):
            look(models)
    assert len(source.fetched) == len(objects)
    assert (models.newest(), models.begin(), models.seen_at()) == ({}, {}, 0)


def test_a_file_that_the_disk_does_not_take_leaves_what_was_there(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    before, whole = models.newest(), files(tmp_path / "cache" / "snapshots")
    objects.put(a__model=b"2" * 100_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="too large") as error:
            look(models)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.value.errno == errno.EFBIG
    assert models.newest() == before
    assert files(tmp_path / "cache" / "snapshots") == whole
    assert contents(tmp_path) == {b"1"}
    look(models)
    assert served_content(models, models.newest()) == {"1": b"2" * 100_000}


def test_room_is_asked_for_before_anything_is_fetched(tmp_path):
    models = ModelCache(tmp_path, "models")
    models.check_room(1)
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(SourceError, match="has no room") as error:
        models.check_room(2 * free)
    assert error.value.errno == errno.ENOSPC


def test_two_processes_fetch_a_new_state_once(tmp_path):
    objects = MemoryObjects(a__model=b"1", b__model=b"2")
    sources = [open_models(tmp_path, objects) for _ in range(4)]
    at_once([partial(look, source, 60) for source in sources])
    assert sorted(objects.fetched) == ["a/model.onnx", "b/model.onnx"]


def test_a_look_during_another_one_is_refused_after_its_time(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models, other = (open_models(tmp_path, objects) for _ in range(2))
    errors = []

    def look_as_well(_):
        with pytest.raises(SourceError, match="another process is fetching them") as error:
            look(other)
        errors.append(error)

    objects.before_fetch = look_as_well
    look(models)
    assert len(errors) == 1


def test_what_nothing_serves_is_removed(tmp_path):
    objects = MemoryObjects(a__model=b"0", b__model=b"stays")
    models = open_models(tmp_path, objects)
    for number in range(5):
        objects.put(a__model=b"%d" % number)
        look(models)
        newest = models.newest()
        models.keep(newest)
        models.release(list(models.find(newest)["a"].values()))
        assert snapshots(tmp_path) == set(newest.values())
        assert contents(tmp_path) == {b"%d" % number, b"stays"}


def test_another_server_on_the_cache_removes_nothing_that_is_served_here(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    here = open_models(tmp_path, objects, "here")
    look(here)
    states = here.newest()
    here.keep(states)
    paths = list(here.find(states)["a"].values())
    there = open_models(tmp_path, objects, "there")
    objects.put(a__model=b"2")
    look(there)
    there.keep(there.newest())
    there.release([])
    assert paths[0].read_bytes() == b"1"
    here.keep(there.newest())
    here.release([])
    assert not paths[0].exists()
    assert served_content(there, there.newest()) == {"1": b"2"}


def test_what_a_crash_left_is_removed_by_the_next_look(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    (tmp_path / "cache" / "files" / ".half").write_bytes(b"half")
    (tmp_path / "cache" / "snapshots" / ".half" / "models").mkdir(parents=True)
    objects.put(a__model=b"2")
    look(models)
    assert contents(tmp_path) == {b"1", b"2"}
    assert not [name for name in snapshots(tmp_path) if name.startswith(".")]


def test_damaged_files_are_fetched_again_at_a_start(tmp_path):
    objects = MemoryObjects(a__model=b"good", b__model=b"fine")
    models = open_models(tmp_path, objects)
    look(models)
    models.keep(models.newest())
    path = models.find(models.newest())["a"]["1"]
    path.chmod(0o600)
    path.write_bytes(b"evil")
    again = open_models(tmp_path, objects)
    assert again.begin() == {"b": models.newest()["b"]}
    look(again)
    assert objects.fetched[2:] == ["a/model.onnx"]
    assert served_content(again, again.newest()) == {"1": b"good"}


def test_a_cache_that_was_removed_is_filled_again(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    models.keep(models.newest())
    assert models.is_kept()
    shutil.rmtree(tmp_path / "cache")
    assert not models.is_kept()
    look(models)
    assert models.is_kept()
    assert served_content(models, models.newest()) == {"1": b"1"}


def test_a_damaged_listing_costs_a_fetch_and_no_more(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    newest = models.newest()
    for damaged in (b"", b"\xff", b"{}", b'{"models": 1}'):
        (tmp_path / "cache" / "listing.json").write_bytes(damaged)
        look(models)
        assert models.newest() == newest


def test_a_record_of_another_source_is_none(tmp_path):
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    models.keep(models.newest())
    assert models.served() == models.newest()
    record = tmp_path / "data" / "served-models.json"
    record.write_text(record.read_text().replace("memory", "other"))
    assert models.served() == {}


def test_a_file_system_without_links_has_copies(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(cache_module.os, "link", refuse)
    objects = MemoryObjects(a__model=b"1")
    models = open_models(tmp_path, objects)
    look(models)
    objects.put(a__model=b"2")
    look(models)
    models.release([])
    assert served_content(models, models.newest()) == {"1": b"2"}
