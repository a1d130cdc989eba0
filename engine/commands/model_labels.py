"""The labels of the model whose inferences are exported, in its order, read from its files without loading it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from quadriga.engine.models.model import model_folder
from quadriga.engine.models.model_archives import archive_name
from quadriga.engine.models.model_folders import find_models
from quadriga.engine.models.onnx_file import LoadError, read_onnx
from quadriga.engine.models.recognition.evidence import Evidence, read_json
from quadriga.engine.models.recognition.labels import find_labels
from quadriga.engine.models.recognition.model_toml import read_model_toml
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import NotReadyError, QueryTimeoutError


def labels_of_one_model(inferences: InferenceReader, where: Any, models: str) -> list[str]:
    """Return the labels of the model that all matching inferences are of; empty if there is no such model in `models`.

    Of several versions it is the one of the newest inference.
    """
    with suppress(LoadError, OSError, NotReadyError, QueryTimeoutError):
        # The server reports folders that are no models.
        served = {} if "://" in models else find_models(Path(models), lambda *_: None)
        newest = inferences.query(QueryRequest(where=where, limit=1)).inferences
        if not served or not newest:
            return []
        name, version = newest[0].model.name, newest[0].model.version
        if any(_matches(inferences, where, other) for other in inferences.stored_names() - {name}):
            return []
        path = served.get(name, {}).get(version)
        if path is not None and path.is_file() and archive_name(path) is None:
            return _labels_of_file(path)
    return []


def _matches(inferences: InferenceReader, where: Any, model: str) -> bool:
    """Check whether inferences of a model match, or may match, as the search stopped early."""
    of_model = {"model": {"eq": model}}
    page = inferences.query(
        QueryRequest(where={"and": [where, of_model]} if where else of_model, limit=1)
    )
    return bool(page.inferences) or page.partial


def _labels_of_file(path: Path) -> list[str]:
    folder = model_folder(path)
    evidence = Evidence(
        inputs=(),
        outputs=(),
        metadata=read_onnx(path)[0].metadata,
        config=read_json(folder / "config.json"),
        written=read_model_toml(folder),
        folder=folder,
    )
    return list((find_labels(evidence) or [()])[0])
