"""The filter of a page: one line, which is the URL, cut into the comparisons that must all hold, and the links that change it.

Facets change the parts that choose values of a field, `meta.camera=north` or `meta.camera=in:north,east`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from quadriga.monitor.report.drift_texts import readable_number
from quadriga.store.browsing.facets import FIELDS
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.filters.syntax import Compare, Not, PredictionCondition, Scalar
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import StoreError
from quadriga.store.records.records import json_text

_PLAIN = re.compile(r"[A-Za-z_][\w./@+-]*(?: [\w./@+-]+)*")
"""Texts that need no quotes; all others get them."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')

_READ_AS_MORE = ("true", "false", "eq", "ne", "in")
"""Texts that the line reads as booleans, or of labels as operators."""


class FilterPart(msgspec.Struct, frozen=True):
    """A comparison of the line, or several in parentheses."""

    text: str
    start: int
    """Position of the text in the line."""


def parts(line: str) -> list[FilterPart]:
    """Cut a line at each `&` outside of quotes and parentheses; one with such a `|` is a single part."""
    spans, start, depth, position = [], 0, 0, 0
    while position < len(line):
        mark = line[position]
        if mark == '"' and (match := _QUOTED.match(line, position)):
            position = match.end()
            continue
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark == "|":
            return _stripped(line, [(0, len(line))])
        if depth == 0 and mark == "&":
            spans.append((start, position))
            start = position + 1
        position += 1
    return _stripped(line, [*spans, (start, len(line))])


def joined(texts: Iterable[str]) -> str:
    """Return the line of parts that must all hold."""
    return " & ".join(texts)


def as_part(text: str) -> str:
    """Return a text as a part of a line: in parentheses if it has alternatives."""
    cut = parts(text)
    is_alternative = len(cut) == 1 and _has_alternatives(text)
    return f"({text.strip()})" if is_alternative else joined(part.text for part in cut)


def comparison_text(field: str, value: str | float | bool, operator: str = "") -> str:  # noqa: FBT001 - a value of metadata
    """Return the comparison of a field with a value, quoted where it would be read as something else."""
    name = field if _is_plain_field(field) else json_text(field)
    prefix = f"{operator}:" if operator else ""
    if field == "ts":
        return f"ts={prefix}{value}"
    return f"{name}={prefix}{_value_text(value)}"


def number_text(value: float) -> str:
    """Return the shortest text of a number that is read as this number again: a time in milliseconds has 13 digits."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value).removesuffix(".0")


def field_and_rest(text: str) -> tuple[str, str]:
    """Return a part in two: its field with the `=`, and the rest; all is rest where it is no comparison."""
    match = re.match(r'(!?(?:"(?:[^"\\]|\\.)*"|[^"&|()=!<>]+)=)(.*)', text, re.DOTALL)
    return (match[1], match[2]) if match else ("", text)


def _stripped(line: str, spans: Sequence[tuple[int, int]]) -> list[FilterPart]:
    cut = []
    for start, end in spans:
        text = line[start:end]
        if text.strip():
            cut.append(FilterPart(text.strip(), start + len(text) - len(text.lstrip())))
    return cut


def _has_alternatives(text: str) -> bool:
    depth = 0
    for mark in _QUOTED.sub("", text):
        depth += (mark == "(") - (mark == ")")
        if depth == 0 and mark == "|":
            return True
    return False


def _is_plain_field(field: str) -> bool:
    return re.fullmatch(r"[\w.-]+", field) is not None


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return number_text(value)
    is_plain = _PLAIN.fullmatch(value) is not None and value not in _READ_AS_MORE
    return value if is_plain else json_text(value)


PRESENCE = "ground_truth"
"""The field whose facet says whether it is there."""


def same_value(a: Scalar, b: Scalar) -> bool:
    """Check whether two values are the same, and of one type, as 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def choice_text(field: str, values: Sequence[Scalar]) -> str:
    """Return the comparison of a field with one or several values, one of which it must have."""
    if field == PRESENCE:
        return comparison_text(field, values[0], "exists")
    if len(values) == 1:
        return comparison_text(field, values[0])
    opening = comparison_text(field, "x", "in").removesuffix("x")
    texts = (comparison_text(field, value, "in").removeprefix(opening) for value in values)
    return opening + ",".join(texts)


def choices(texts: Iterable[str]) -> dict[str, tuple[str, tuple[Scalar, ...]]]:
    """Return the parts that choose values of a field, with these values, by the field; none for one that has two of them."""
    chosen: dict[str, tuple[str, tuple[Scalar, ...]]] = {}
    repeated = set()
    for text in texts:
        choice = _choice(text)
        if choice is not None:
            field, values = choice
            repeated |= {field} & chosen.keys()
            chosen[field] = text, values
    return {field: choice for field, choice in chosen.items() if field not in repeated}


def _choice(text: str) -> tuple[str, tuple[Scalar, ...]] | None:
    """Return the field and the values of a part that chooses some; None for any other."""
    try:
        tree = QueryRequest(where=text).parse_filter()
    except StoreError:
        return None
    if isinstance(tree, PredictionCondition) and tree.is_best and tree.labels is not None:
        return "best", tree.labels
    compare = tree.operand if isinstance(tree, Not) else tree
    if not isinstance(compare, Compare):
        return None
    if compare.field == PRESENCE:
        return PRESENCE, (compare is tree,)
    is_facet = compare.field.startswith("meta.") or compare.field in FIELDS
    if compare is not tree or not is_facet or compare.operator not in ("eq", "in"):
        return None
    values = compare.value
    return compare.field, values if isinstance(values, tuple) else (values,)


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

    @property
    def scale(self) -> str:
        """A bound of the blur as pages show it, such as `22 of 100`; empty for anything else."""
        bound = re.fullmatch(r"!?sig\.image\.blur=(?:[gl][te]:)?(-?\d+(?:\.\d+)?)", self.text)
        return f"{readable_number('image.blur', float(bound[1])):.0f} of 100" if bound else ""


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
