"""The filter of the page of inferences, and the links that change it: chips, values and bins of facets, times."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quadriga.engine.console.filter_line import (
    FilterPart,
    as_part,
    comparison_text,
    field_and_rest,
    joined,
    parts,
)
from quadriga.store.query.compact_form import split_url

ORDERS = ("-ts", "ts")
VIEWS = ("grid", "table")
_OPTIONS = ("order", "cursor", "view")

Link = Callable[..., str]


class Chip(msgspec.Struct, frozen=True):
    """A part of the filter, with the link that removes it."""

    text: str
    field: str
    rest: str
    without: str


class InferenceFilter(msgspec.Struct, frozen=True):
    """What the URL of the page says."""

    line: str
    order: str = "-ts"
    cursor: str = ""
    view: str = ""
    """`grid` or `table`; empty for what fits the page."""
    is_canonical: bool = True
    """Whether the URL says it in one filter `q`."""

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
    )


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

    def to(self, line: str, **changes: Any) -> str:
        """Return the link to the first page of a filter, with changed options."""
        return self._link(self._path, q=line, **{**self._filter.options, **changes})

    def current(self, **changes: Any) -> str:
        """Return the link to the same filter with changed options."""
        return self.to(self._filter.line, **changes)

    def inference(self, inference_id: str) -> str:
        """Return the link to the page of an inference within the filter."""
        options = {"q": self._filter.line, **self._filter.options}
        return self._link(f"{self._path}/{inference_id}", **options)

    def chips(self) -> list[Chip]:
        """Return the parts of the filter."""
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

    def within(self, field: str, texts: Iterable[str]) -> str:
        """Return the link that bounds a field anew."""
        texts_of_others = [text for text in self._texts if not _bounds(text, field)]
        return self.to(joined([*texts_of_others, *texts]))

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
