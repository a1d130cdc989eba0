"""Every spelling of a model's name finds the model, and an unknown name is an error that helps."""

from pathlib import Path

import pytest

from quadriga.monitor.model_files import rename_aliases
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.names import ModelNames, find_model_name
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotFoundError
from quadriga.store.records.records import ModelReference
from tests.memory import taking_at_most
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

NAMES = {"Bar", "m-foo", "plain", "m-plain"}


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("Bar", "Bar"), ("bar", "Bar"), ("m-bar", "Bar"), ("M-BAR", "Bar"),
        ("foo", "m-foo"), ("M-FOO", "m-foo"), ("m-m-foo", "m-foo"),
        ("plain", "plain"), ("m-plain", "m-plain"), ("M-Plain", "m-plain"),
        ("ba", None), ("", None), ("m-", None), ("m-m-bar", None),
    ],
)  # fmt: skip
def test_a_name_means_one_model(name: str, model: str | None):
    assert find_model_name(name, NAMES) == model


def test_an_unknown_name_is_answered_with_those_that_are_near():
    names = ModelNames(lambda: {"stored"}, lambda: {"shapes-detector", "shapes-segmenter"})
    assert names.resolve("M-Shapes-Detector") == "shapes-detector"
    assert names.resolve("m-stored") == "stored"
    with pytest.raises(NotFoundError, match=r"'shapes-detektor'; did you mean shapes-detector or"):
        names.resolve("shapes-detektor")
    with pytest.raises(NotFoundError, match=r"'m-shape-detector'; did you mean shapes-detector"):
        names.resolve("m-shape-detector")
    with pytest.raises(NotFoundError, match=r"'x'; there are shapes-detector, .*, stored$"):
        names.resolve("x")
    with pytest.raises(NotFoundError, match="there is none"):
        ModelNames(tuple, tuple).resolve("x")


def test_a_long_text_is_no_model_at_no_cost():
    names = ModelNames(lambda: {"stored"}, lambda: {"served"})
    text = "\x01" * 20_000_000
    with (
        taking_at_most(1_000_000),
        pytest.raises(NotFoundError, match=r"there are served, stored$"),
    ):
        names.resolve(text)


def test_a_job_which_does_not_know_what_is_served_takes_any_name():
    names = ModelNames(lambda: {"stored"})
    assert (names.resolve("M-STORED"), names.resolve("new")) == ("stored", "new")


def test_the_database_is_not_asked_for_a_model_that_is_served():
    def stored() -> set[str]:
        raise AssertionError

    assert ModelNames(stored, lambda: {"a"}).resolve("m-a") == "a"


@pytest.fixture
def store_of_two(store: StoreHarness) -> StoreHarness:
    for number, name in enumerate(("bar", "bar", "m-bar"), 1):
        store.commit(make_record(number, model=ModelReference(name, "1", "ab" * 32)))
    return store


def test_a_filter_means_the_same_model_as_a_path(store_of_two: StoreHarness):
    def count(name: str) -> int:
        return len(store_of_two.page_ids(where={"model": name}))

    names = ("bar", "BAR", "bar:1", "m-bar", "M-BAR", "m-bar:1", "m-bar:2", "m-m-bar")
    assert [count(name) for name in names] == [2, 2, 2, 1, 1, 1, 0, 1]


def test_a_filter_by_an_unknown_model_is_refused_where_names_are_known(
    store_of_two: StoreHarness, tmp_path: Path
):
    reader = InferenceReader(
        store_of_two.url, tmp_path / "journal", store_of_two.blobs, served=lambda: {"served"}
    )
    for where in (
        {"model": "baz"},
        {"or": [{"action": "x"}, {"not": {"model": {"in": ["bar", "baz"]}}}]},
        "model=baz",
    ):
        with pytest.raises(NotFoundError, match="'baz'; did you mean bar"):
            reader.query(QueryRequest(where=where))
        with pytest.raises(NotFoundError):
            reader.count(QueryRequest(where=where))
        with pytest.raises(NotFoundError):
            list(reader.matching_ids(where))
    known = {"model": {"in": ["bar:1", "served", "M-Served"]}}
    assert len(reader.query(QueryRequest(where=known)).inferences) == 2
    reader.close()


def test_files_of_an_alias_get_the_name_of_the_model(tmp_path: Path):
    for name in (
        "m-bar.schedule.json",
        "bar.jsonl",
        "m-bar.jsonl",
        "m-free.watch.json",
        "m-x.json",
    ):
        (tmp_path / name).write_text(name)
    (tmp_path / "M-Folder").mkdir()
    (tmp_path / "M-Folder" / "default.json").write_text("{}")
    for _ in range(2):
        rename_aliases(tmp_path, {"bar", "free", "folder", "m-x", "x"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bar.jsonl", "bar.schedule.json", "folder", "free.watch.json", "m-bar.jsonl", "m-x.json",
    ]  # fmt: skip
    assert (tmp_path / "folder" / "default.json").exists()
    assert (tmp_path / "bar.jsonl").read_text() == "bar.jsonl"
    rename_aliases(tmp_path / "none", {"bar"})
