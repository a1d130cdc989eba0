"""MLmodel, the file that MLflow writes beside a model: which graph it is, and the names of its columns.

Only its text is read. What it names otherwise, such as modules to load and pickled objects, is not touched.

Source: MLflow 3.17, "MLflow Model Format"; the flavour onnx.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

import yaml

MLMODEL = "MLmodel"
"""Name of the file."""

_MAX_BYTES = 128 << 10
_GRAPH = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,128}\.onnx")
_log = logging.getLogger("quadriga.models")


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """A loader of plain values, without merged mappings: a small file of these would take all memory."""

    def flatten_mapping(self, node: Any) -> None:
        """Merge nothing; `<<` then is an error."""


def mlflow_graph(folder: Path) -> Path | None:
    """Return the graph of an MLflow model of the flavour onnx; None if it is no such folder."""
    flavors = _read(folder).get("flavors")
    onnx = flavors.get("onnx") if isinstance(flavors, dict) else None
    name = onnx.get("data", "model.onnx") if isinstance(onnx, dict) else None
    if not isinstance(name, str) or not _GRAPH.fullmatch(name):
        return None
    return folder / name if (folder / name).is_file() else None


def mlflow_problem(folder: Path) -> str | None:
    """Return why the model of a folder with MLmodel is not served; None if it has no such file."""
    if not (folder / MLMODEL).is_file():
        return None
    flavors = _read(folder).get("flavors")
    names = ", ".join(sorted(map(str, flavors))) if isinstance(flavors, dict) else ""
    return (
        f"expected the flavour onnx with its graph beside MLmodel, got {names or 'no flavours'}: "
        "convert the model to ONNX and log it with mlflow.onnx.log_model"
    )


def mlflow_columns(folder: Path) -> tuple[str, ...]:
    """Return the names of the columns that the model was trained with; empty if its signature has none."""
    signature = _read(folder).get("signature")
    text = signature.get("inputs") if isinstance(signature, dict) else None
    try:
        columns = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return ()
    columns = columns if isinstance(columns, list) else [None]
    are_named = (
        isinstance(c, dict) and c.get("type") != "tensor" and c.get("name") for c in columns
    )
    return tuple(str(column["name"]) for column in columns) if all(are_named) else ()


def _read(folder: Path) -> dict[str, Any]:
    """Return what MLmodel says; empty if it is not there, or is damaged, which the log says."""
    path = folder / MLMODEL
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError(f"more than {_MAX_BYTES} bytes")
        payload = yaml.load(content, _Loader)  # noqa: S506 - it is a SafeLoader
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        _log.warning(
            "%s in %s is not read: %s", MLMODEL, folder.name, str(error).partition("\n")[0]
        )
        return {}
    return payload if isinstance(payload, dict) else {}
