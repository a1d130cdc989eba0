"""The filters of a drift report on a real comparison: they find exactly the stored images that moved, on both databases."""

from typing import NamedTuple

import numpy as np
import pytest

from quadriga.engine.console.filter_line import window_filter
from quadriga.engine.console.pages.drift_report import images_behind
from quadriga.monitor.drift.parameters import DriftParameters, StoredWindow
from quadriga.monitor.drift.stored import compare_stored
from quadriga.monitor.report.schema import Report
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.records import (
    IMAGE_STATISTICS,
    ImageSignals,
    InputReference,
    ModelReference,
    SignalsOfImages,
)
from tests.unit.monitor.drift.window_reports import id_at_second, time_at_second
from tests.unit.store.conftest import make_record
from tests.unit.store_harness import StoreHarness

MODEL = ModelReference("one & two", "1", "aa" * 32)
MIDDLE = 1000
"""Second in which the window begins."""
IMAGES = 150
BRIGHTNESS = IMAGE_STATISTICS.index("brightness")


class Compared(NamedTuple):
    """A report, and what is stored."""

    report: Report
    store: StoreHarness
    brightness: dict[str, float]
    """Brightness of each image, by its id."""

    def find(self, line: str) -> set[str]:
        """Return the ids of what a filter finds."""
        request = QueryRequest(where=line, limit=1000)
        return {found.id for found in self.store.inferences.query(request).inferences}

    def behind(self, name: str) -> list[set[str]]:
        """Return what the filters of a signal find."""
        (signal,) = [signal for signal in self.report.signals if signal.name == name]
        assert signal.alarm, name
        return [self.find(images.line) for images in images_behind(signal, self.report)]


def fill(store: StoreHarness, first: int, *, brightness: float, label: str, lane: str, has_classes: bool = False) -> dict[str, float]:  # fmt: skip
    """Store images of some seconds, every fifth as usual; return their brightness by id.

    A classifier answers each with the scores of all labels.
    """
    draw = np.random.default_rng(first)
    values, records, measured = {}, [], []
    for number in range(IMAGES):
        second, is_usual = first + number, number % 5 == 0
        id_ = id_at_second(second)
        image = InputReference("image", f"blake3:{second:064x}", 640, 480, "image/jpeg", bytes=9000)
        found = {"label": "ship" if is_usual else label, "score": float(draw.uniform(0.4, 0.6))}
        box = {"xmin": 10, "ymin": 10, "xmax": 60, "ymax": 60}
        predictions = [found | box]
        if has_classes:
            others = {"ship", label, "plane: 2"} - {found["label"]}
            predictions = [found, *({"label": other, "score": 0.2} for other in others)]
        metadata = {"lane": "a" if is_usual else lane, "is_night": not is_usual and lane != "a"}
        records.append(
            make_record(
                id_,
                model=MODEL,
                task="IMAGE_CLASSIFICATION" if has_classes else "OBJECT_DETECTION",
                predictions=predictions,
                input=image,
                metadata=metadata,
            )
        )
        statistics = draw.normal(size=len(IMAGE_STATISTICS))
        statistics[BRIGHTNESS] = draw.normal(50 if is_usual else brightness, 3)
        statistics = statistics.astype("<f4")
        values[str(id_)] = float(statistics[BRIGHTNESS])
        measured.append(ImageSignals(id_, statistics.tobytes(), b"", ""))
    store.commit(*records)
    store.commit_changes(SignalsOfImages(measured))
    return values


@pytest.fixture
def compared(store: StoreHarness, request: pytest.FixtureRequest) -> Compared:
    has_classes = getattr(request, "param", False)
    brightness = fill(store, 1, brightness=50, label="ship", lane="a", has_classes=has_classes)
    brightness |= fill(store, MIDDLE, brightness=20, label="plane: 2", lane='"b"', has_classes=has_classes)  # fmt: skip
    parameters = DriftParameters(
        MODEL.name, start=time_at_second(MIDDLE), baseline=StoredWindow(end=time_at_second(MIDDLE))
    )
    return Compared(compare_stored(store.inferences, parameters), store, brightness)


def ids(start: int, *, usual: bool) -> set[str]:
    return {str(id_at_second(start + n)) for n in range(IMAGES) if (n % 5 == 0) == usual}


def test_the_windows_find_their_images(compared):
    data, model = compared.report.data, compared.report.model
    for window, start in ((data.current, MIDDLE), (data.baseline, 1)):
        every = ids(start, usual=True) | ids(start, usual=False)
        assert compared.find(window_filter(model, window).line) == every


def test_the_dark_end_is_all_that_is_darker_than_the_baseline_was(compared):
    (signal,) = [s for s in compared.report.signals if s.name == "image.brightness"]
    assert signal.before is not None
    window = ids(MIDDLE, usual=True) | ids(MIDDLE, usual=False)
    darker = {id_ for id_ in window if compared.brightness[id_] < signal.before.low}
    assert compared.behind("image.brightness") == [darker]
    assert ids(MIDDLE, usual=False) <= darker < window


@pytest.mark.parametrize("compared", [False, True], indirect=True, ids=["boxes", "classes"])
def test_labels_and_metadata_find_what_came_and_what_went(compared):
    changed, before = ids(MIDDLE, usual=False), ids(1, usual=True) | ids(1, usual=False)
    for name in ("label", "meta.lane", "meta.is_night"):
        assert compared.behind(name) == [changed, before], name
