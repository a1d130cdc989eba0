"""Evaluation of stored inferences, on both databases."""

import re

import msgspec
import pytest

from quadriga.monitor.evaluation import stored
from quadriga.monitor.evaluation.evaluators import EVALUATORS
from quadriga.monitor.evaluation.parameters import EvaluationParameters
from quadriga.monitor.evaluation.state import EvaluationError
from quadriga.monitor.evaluation.stored import evaluate_stored
from quadriga.store.records.records import (
    Deletion,
    InputReference,
    ModelReference,
    TruthStatement,
)
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.monitor.evaluation.evaluation_images import stable_report
from tests.unit.store.conftest import make_record

MODEL = ModelReference("one", "1", "aa" * 32)
OTHER = ModelReference("other", "1", "bb" * 32)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Evaluate by the labels alone, three images a shard."""
    small = "tests.unit.monitor.evaluation.label_evaluator:LabelEvaluator"
    monkeypatch.setitem(EVALUATORS, "OBJECT_DETECTION", small)
    monkeypatch.setitem(EVALUATORS, "IMAGE_CLASSIFICATION", small)
    monkeypatch.setattr(stored, "SHARD_SIZE", 3)


@pytest.fixture
def answer():
    """Make what a model answered to an image, at a second."""

    def make(second, found="a", image=None, **fields):
        image = second if image is None else image
        digest = None if image == "" else f"blake3:{image:064x}"
        values = {
            "model": MODEL,
            "predictions": [{"label": label, "score": 0.5} for label in found],
            "input": InputReference("image", digest, 640, height=480, mime="image/jpeg"),
        }
        return make_record(id_at_second(second), **values | fields)

    return make


def truth(second, there="a", review=""):
    labels = None if there is None else [{"label": label} for label in there]
    return TruthStatement(
        "id", str(id_at_second(second)), labels, task="", review=review
    )  # whatever the evaluator


def image_truth(image, there="a"):
    labels = [{"label": label} for label in there]
    return TruthStatement("input.hash", f"blake3:{image:064x}", labels, task="")


def evaluated(store, *, tell=lambda *_: None, shards=None, **parameters):
    evaluation_parameters = msgspec.convert(
        {"model": "one", "resamples": 10, **parameters}, EvaluationParameters
    )
    return evaluate_stored(store.inferences, evaluation_parameters, tell, shards)


def accuracy(report):
    return report.metrics[0].value, report.data.current.n, report.data.excluded


def test_truth_counts_whenever_it_arrived(store, answer):
    store.commit_changes(image_truth(1))
    store.commit(answer(1), answer(2, "b"), answer(3), answer(4))
    assert accuracy(evaluated(store)) == (1, 1, {"no_truth": 3, "unseen_label": 0})
    store.commit_changes(truth(2), truth(3))
    assert accuracy(evaluated(store)) == (2 / 3, 3, {"no_truth": 1, "unseen_label": 0})
    store.commit_changes(truth(2, "b"), truth(3, None))
    assert accuracy(evaluated(store)) == (1, 2, {"no_truth": 2, "unseen_label": 0})


def test_the_report_says_what_was_looked_at(store, answer):
    seconds = range(5, 12)
    store.commit(*(answer(second) for second in seconds))
    store.commit_changes(*(truth(second) for second in seconds))
    filter_text = "ts=ge:2025-01-01T00:00:06Z"
    report = evaluated(store, where=filter_text, version="1", by=["hour"])
    assert (report.task, report.kind) == ("OBJECT_DETECTION", "evaluation")
    assert msgspec.structs.astuple(report.model)[:3] == ("one", "1", "aa" * 32)
    window = report.data.current
    assert (window.start, window.end, window.n, window.filter) == (
        time_at_second(6),
        time_at_second(11),
        6,
        filter_text,
    )
    assert report.parameters == {
        "rule": "small",
        "resamples": 10,
        "seed": 0,
        "version": "1",
        "by": ["hour"],
    }
    assert report.provenance["shards"] == 2


def test_failed_requests_and_those_without_a_truth_are_left_out_and_counted(store, answer):
    store.commit(
        answer(1), answer(2), answer(3, "b"), answer(4, status=500, predictions=[]), answer(5)
    )
    store.commit_changes(truth(1), truth(3), truth(4))
    report = evaluated(store)
    assert accuracy(report) == (0.5, 2, {"failed": 1, "no_truth": 2, "unseen_label": 0})


def test_a_rejected_truth_is_left_out_and_counted(store, answer):
    store.commit(
        *(answer(second, "b", image=second % 4) for second in range(1, 5)),
        *(answer(second, "b", image=second % 4, model=OTHER) for second in range(5, 9)),
    )
    reviews = ("", "needs_review", "approved", "rejected")
    store.commit_changes(
        *(truth(second, review=review) for second, review in enumerate(reviews, 1))
    )
    report = evaluated(store, compare=[{"model": "other"}])
    assert accuracy(report) == (0, 3, {"truth_rejected": 1, "unseen_label": 0})
    assert report.comparisons[0].n == 3
    approved = evaluated(store, where="ground_truth.review=approved")
    assert accuracy(approved) == (0, 1, {"unseen_label": 0})
    store.commit_changes(truth(4))
    assert accuracy(evaluated(store)) == (0, 4, {"unseen_label": 0})


WHERE = [
    (None, 4),
    ({}, 4),
    ("", 4),
    ({"meta.camera": "north"}, 2),
    ("meta.camera=north | label=b", 3),
    ({"label": {"name": "b", "score": {"ge": 0.5}}}, 1),
    ({"box": {"area": {"ge": 100}}}, 1),
    ({"geo": {"near": [10, 20], "within": "5km"}}, 1),
    ({"ts": {"lt": time_at_second(3)}}, 2),
    ({"version": "2"}, 1),
]


def test_a_filter_chooses_what_counts(store, answer):
    large = [{"label": "a", "score": 1, "xmin": 0, "ymin": 0, "xmax": 10, "ymax": 10}]
    store.commit(
        answer(1, metadata={"camera": "north"}, predictions=large),
        answer(2, metadata={"camera": "north", "latitude": 10, "longitude": 20}),
        answer(3, "b"),
        answer(4, model=ModelReference("one", "2", "cc" * 32)),
        answer(5, model=OTHER),
    )
    store.commit_changes(*(truth(second) for second in range(1, 6)))
    for filter_, n in WHERE:
        window = evaluated(store, where=filter_).data.current
        assert (window.n, window.filter) == (n, filter_)


def test_versions_are_evaluated_together_unless_one_is_asked_for(store, answer):
    second = ModelReference("one", "2", "cc" * 32)
    store.commit(answer(1), answer(2, "b", model=second))
    store.commit_changes(truth(1), truth(2))
    both, single = evaluated(store), evaluated(store, version="2")
    assert (both.model.version, both.model.sha256, both.metrics[0].value) == ("1, 2", "", 0.5)
    assert (single.model.version, single.model.sha256, single.metrics[0].value) == (
        "2",
        "cc" * 32,
        0,
    )


def test_slices_are_keys_and_filters(store, answer):
    cameras = ["north", "north", "south", None, "south", "north", "south"]
    store.commit(
        *(
            answer(at, "ab"[at % 2], metadata={} if camera is None else {"camera": {"id": camera}})
            for at, camera in enumerate(cameras, 1)
        )
    )
    store.commit_changes(*(truth(at) for at in range(1, 8) if at != 3))
    report = evaluated(
        store,
        by=["meta.camera.id", "day"],
        slices={"right": "label=a", "late": {"ts": {"ge": time_at_second(5)}}, "none": "label=c"},
    )
    values = {
        (slice_.by, slice_.value): (slice_.n, slice_.metrics[0].value) for slice_ in report.slices
    }
    assert values == {
        ("meta.camera.id", "north"): (3, 2 / 3),
        ("meta.camera.id", "south"): (2, 0),
        ("meta.camera.id", None): (1, 1),
        ("day", "2025-01-01"): (6, 0.5),
        ("right", "true"): (3, 1),
        ("right", "false"): (3, 0),
        ("late", "true"): (3, 1 / 3),
        ("late", "false"): (3, 2 / 3),
        ("none", "false"): (6, 0.5),
    }


def test_other_models_are_compared_on_the_same_images(store, answer):
    seconds = range(1, 8)
    store.commit(*(answer(second, "a" if second < 5 else "b") for second in seconds))
    store.commit(
        *(
            answer(100 + second, "b" if second < 2 else "a", second, model=OTHER)
            for second in seconds[:5]
        ),
        answer(90, "b", 2, model=OTHER),  # answered better since
        answer(91, "a", 50, model=OTHER),  # of an image that the first never saw
        answer(120, "a", 5, model=OTHER, status=500),
    )
    store.commit_changes(*(truth(second) for second in seconds if second != 3))
    store.commit_changes(image_truth(1, "b"), truth(1))  # the answer's own truth counts for both
    report = evaluated(store, compare=[{"model": "other"}])
    (comparison,) = report.comparisons
    assert msgspec.structs.astuple(comparison.model)[:3] == ("other", "1", "bb" * 32)
    # Images 1, 2, 4, 5: the first is right thrice, the other thrice.
    assert comparison.n == 4
    assert comparison.metrics[0].value == 3 / 4
    assert comparison.differences[0].value == 0
    assert comparison.excluded == {"not_answered": 2, "duplicate": 1, "failed": 1}
    assert accuracy(report)[:2] == (3 / 6, 6)
    assert report.parameters["compare"] == [{"model": "other", "version": None, "where": None}]


def test_a_model_compared_with_itself_does_not_differ(store, answer):
    store.commit(*(answer(second, "ab"[second % 2]) for second in range(1, 8)), answer(9, "a", 1))
    store.commit_changes(*(truth(second) for second in range(1, 10)))
    report = evaluated(store, compare=[{"model": "one"}])
    (comparison,) = report.comparisons
    assert (comparison.n, comparison.excluded) == (7, {"duplicate": 2})
    assert {(metric.value, metric.ci95) for metric in comparison.differences} == {(0, None)}


def test_versions_and_filters_choose_what_is_compared(store, answer):
    second = ModelReference("one", "2", "cc" * 32)
    store.commit(
        answer(1),
        answer(2),
        answer(11, "a", 1, model=second),
        answer(12, "b", 2, model=second, metadata={"trial": True}),
        answer(13, "a", 2, model=second),
    )
    store.commit_changes(truth(1), truth(2))
    report = evaluated(
        store,
        version="1",
        compare=[{"model": "one", "version": "2", "where": "meta.trial=true"}, {"model": "nobody"}],
    )
    trial, nobody = report.comparisons
    assert (trial.n, trial.metrics[0].value, trial.differences[0].value) == (1, 0, 1)
    assert (nobody.n, nobody.metrics[0].value, nobody.excluded) == (0, None, {"not_answered": 2})


def test_images_without_a_hash_count_and_are_not_compared(store, answer):
    store.commit(answer(1, image=""), answer(2, "b", image=""))
    store.commit_changes(truth(1), truth(2))
    report = evaluated(store, compare=[{"model": "one"}])
    assert accuracy(report)[:2] == (0.5, 2)
    assert (report.comparisons[0].n, report.comparisons[0].excluded) == (0, {"not_answered": 2})


def test_the_worst_images_come_with_what_is_drawn(store, answer):
    store.commit(answer(1), answer(2, "bb"))
    store.commit_changes(truth(1), truth(2, "ab"))
    (worst,) = evaluated(store).worst
    assert (worst.inference_id, worst.width, worst.height) == (str(2000 << 22), 640, 480)
    assert worst.image == f"blake3:{2:064x}"
    labels = [prediction["label"] for prediction in msgspec.json.decode(worst.predictions)]
    assert labels == ["b", "b"]
    assert msgspec.json.decode(worst.ground_truth) == [{"label": "a"}, {"label": "b"}]


def test_what_is_not_of_the_task_is_left_out_and_counted(store, answer):
    store.commit(*(answer(second) for second in (1, 2, 3, 4)))
    statement = TruthStatement("id", str(2000 << 22), [{"answer": "no label"}], task="")
    store.commit_changes(truth(1), statement, truth(4))
    report = evaluated(store)
    assert accuracy(report) == (1, 2, {"no_truth": 1, "unreadable": 1, "unseen_label": 0})
    assert report.parameters["unreadable"] == "expected a label, got none"
    with pytest.raises(EvaluationError, match="expected a label, got none"):
        evaluated(store, where={"id": {"eq": str(2000 << 22)}})


def test_nothing_with_a_truth_is_insufficient(store, answer):
    store.commit(answer(1))
    report = evaluated(store, by=["hour"], slices={"a": "label=a"}, compare=[{"model": "other"}])
    assert (report.status, report.data.excluded["no_truth"]) == ("insufficient", 1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model": "nobody"}, "no inferences of 'nobody' match the filter"),
        ({"version": "7"}, "no inferences of 'one', version '7', match"),
        ({"where": "label=z"}, "no inferences of 'one' match the filter"),
        ({"model": "mixed"}, "expected inferences of one task, got OBJECT_DETECTION and IMAGE_C"),
        ({"model": "tensors"}, "expected one of IMAGE_CLASSIFICATION, .* as task, got 'TENSOR'"),
        ({"compare": [{"model": "sorter"}]}, "expected inferences of one task, got OBJECT_DETEC"),
    ],
)
def test_what_cannot_be_evaluated_is_said(store, answer, parameters, message):
    mixed, tensors, sorter = (
        ModelReference(name, "1", "dd" * 32) for name in ("mixed", "tensors", "sorter")
    )
    store.commit(
        answer(1),
        answer(2, model=mixed),
        answer(3, model=mixed, task="IMAGE_CLASSIFICATION"),
        answer(4, model=tensors, task="TENSOR"),
        answer(5, image=1, model=sorter, task="IMAGE_CLASSIFICATION"),
    )
    store.commit_changes(truth(1))
    with pytest.raises(EvaluationError, match=message):
        evaluated(store, **parameters)
    filter_text = '{"task": "IMAGE_CLASSIFICATION"}'
    store.commit_changes(truth(3, "b"))
    assert (
        evaluated(store, model="mixed", where=msgspec.json.decode(filter_text)).metrics[0].value
        == 0
    )


class Stop(Exception):
    """Ends an evaluation."""


EVERYTHING = {
    "by": ["hour"],
    "slices": {"right": "label=a"},
    "compare": [{"model": "other"}, {"model": "one"}],
}


@pytest.fixture
def full(store, answer):
    seconds = range(1, 21)
    store.commit(*(answer(second, "ab"[second % 3 == 0]) for second in seconds))
    store.commit(
        *(answer(100 + second, "ab"[second % 4 == 0], second, model=OTHER) for second in seconds)
    )
    store.commit_changes(*(truth(second) for second in seconds if second != 7))
    return store


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("step", range(1, 24, 3))
def test_one_that_was_ended_goes_on_where_it_was(full, tmp_path, step, monkeypatch):
    uninterrupted = evaluated(full, **EVERYTHING)
    shards = tmp_path / "shards"
    steps = []

    def tell(done, total):
        steps.append((done, total))
        if len(steps) == step:
            raise Stop

    with pytest.raises(Stop):
        evaluated(full, tell=tell, shards=shards, **EVERYTHING)
    read = []
    again = stored.read_shard
    monkeypatch.setattr(
        stored, "read_shard", lambda *arguments: read.append(1) or again(*arguments)
    )
    full.commit_changes(truth(7))
    went_on = evaluated(full, shards=shards, **EVERYTHING)
    if step < 4:  # the shard of second 7 was not read yet
        assert went_on.data.excluded == {"unseen_label": 0}
    else:
        assert stable_report(went_on) == stable_report(uninterrupted)
    assert len(read) == max(8 - step, 0)


def test_progress_reaches_its_end(full):
    steps = []
    evaluated(full, tell=lambda *step: steps.append(step), **EVERYTHING)
    assert steps[0] == (0, None)
    done = [done_count for done_count, _ in steps]
    assert done == sorted(done)
    assert {total for _, total in steps[1:]} == {60}
    assert steps[-1] == (60, 60)


def test_a_file_that_was_cut_is_made_again(full, tmp_path):
    shards = tmp_path / "shards"
    complete = evaluated(full, shards=shards)
    for path in shards.iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert stable_report(evaluated(full, shards=shards)) == stable_report(complete)


def test_what_comes_or_goes_meanwhile_changes_no_choice(full, answer, tmp_path):
    shards = tmp_path / "shards"

    def tell(done, _):
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        evaluated(full, tell=tell, shards=shards)
    full.commit(answer(30, "b"))
    full.commit_changes(truth(30), Deletion([20_000 << 22]))
    report = evaluated(full, shards=shards)
    assert accuracy(report) == (12 / 18, 18, {"deleted": 1, "no_truth": 1, "unseen_label": 0})


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_shards_of_any_size_give_the_same_report(full, monkeypatch):
    reports = []
    for size in (1, 3, 1000):
        monkeypatch.setattr(stored, "SHARD_SIZE", size)
        reports.append(stable_report(evaluated(full, **EVERYTHING)))
    assert reports[0] == reports[1] == reports[2]


def test_truth_of_another_task_or_model_is_counted_and_said(store, answer, tmp_path):
    store.commit(*(answer(second) for second in range(1, 8)))
    contour = [{"label": "a", "contour": [[{"x": 1, "y": 1}]]}]
    store.commit_changes(
        image_truth(1),
        *(
            TruthStatement("input.hash", f"blake3:{image:064x}", contour, task="IMAGE_SEGMENTATION")
            for image in (1, 2, 3, 4)
        ),
        TruthStatement("input.hash", f"blake3:{5:064x}", [], task="", model="other"),
    )
    warnings = [
        "3 of 7 images have only ground truth of another task (IMAGE_SEGMENTATION): not evaluated",
        "1 of 7 images has only ground truth of another model (other): not evaluated",
        "not evaluated: 2 images whose truth is not known",
    ]
    for _ in range(2):  # the second time from the saved shards
        report = evaluated(store, shards=tmp_path / "shards")
        assert report.warnings == warnings
        assert accuracy(report) == (
            1,
            1,
            {"no_truth": 2, "truth_of_other_model": 1, "truth_of_other_task": 3, "unseen_label": 0},
        )
    store.commit_changes(*(truth(second) for second in range(1, 8)))
    report = evaluated(store)
    assert (report.warnings, accuracy(report)) == ([], (1, 7, {"unseen_label": 0}))


@pytest.mark.parametrize(
    ("models", "warnings"),
    [
        ([("1", "aa")] * 3, []),
        (
            [("1", "aa"), ("2", "bb"), ("2", "bb")],
            ["2 versions are counted together: version 1 (1 image), version 2 (2 images)"],
        ),
        (
            [("1", "aa"), ("1", "bb"), ("1", "bb")],
            ["2 files of version 1 are counted together: aaaaaaaaaaaa (1 image), bbbbbbbbbbbb (2 images)"],
        ),
        (
            [("1", "aa"), ("1", "bb"), ("2", "cc")],
            ["2 versions are counted together", "2 files of version 1 are counted together"],
        ),
    ],
)  # fmt: skip
def test_versions_and_files_that_are_counted_together_are_named(
    store, answer, models, warnings
) -> None:
    references = [ModelReference("one", version, digest * 32) for version, digest in models]
    store.commit(*(answer(at, model=model) for at, model in enumerate(references, 1)))
    store.commit(answer(9, model=ModelReference("one", "9", "ee" * 32)))  # without ground truth
    store.commit_changes(*(truth(at) for at in range(1, 4)))
    report = evaluated(store)
    warnings = [*warnings, "not evaluated: 1 images whose truth is not known"]
    assert len(report.warnings) == len(warnings)
    for text, expected in zip(report.warnings, warnings, strict=True):
        assert text.startswith(expected)
    assert report.model.is_pooled is (len(warnings) > 1)


def test_the_digits_of_the_warning_tell_the_files_of_a_version_apart(store, answer) -> None:
    files = [ModelReference("one", "1", digest * 32) for digest in ("aa", "bb", "bb")]
    store.commit(*(answer(at, model=model) for at, model in enumerate(files, 1)))
    store.commit_changes(*(truth(at) for at in range(1, 4)))
    (warning,) = evaluated(store).warnings
    assert warning.endswith("the filter model.sha256 tells them apart")
    for digest, images in re.findall(r"(\w{12}) \((\d) images?\)", warning):
        report = evaluated(store, where=f"model.sha256={digest}")
        assert (report.warnings, report.data.current.n) == ([], int(images))
        assert report.model.sha256.startswith(digest)


def test_images_with_several_labels_are_left_out_of_a_single_label_evaluation(
    store, answer, monkeypatch
) -> None:
    evaluator = "quadriga.monitor.evaluation.labels.classification:ClassificationEvaluator"
    monkeypatch.setitem(EVALUATORS, "IMAGE_CLASSIFICATION", evaluator)
    store.commit(*(answer(at, "ab"[at % 2], task="IMAGE_CLASSIFICATION") for at in range(1, 8)))
    store.commit_changes(*(truth(at, "ab" if at == 2 else "a") for at in range(1, 8)))
    odd = f"1 of 7 images with several labels ({id_at_second(2)})"
    judged = f"judged as multi-label: {odd}; the setting single_label leaves them out"
    assert judged in evaluated(store).warnings
    cells = []
    parameters = EvaluationParameters("one", resamples=10, single_label=True)
    report = evaluate_stored(store.inferences, parameters, on_cells=cells.extend)
    assert accuracy(report) == (2 / 6, 6, {"several_labels": 1})
    assert f"left out by single_label: {odd}" in report.warnings
    right = {str(id_at_second(at)) for at in (4, 6)}
    assert {str(id_) for cell in cells if cell.truth == cell.predicted for id_ in cell.ids} == right
