"""Records to store, made as the pipeline makes them."""

from collections.abc import Callable
from typing import Any

import pytest

from store.records import InferenceRecord, InputReference, ModelReference

Record = Callable[..., InferenceRecord]


def make_record(seq: int = 1, **fields: Any) -> InferenceRecord:
    values: dict[str, Any] = {
        "request_id": f"request-{seq}",
        "image_no": 0,
        "model": ModelReference("shapes-detector", "1", "ab" * 32),
        "task": "OBJECT_DETECTION",
        "action": "predict",
        "latency_ms": 4.2,
        "input": InputReference("image", "blake3:" + "0" * 64, 640, 480, "image/jpeg"),
        "predictions": [{"label": "circle", "score": 0.98, "xmin": 1}],
        "metadata": {},
    }
    return InferenceRecord(seq=seq, **(values | fields))


@pytest.fixture(scope="session")
def record() -> Record:
    return make_record
