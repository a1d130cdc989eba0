"""Class numbers of a network become places in the list of labels: the one place that counts from 1."""

import msgspec
import numpy as np

from tasks.decoders import Found, take
from tasks.predictions import OutputError
from tasks.specification import ModelSpec


def labelled(found: Found, spec: ModelSpec) -> Found:
    """Number classes from the first label.

    What lies before the first label is background, or fills up the output of a fixed size; it is dropped.

    Args:
        found: With classes as the network counts them.
        spec: Its `output.label_offset` is the number of the first label; its `output.background` the
            class that is dropped, too.

    Returns:
        With class 0 for `spec.labels[0]`.

    Raises:
        OutputError: A class has no label.
    """
    offset, count = spec.output.label_offset, len(spec.labels)
    class_ids = found.class_ids - offset
    if spec.output.background is not None:
        kept = class_ids != spec.output.background
        found, class_ids = take(found, kept), class_ids[kept]
    highest = int(np.max(class_ids, initial=-1))
    if highest >= count:
        counted = f" counted from {offset}" if offset else ""
        raise OutputError(
            f"expected a label for each class, got class {highest + offset} and {count} labels{counted}"
        )
    numbered = msgspec.structs.replace(found, class_ids=class_ids)
    return numbered if (class_ids >= 0).all() else take(numbered, class_ids >= 0)
