"""How a dataset is written: whose annotations, splits, and links to images that are not in it."""

from collections.abc import Mapping, Sequence

import msgspec

from quadriga.store.exchange.annotated_records import Annotated
from quadriga.store.exchange.archives import image_name
from quadriga.store.exchange.splits import Splits
from quadriga.store.records.errors import QueryError
from quadriga.store.records.records import StoredInference

_LINK_FIELDS = ("{id}", "{file}", "{hash}", "{blob}")


class DatasetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a dataset is written."""

    annotated: Annotated = "either"
    splits: Splits = msgspec.field(default_factory=lambda: Splits({}))
    image_url: str = ""
    """Form of links to images, with `{id}`, `{file}`, `{hash}` and `{blob}`; empty for none."""
    upright: bool = False
    """Whether images that are turned by their EXIF orientation are written upright, compressed anew."""
    labels: tuple[str, ...] = ()
    """Labels in the order of their numbers in YOLO and COCO; others follow in the order in which they appear."""


def label_numbers(labels: Sequence[str], first: int) -> dict[str, int]:
    """Return the number of each label, in their order.

    The second of two equal labels is named `class_<number>`, so that all behind it keep their numbers; with `_` behind it
    where another label has that name.
    """
    given = set(labels)
    numbers: dict[str, int] = {}
    for number, label in enumerate(labels):
        name = label
        if name in numbers:
            name = f"class_{number}"
            while name in given:
                name += "_"
        numbers[name] = first + number
    return numbers


def check_link(template: str) -> None:
    """Check the form of links.

    Raises:
        QueryError: It has other braces than those of fields.
    """
    rest = template
    for field in _LINK_FIELDS:
        rest = rest.replace(field, "")
    if "{" in rest or "}" in rest:
        raise QueryError(
            f"expected image_url with {', '.join(_LINK_FIELDS)} and no other braces, got {template[:200]!r}"
        )


def link_of(record: StoredInference, template: str) -> str:
    """Return the link to an image; empty without a form."""
    digest = (record.input.hash or "").rpartition(":")[2]
    values: Mapping[str, str] = {
        "{id}": record.id,
        "{file}": image_name(record),
        "{hash}": record.input.hash or "",
        "{blob}": f"{digest[:2]}/{digest}",
    }
    link = template
    for field, value in values.items():
        link = link.replace(field, value)
    return link
