"""The filter of the page of inferences, and the links that change it: chips, values and bins of facets, times."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from quadriga.engine.console.filter_line import (
    PRESENCE,
    FilterPart,
    as_part,
    choice_text,
    choices,
    comparison_text,
    field_and_rest,
    joined,
    parts,
    same_value,
)
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.filters.syntax import Scalar

ORDERS = ("-ts", "ts")
VIEWS = ("grid", "table", "objects")
INFERENCES_PATH = "/console/inferences"
QUEUE_ORDERS = ("score", "margin", "random")
_OPTIONS = ("order", "cursor", "view", "by", "target", "done", "after")
_MAX_DIGITS = 4
MAX_CHIPS = 50
"""Parts of a filter that are shown one by one: the link of each has all others, so the page grows with their square."""

Link = Callable[..., str]


class Chip(msgspec.Struct, frozen=True):
    """A part of the filter, with the link that removes it."""

    text: str
    field: str
    rest: str
    without: str


class QueuePlace(msgspec.Struct, frozen=True):
    """Place of somebody in the queue of what to label."""

    by: str = QUEUE_ORDERS[0]
    target: int = 0
    """Number of inferences to label; 0 without a target."""
    done: int = 0
    """Number of those that have been labelled."""
    after: str = ""
    """Id of the inference whose following one is looked for."""

    @property
    def is_reached(self) -> bool:
        """Whether there is a target, and it is reached."""
        return 0 < self.target <= self.done

    @property
    def options(self) -> dict[str, str]:
        """Parameters of a URL, without `after`."""
        return {
            "by": self.by,
            "target": str(self.target or ""),
            "done": str(self.done or ""),
        }


class InferenceFilter(msgspec.Struct, frozen=True):
    """What the URL of the page says."""

    line: str
    order: str = "-ts"
    cursor: str = ""
    view: str = ""
    """`grid`, `table` or `objects`; empty for what fits the page."""
    is_canonical: bool = True
    """Whether the URL says it in one filter `q`."""
    queue: QueuePlace | None = None
    """Place in the queue of what to label; None outside of it."""

    @property
    def parts(self) -> list[FilterPart]:
        """The comparisons that must all hold."""
        return parts(self.line)

    @property
    def options(self) -> dict[str, str]:
        """Parameters that stay when the filter changes."""
        options = {"order": "" if self.order == ORDERS[0] else self.order, "view": self.view}
        return {name: value for name, value in options.items() if value}


def filter_from_url(query: str) -> InferenceFilter:
    """Read the query of a URL; a parameter that is no option is a comparison, and several filters must all hold.

    Raises:
        QueryError: The query cannot be read.
    """
    texts, options = split_url(query, _OPTIONS)
    texts = [text for text in texts if text.strip()]
    line = texts[0] if len(texts) == 1 else joined(as_part(text) for text in texts)
    order, view = options.get("order", ""), options.get("view", "")
    return InferenceFilter(
        line=line.strip(),
        order=order if order in ORDERS else ORDERS[0],
        cursor=options.get("cursor", ""),
        view=view if view in VIEWS else "",
        is_canonical=len(texts) < 2 and not (texts and "q=" not in query),
        queue=_queue_place(options),
    )


def _queue_place(options: Mapping[str, str]) -> QueuePlace | None:
    """Return the place in a queue that the options of a URL say; None if they name no order of one."""
    by = options.get("by", "")
    if by not in QUEUE_ORDERS:
        return None
    target, done = (_number(options.get(name, "")) for name in ("target", "done"))
    return QueuePlace(by, target, done, options.get("after", ""))


def _number(value: str) -> int:
    is_number = value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return int(value) if is_number else 0


class FilterLinks:
    """Links of the page with a changed filter.

    Args:
        filter_: The filter of the page.
        link: Makes the link of a path with parameters.
        path: Path of the page.
    """

    def __init__(self, filter_: InferenceFilter, link: Link, path: str) -> None:
        self._filter = filter_
        self._link = link
        self._path = path
        self._texts = [part.text for part in filter_.parts]
        self._choices = choices(self._texts)

    def to(self, line: str, **changes: Any) -> str:
        """Return the link to the first page of a filter, with changed options."""
        return self._link(self._path, q=line, **{**self._filter.options, **changes})

    def current(self, **changes: Any) -> str:
        """Return the link to the same filter with changed options."""
        return self.to(self._filter.line, **changes)

    def inference(self, inference_id: str) -> str:
        """Return the link to the page of an inference within the filter, or the queue of it."""
        options = {"q": self._filter.line, **self._filter.options}
        if self._filter.queue is not None:
            options |= self._filter.queue.options
        return self._link(f"{self._path}/{inference_id}", **options)

    def similar(self, inference_id: str, line: str) -> str:
        """Return the link to what resembles an inference, within a filter."""
        return self._link(f"{self._path}/{inference_id}/similar", q=line)

    def chips(self) -> list[Chip]:
        """Return the parts of the filter; none of very many, which stand in the field as a text then."""
        if len(self._texts) > MAX_CHIPS:
            return []
        chips = []
        for number, text in enumerate(self._texts):
            rest = [*self._texts[:number], *self._texts[number + 1 :]]
            chips.append(Chip(text, *field_and_rest(text), self.to(joined(rest))))
        return chips

    def has(self, text: str) -> bool:
        """Check whether a comparison is a part of the filter."""
        return text in self._texts

    def toggled(self, text: str) -> str:
        """Return the link that adds a comparison, or removes it if it is there."""
        if self.has(text):
            return self.to(joined(part for part in self._texts if part != text))
        return self.to(joined([*self._texts, text]))

    def chosen(self, field: str) -> tuple[Scalar, ...]:
        """Return the values of which a field must have one, as far as a single part of the filter says them."""
        text, values = self._choices.get(field, ("", ()))
        return values if text else ()

    def chosen_fields(self) -> list[str]:
        """Return the fields of which the filter chooses values."""
        return list(self._choices)

    def without_choice(self, field: str) -> str:
        """Return the line of the filter without the part that chooses values of a field."""
        return joined(text for text in self._texts if text != self._choices[field][0])

    def toggled_value(self, field: str, value: Scalar) -> str:
        """Return the link that adds a value to those of which a field must have one, or takes it away."""
        text, values = self._choices.get(field, ("", ()))
        remaining = [other for other in values if not same_value(other, value)]
        if len(remaining) == len(values):
            remaining = [*values, value] if field != PRESENCE else [value]
        changed = choice_text(field, remaining) if remaining else ""
        texts = [changed if other == text else other for other in self._texts]
        return self.to(joined(part for part in [*texts, "" if text else changed] if part))

    def within(self, field: str, texts: Iterable[str]) -> str:
        """Return the link that bounds a field anew."""
        texts_of_others = [text for text in self._texts if not _bounds(text, field)]
        return self.to(joined([*texts_of_others, *texts]))

    def bounds(self, field: str) -> bool:
        """Check whether a part bounds a field."""
        return any(_bounds(text, field) for text in self._texts)

    def between(self, field: str, low: Any, high: Any) -> str:
        """Return the link to the values of a field from a bound up to another."""
        lower, upper = (
            comparison_text(field, value, operator)
            for value, operator in ((low, "ge"), (high, "lt"))
        )
        return self.within(field, [lower, upper])


def _bounds(text: str, field: str) -> bool:
    """Check whether a part bounds a field."""
    name, rest = field_and_rest(text)
    plain = name.removesuffix("=").strip('"')
    return plain == field and rest.startswith(("ge:", "gt:", "le:", "lt:", "score:"))
