"""What the database knows by name: metadata keys, labels and models, as ids of its index tables."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from store.database import run
from store.query.syntax import Compare, Filter, Place, Predicted, Range, leaves
from store.schema import MAX_KEYS, KeyType

TASKS = {
    "IMAGE_CLASSIFICATION": "classification",
    "OBJECT_DETECTION": "detection",
    "ORIENTED_OBJECT_DETECTION": "oriented",
    "IMAGE_SEGMENTATION": "segmentation",
    "IMAGE_TEXT_TO_TEXT": "image-text",
}
"""Short names of tasks."""

_PLACE_EXISTS = (Compare("geo", "exists", True),)


class Model(NamedTuple):
    """A row of `model`."""

    id: int
    name: str
    version: str
    task: str


class Catalog:
    """Ids of what a filter names, as one snapshot of the database has them."""

    def __init__(self, connection: sa.Connection, tree: Filter) -> None:
        found = leaves(tree)
        compares = [leaf for leaf in found if isinstance(leaf, Compare)]
        paths = {
            leaf.field[5:]
            for leaf in found
            if isinstance(leaf, Compare | Range) and leaf.field.startswith("meta.")
        }
        if any(isinstance(leaf, Place) or leaf in _PLACE_EXISTS for leaf in found):
            paths.add("")  # of the cells
        names = {
            name for leaf in found if isinstance(leaf, Predicted) for name in leaf.labels or ()
        }
        keys = "SELECT path, type, id FROM meta_key WHERE path IN ({})"
        self.keys = {
            (path, KeyType(type_)): int(number)
            for path, type_, number in _named(connection, keys, paths)
        }
        unknown = paths - {path for path, _ in self.keys}
        counted = run(connection, "SELECT count(*) FROM meta_key") if unknown else None
        is_spent = counted is not None and counted.scalar_one() >= MAX_KEYS
        self.not_indexed = unknown if is_spent else set()
        """Paths that metadata may have though no index does."""
        labels = "SELECT name, id FROM label WHERE name IN ({})"
        self.labels = {name: int(number) for name, number in _named(connection, labels, names)}
        self.models: list[Model] = []
        if any(leaf.field in {"model", "version", "task"} for leaf in compares):
            rows: Iterable[Any] = run(connection, "SELECT id, name, version, task FROM model")
            self.models = [Model(*row) for row in rows]

    def model_ids(self, field: str, names: Collection[Any]) -> tuple[int, ...]:
        """Return the models that have one of these names, versions or tasks, in any case."""
        wanted = {str(name).lower() for name in names}
        return tuple(model.id for model in self.models if wanted & _aliases(field, model))


def _aliases(field: str, model: Model) -> set[str]:
    """Return what a model, or its task, may be called, in lower case."""
    if field == "model":
        name = model.name.lower()
        return {name, f"m-{name}", f"{name}:{model.version.lower()}"}
    if field == "version":
        return {model.version.lower()}
    return {model.task.lower(), TASKS.get(model.task, model.task.lower())}


def _named(connection: sa.Connection, statement: str, names: set[str]) -> list[Any]:
    if not names:
        return []
    return list(run(connection, statement.format(marks(names)), tuple(names)))


def marks(values: Collection[Any]) -> str:
    """Return a placeholder for each value."""
    return ", ".join("?" * len(values))
