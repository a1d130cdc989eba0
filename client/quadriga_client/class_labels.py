"""The labels of models in their order, as the server has them: numbers and colours of classes follow it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .errors import BadAnswer, InputError

ClassIds = Mapping[str, int] | Sequence[str]
"""Numbers of labels, or the labels in the order of their numbers."""

LabelsOf = Callable[[], Sequence[str]]
"""Returns the labels of a model in their order; none if the server does not know all of them."""


class ClassLabels:
    """The labels of models by name; each model is asked for once, so that all of its results agree.

    Args:
        read_model: Reads a model as `client.models.get` returns it.
    """

    def __init__(self, read_model: Callable[[str], Any]) -> None:
        self._read_model = read_model
        self._labels: dict[str, tuple[str, ...]] = {}
        self._lock = threading.Lock()

    def of(self, model: str) -> Sequence[str]:
        """Return the labels of a model in their order; none if the server does not list all of them.

        Raises:
            ClientError: The server does not answer, or not to this key.
        """
        with self._lock:
            if model not in self._labels:
                entry = self._read_model(model)
                if not isinstance(entry, Mapping):
                    raise BadAnswer(f"expected a model from the server, got {str(entry)[:200]}")
                labels = tuple(map(str, entry.get("labels") or ()))
                is_complete = entry.get("label_count", len(labels)) == len(labels)
                self._labels[model] = labels if is_complete else ()
            return self._labels[model]


def number_labels(
    labels: Sequence[str], class_ids: ClassIds | None, labels_of: LabelsOf | None, first: int
) -> list[int]:
    """Return the number of each label, the same for a label in every image.

    Args:
        labels: Labels of the predictions of an image.
        class_ids: What the caller says; None for the order of the model's labels.
        labels_of: Returns the model's labels; None if there is no server to ask.
        first: Number of the first label.

    Raises:
        InputError: A label has no number, or the order of the labels is not known.
        ClientError: The server cannot be asked for the labels.
    """
    if not labels:
        return []
    if class_ids is None:
        known = labels_of() if labels_of is not None else ()
        if not known:
            raise InputError(
                "expected the numbers of the labels, as the server does not tell the model's labels: "
                'give them, such as ["first class", "second class"]'
            )
        class_ids = known
    if isinstance(class_ids, Mapping):
        numbers: Mapping[str, int] = class_ids
    elif isinstance(class_ids, str) or not isinstance(class_ids, Sequence):
        raise InputError(
            f"expected numbers by label or a list of labels, got {type(class_ids).__name__}"
        )
    else:
        numbers = {label: number for number, label in reversed([*enumerate(class_ids, first)])}
    missing = [label for label in labels if label not in numbers]
    if missing:
        raise InputError(
            f"expected a number for the label {missing[0]!r}, got those of {', '.join(map(str, numbers))!r:.200}"
        )
    return [numbers[label] for label in labels]
