"""The filter of a page: one line, which is the URL, cut into the comparisons that must all hold, and the links that change it.

Facets change the parts that choose values of a field, `meta.camera=north` or `meta.camera=in:north,east`. Everyday words stand
for filters; of a line that is none, or finds nothing, what is wrong with it and what may have been meant by it.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from quadriga.engine.console.formats import time_text
from quadriga.engine.console.texts import FIELD_WORDS, OPERATOR_WORDS
from quadriga.monitor.report.drift_texts import readable_number
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, ReportedModel, Window
from quadriga.store.browsing.facets import FIELDS as FACETS
from quadriga.store.browsing.facets import Facet, FacetsRequest, find_facets, tail_bound
from quadriga.store.query.filters.forms import split_url
from quadriga.store.query.filters.syntax import (
    BOUNDS,
    FIELDS,
    OPERATORS,
    PROPERTIES,
    SIGNAL_FIELDS,
    Compare,
    Not,
    PredictionCondition,
    Scalar,
)
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.query.sql.search import Budget
from quadriga.store.records.errors import NotFoundError, QueryError, StoreError
from quadriga.store.records.records import REVIEWS, json_text

_PLAIN = re.compile(r"[A-Za-z_][\w./@+-]*(?: [\w./@+-]+)*")
"""Texts that need no quotes; all others get them."""

_READ_AS_MORE = ("true", "false", "eq", "ne", "in")
"""Texts that the line reads as booleans, or of labels as operators."""


class FilterPart(msgspec.Struct, frozen=True):
    """A comparison of the line, or several in parentheses."""

    text: str
    start: int
    """Position of the text in the line."""


def parts(line: str) -> list[FilterPart]:
    """Cut a line at each `&` outside of quotes and parentheses; one with such a `|` is a single part."""
    ends = [] if _has_alternatives(line) else [position for position, _ in _marks(line)]
    cut = []
    for start, end in zip([0, *(end + 1 for end in ends)], [*ends, len(line)], strict=True):
        text = line[start:end]
        if text.strip():
            cut.append(FilterPart(text.strip(), start + len(text) - len(text.lstrip())))
    return cut


def _marks(line: str) -> Iterator[tuple[int, str]]:
    """Yield the position of each `&` and `|` outside of quotes and parentheses."""
    depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"?|[()&|]', line):
        depth += (match[0] == "(") - (match[0] == ")")
        if depth == 0 and match[0] in "&|":
            yield match.start(), match[0]


def _has_alternatives(line: str) -> bool:
    return any(mark == "|" for _, mark in _marks(line))


def joined(texts: Iterable[str]) -> str:
    """Return the line of parts that must all hold."""
    return " & ".join(texts)


def as_part(text: str) -> str:
    """Return a text as a part of a line: in parentheses if it has alternatives."""
    return f"({text.strip()})" if _has_alternatives(text) else joined(p.text for p in parts(text))


def comparison_text(field: str, value: str | float | bool, operator: str = "") -> str:  # noqa: FBT001 - a value of metadata
    """Return the comparison of a field with a value, quoted where it would be read as something else."""
    name = field if re.fullmatch(r"[\w.-]+", field) else json_text(field)
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
    is_facet = compare.field.startswith("meta.") or compare.field in FACETS
    if compare is not tree or not is_facet or compare.operator not in ("eq", "in"):
        return None
    values = compare.value
    return compare.field, values if isinstance(values, tuple) else (values,)


ORDERS = ("-ts", "ts")
VIEWS = ("grid", "table", "objects")
INFERENCES_PATH = "/console/inferences"
QUEUE_ORDERS = ("score", "margin", "random")
_OPTIONS = ("order", "cursor", "view", "by", "target", "done", "after")
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
    def words(self) -> str:
        """A bound of what was measured on images in words, such as `blur at least 13 of 100`; empty for anything else."""
        bound = re.fullmatch(r"sig\.image\.(\w+)=([gl][te]):(-?\d+(?:\.\d+)?)", self.text)
        if bound is None:
            return ""
        name, operator, number = bound.groups()
        shown = readable_number(f"image.{name}", float(number))
        return f"{name.replace('_', ' ')} {OPERATOR_WORDS['value'][operator]} {shown:.3g}{' of 100' if name == 'blur' else ''}"


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
    return int(value) if re.fullmatch(r"[0-9]{1,4}", value) else 0


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
        return self.to(self.line_with(text))

    def line_with(self, text: str) -> str:
        """Return the line with a further comparison, of cells instead of the one of their field."""
        field = field_and_rest(text)[0]
        is_of_cells = field in ("truth=", "predicted=")
        others = (
            part for part in self._texts if not is_of_cells or field_and_rest(part)[0] != field
        )
        return joined([*others, text])

    @property
    def cell_field(self) -> str:
        """The field of labels within what an evaluation calls missed or false: `truth` or `predicted`; empty for other filters."""
        fields = (("truth", "predicted"), ("predicted", "truth"))
        return next((own for own, other in fields if self.has(comparison_text(other, ""))), "")

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
        bounds = comparison_text(field, low, "ge"), comparison_text(field, high, "lt")
        return self.within(field, bounds)


def _bounds(text: str, field: str) -> bool:
    """Check whether a part bounds a field."""
    name, rest = field_and_rest(text)
    plain = name.removesuffix("=").strip('"')
    return plain == field and rest.startswith(("ge:", "gt:", "le:", "lt:", "score:"))


class Word(NamedTuple):
    """Everyday words that stand for a filter."""

    names: tuple[str, ...]
    line: str
    """The filter; the bound after a final `:` follows from what is stored; empty where an evaluation has it."""
    meaning: str


EVERYDAY_WORDS = (
    Word(("blurred", "blurry", "blur", "soft"), "sig.image.blur=ge:", "the most blurred images"),
    Word(("sharp", "in focus"), "sig.image.blur=lt:", "the sharpest images"),
    Word(("dark",), "sig.image.brightness=lt:", "the darkest images"),
    Word(("bright",), "sig.image.brightness=ge:", "the brightest images"),
    Word(("low contrast", "hazy"), "sig.image.contrast=lt:", "the images of the lowest contrast"),
    Word(("high contrast",), "sig.image.contrast=ge:", "the images of the highest contrast"),
    Word(("unsure", "uncertain", "low score", "low confidence", "score", "confidence"),
         "box=score:lt:0.5", "a prediction with a score below 0.5"),
    Word(("sure", "certain", "high score", "high confidence"), "box=score:ge:0.9", "a prediction with a score of at least 0.9"),
    Word(("many objects", "objects", "crowded"), "predictions=ge:5", "at least five predictions"),
    Word(("empty", "no objects", "nothing found"), "predictions=0", "nothing was predicted"),
    Word(("failed", "failures", "errors"), "status=500", "the model failed"),
    Word(("slow",), "latency_ms=ge:1000", "answered in a second or more"),
    Word(("labelled", "labeled", "annotated"), "ground_truth=exists:true", "the truth is known"),
    Word(("unlabelled", "unlabeled", "not labelled"), "ground_truth=exists:false", "the truth is not known"),
    Word(("to review", "needs review"), "ground_truth.review=needs_review", "the truth needs a review"),
    Word(("tagged",), "meta.tag=exists:true", "it has a tag"),
    Word(("today",), "ts=ge:{today}T00:00:00Z", "today, UTC"),
    Word(("yesterday",), "ts=ge:{yesterday}T00:00:00Z & ts=lt:{today}T00:00:00Z", "yesterday, UTC"),
    Word(("last hour",), "ts=ge:-1h", "the last hour"),
    Word(("last 24 hours", "last day"), "ts=ge:-24h", "the last 24 hours"),
    Word(("last week", "last 7 days"), "ts=ge:-7d", "the last 7 days"),
    Word(("missed", "not found", "false negatives"), "", "objects not found"),
    Word(("false positives", "false alarms"), "", "predicted where nothing is"),
    Word(("wrong", "mistakes", "incorrect"), "", "missed, false or taken for another label"),
)  # fmt: skip
"""All words that are understood without a comparison; a label beside them narrows what they find."""

FIELD_NAMES: Mapping[str, str] = {
    "score": "box=score", "confidence": "box=score", "time": "ts", "date": "ts", "class": "label", "category": "label",
    "objects": "predictions", "count": "predictions", "latency": "latency_ms", "sharpness": "sig.image.blur",
}  # fmt: skip
"""Names that people have for fields of the filter; `box=score` is the score of some prediction."""

_OFFERED, _VALUES, _BINS, _NEAR, _SHOWN = 3, 100, 20, 0.7, 60
_LONGEST_READ = 1000
GLANCE = Budget(rows=20_000, seconds=0.02)
"""Limits of a count of what a filter would find that nobody asked for yet."""

_MAX_EVALUATIONS, _MAX_CELLS = 3, 50
_SIGNS = {"<": "lt:", "<=": "le:", ">": "gt:", ">=": "ge:", "!=": "ne:", "==": "", "=": ""}
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_COMPARISON = re.compile(rf'({_QUOTED}\s*|[^"=<>!]+)(==|!=|>=|<=|=|>|<)\s*(\S.*)', re.DOTALL)
_OPERATOR = re.compile(r"\s*(?:eq|ne|gt|ge|lt|le|in|contains|exists)\s*:\s*")
_POSITION = re.compile(r" at character (\d+) of the filter")
_OPPOSITE = re.compile(r"(?:no|non|not|without)\b")
_KINDS = {**FIELDS, **dict.fromkeys(SIGNAL_FIELDS, "number"), "label": "label", "best": "best", "box": "box", "geo": "geo"}  # fmt: skip
_OTHER_OPERATORS = {"label": ("ne", "in"), "best": ("ne", "in"), "box": (), "geo": ("exists",)}
_FIRST_FIELDS = ("model", "label", "ts", "ground_truth", "ground_truth.review", "box", "latency_ms", "status", "predictions")  # fmt: skip


def filter_words() -> dict[str, Any]:
    """Return what the script completes with, besides the values that are stored; it takes it as JSON."""
    of_kinds = dict[str, tuple[str, ...]](OPERATORS.items()) | _OTHER_OPERATORS
    words = {kind: OPERATOR_WORDS["time" if kind == "time" else "value"] for kind in of_kinds}
    return {
        "fields": [[name, _KINDS[name], FIELD_WORDS["sig.image" if name in SIGNAL_FIELDS else name]]
                   for name in dict.fromkeys([*_FIRST_FIELDS, *_KINDS])],
        "operators": {kind: [[name, words[kind][name]] for name in names] for kind, names in of_kinds.items()},
        "bounds": [[name, OPERATOR_WORDS["value"][name]] for name in BOUNDS],
        "properties": [[name, FIELD_WORDS[f"of.{name}"]] for name in (*PROPERTIES, "n")],
        "values": {"ground_truth.review": list(REVIEWS)},
        "names": FIELD_NAMES,
        "words": [[word.names, _dated(word.line), word.meaning] for word in EVERYDAY_WORDS],
    }  # fmt: skip


def _dated(line: str) -> str:
    today = datetime.now(UTC).date()
    return line.format(today=today, yesterday=today - timedelta(days=1))


class Problem(msgspec.Struct, frozen=True):
    """Why a line is no filter."""

    message: str
    line: str
    position: int
    """Place of the caret below the line, in characters."""
    needs_evaluation: bool = False
    """Whether it stands for what an evaluation finds, and so is right, but finds nothing without one."""

    @property
    def status(self) -> int:
        """Status of a page about it."""
        return 200 if self.needs_evaluation else 400


def check(line: str) -> Problem | None:
    """Return why a line is no filter; None if it is one."""
    error = _error_of(line)
    if match := _POSITION.search(error):
        return _syntax_problem(line, min(int(match[1]) - 1, len(line)), _POSITION.sub("", error))
    for part in _comparisons(line):
        head, rest = field_and_rest(part.text)
        operator = _OPERATOR.fullmatch(rest)
        if head and operator and operator[0].strip() not in ("eq:", "in:"):
            return Problem(f"A value is missing after {rest.strip()}", line, part.start + len(part.text))  # fmt: skip
        if error and (wrong := _error_of(part.text)):
            return _value_problem(line, part, wrong)
    return Problem(error, line, 0) if error else None


def absent(line: str, error: str) -> Problem:
    """Return the problem of a filter that names a model or a report which is not there, as the error says."""
    for part in _comparisons(line):
        field, rest = field_and_rest(part.text)
        if field and error.startswith(f"{field.removesuffix('=')} not found"):
            return Problem(error, line, part.start + len(part.text) - len(rest))
    return Problem(error, line, 0)


def _error_of(line: str) -> str:
    try:
        QueryRequest(where=line).parse_filter()
    except StoreError as error:
        return str(error)
    return ""


def _comparisons(line: str) -> Iterator[FilterPart]:
    """Cut a line into its comparisons, also those within parentheses and alternatives."""
    for match in re.finditer(rf'(?:{_QUOTED}|[^"&|()])+', line):
        begin = match.start() + len(match[0]) - len(match[0].lstrip(" \t\n!"))
        if stripped := line[begin : match.end()].strip():
            yield FilterPart(stripped, begin)


def _syntax_problem(line: str, place: int, error: str) -> Problem:
    """Return what is wrong with a line that cannot be read beyond a place: most often a word that no = follows."""
    begun = re.search(rf'(?:{_QUOTED}|[^"&|()=!<>])+$', line[:place])
    word = begun[0].strip() if begun else ""
    if not word or line[: place - len(begun[0] if begun else "")].endswith("="):
        return Problem(error, line, place)
    if sign := re.match(r"!=|[<>]=?", line[place:]):
        message = (
            f"A filter has no {sign[0]}. Write ={_SIGNS[sign[0]]} instead, as in latency_ms=ge:5."
        )
        return Problem(message, line, place)
    known = _word_of(word)[0]
    needs_evaluation = known is not None and not known.line
    message = f"“{word[:_SHOWN]}” is what an evaluation finds"
    if not needs_evaluation:
        message = f"“{word[:_SHOWN]}” is compared with nothing. A comparison has = between, as label=NAME or meta.KEY=VALUE."
    return Problem(message, line, line[:place].rindex(word), needs_evaluation)


def _value_problem(line: str, part: FilterPart, error: str) -> Problem:
    """Return what is wrong with a comparison, and where that begins: at the text that the error says it got."""
    head, rest = field_and_rest(part.text)
    field = head.removesuffix("=").strip().strip('"')
    if field not in _KINDS and not re.match(r"(?:meta|std)\..", field):
        message = f"There is no field “{field[:_SHOWN]}”. Metadata begins with meta., as in meta.KEY=VALUE."
        return Problem(message, line, part.start)
    operator, got = _OPERATOR.match(rest), re.search(r"got (?:a \w+ )?'([^']+)'", error)
    begin = len(part.text) - len(rest.lstrip())
    value_at = len(head) + operator.end() if operator else begin
    place = value_at
    if got and (rest.lstrip().startswith("in:") or not part.text.startswith(got[1], place)):
        place = part.text.rfind(got[1], value_at)
    written = {"presence": f"{field}=exists:true", "geo": "geo=51.5,-0.12,5km"}.get(_KINDS.get(field, ""))  # fmt: skip
    message = f"Write {written}, for instance." if written else error
    return Problem(message, line, part.start + (begin if place < 0 else place))


class StoredWords:
    """The fields and the frequent values of what is stored.

    Args:
        facets: Those of all that the caller sees.
    """

    def __init__(self, facets: Iterable[Facet]) -> None:
        self.bins = {facet.field: facet.histogram for facet in facets}
        self.values: dict[str, list[str]] = {facet.field: [] for facet in facets if facet.field != "score"}  # fmt: skip
        for facet in facets:
            self.values.get(facet.field, []).extend(v.value for v in facet.values if isinstance(v.value, str))  # fmt: skip
        self.values["best"] = self.values.get("label", [])
        self._fields: dict[str, list[str]] = {}
        for field in dict.fromkeys([*sorted(self.values, key=lambda name: not name.startswith("meta.")), *FIELD_NAMES.values(), *_KINDS]):  # fmt: skip
            short = re.sub(r"^(?:meta|std|sig\.image)\.", "", field.lower())
            aliases = [name for name, meant in FIELD_NAMES.items() if meant == field]
            for name in {short, *re.split(r"[._=\W]+", short), *aliases}:
                self._fields.setdefault(name, []).append(field)

    def fields_like(self, name: str) -> list[str]:
        """Return the fields that a name may mean: it is theirs or a part of theirs, or spelled nearly so."""
        short = re.sub(r"^(?:meta|std|sig\.image)\.", "", name.strip('"').lower())
        return [field for near in _near(short, self._fields) for field in self._fields[near]][:_OFFERED]  # fmt: skip

    def values_like(self, field: str, value: str) -> list[str]:
        """Return the stored texts of a field that one may mean; none for one that is stored."""
        known = {text.lower(): text for text in self.values.get(field, ())}
        return [known[near] for near in _near(value.lower(), known) if known[near] != value]

    def with_value(self, value: str) -> list[str]:
        """Return comparisons of labels, models and metadata with a stored text, in other letters or spelled nearly so."""
        fields = [field for field in self.values if field in ("label", "model") or field.startswith("meta.")]  # fmt: skip
        known = {text.lower(): comparison_text(field, text) for field in reversed(fields) for text in self.values[field]}  # fmt: skip
        return [known[near] for near in _near(value, known)]


def _near(sought: str, names: Iterable[str]) -> list[str]:
    """Return a text itself or its singular if it is a name, else names that are spelled nearly so and do not say the opposite."""
    alike = {name for name in names if bool(_OPPOSITE.match(name)) == bool(_OPPOSITE.match(sought))}
    exact = [name for name in (sought, sought.removesuffix("s")) if name in alike]
    return exact[:1] or difflib.get_close_matches(sought, sorted(alike), _OFFERED, _NEAR)


class MeantLine(msgspec.Struct, frozen=True):
    """Another filter that may have been meant, as a link."""

    line: str
    words: str
    """What it finds, in words and with the number of inferences."""
    link: str


def meant_lines(store: InferenceReader, line: str, links: FilterLinks, reports: ReportStore | None = None) -> list[MeantLine]:  # fmt: skip
    """Return the filters that may have been meant by one that is none, or finds nothing; those that find something first.

    Args:
        store: What the caller sees of the store.
        line: What was typed.
        links: Makes the links of the page.
        reports: The reports that the caller may see; None to do without those of evaluations.
    """
    meant: list[tuple[bool, MeantLine]] = []
    with suppress(StoreError):  # the database is away: the page says without them what is wrong
        stored = StoredWords(find_facets(store, FacetsRequest({}, None, _VALUES, _BINS)).facets)
        for other, meaning in corrections(line, stored, reports):
            with suppress(QueryError, NotFoundError):
                counted = store.count(QueryRequest(other, count="capped"), GLANCE)
                count = f"{counted.count:,}{'' if counted.is_exact else ' or more'}"
                words = ", ".join(filter(None, (meaning, f"finds {count}")))
                meant.append((not counted.count, MeantLine(other, words, links.to(other))))
    return [shown for _, shown in sorted(meant, key=lambda entry: entry[0])]


def only_meaning(line: str, meant: Sequence[MeantLine]) -> MeantLine | None:
    """Return the filter that everyday words of a line stand for; None if they may mean several, or something else is wrong with it.

    Names of fields are asked about: who types `score` may have begun a comparison. So are words that are only nearly those stored.
    """
    wrong = [part.text for part in parts(line) if check(part.text)]
    if not wrong or len(meant) != 1:
        return None
    for typed in wrong:
        word, beside = _word_of(typed)
        if (
            not word
            or typed.lower() in FIELD_NAMES
            or beside.removesuffix("s") not in meant[0].line.lower()
        ):
            return None
    return meant[0]


def corrections(line: str, stored: StoredWords, reports: ReportStore | None = None) -> list[tuple[str, str]]:  # fmt: skip
    """Return the lines that may be meant by one that is no filter, or finds nothing, with words about what they find.

    Of several wrong parts the first meanings stand together.
    """
    typed = [part.text for part in parts(line)] if len(line) <= _LONGEST_READ else []
    meanings = [_meanings(part, stored, reports) or [(part, "")] for part in typed]
    offered: dict[str, str] = {}
    for number in range(max(map(len, meanings), default=0)):
        chosen = [of_part[min(number, len(of_part) - 1)] for of_part in meanings]
        corrected = joined(as_part(other) for other, _ in chosen)
        if corrected != joined(map(as_part, typed)) and check(corrected) is None:
            offered.setdefault(corrected, "; ".join(meaning for _, meaning in chosen if meaning))
    return list(offered.items())[:_OFFERED]


def _meanings(typed: str, stored: StoredWords, reports: ReportStore | None) -> list[tuple[str, str]]:  # fmt: skip
    """Return the filters that one part may mean, with words; none for one that is right, as far as that is known."""
    match = _COMPARISON.fullmatch(typed)
    if match is None or typed.startswith(("(", "!")):
        return [] if "=" in typed else _meanings_of_words(typed, stored, reports)
    name, operator, operand = match[1].strip(), _SIGNS[match[2]], match[3]
    if operator and _OPERATOR.match(operand):
        return []
    is_known = name in stored.values or name in _KINDS
    value, rest = operand, ""
    if name == "label" and (bounded := re.fullmatch(rf"({_QUOTED}|[^:]*)(:.*)", operand)):
        value, rest = bounded.groups()
    lines = []
    for field in [name] if is_known else stored.fields_like(name):
        head = field_and_rest(comparison_text(field, 0))[0]
        if field == "box=score":
            head = "box=score:" if operator or _OPERATOR.match(operand) else "box=score:ge:"
        values = [] if operator else stored.values_like(field, value.strip().strip('"'))
        lines += [comparison_text(field, known) + rest for known in values] or [f"{head}{operator}{operand}"]  # fmt: skip
    return [(other, "") for other in lines if other.replace(" ", "") != typed.replace(" ", "")]


def _meanings_of_words(typed: str, stored: StoredWords, reports: ReportStore | None) -> list[tuple[str, str]]:  # fmt: skip
    """Return the filters that words mean: an everyday word, alone or beside a stored value, or such a value, or nearly one."""
    word, beside = _word_of(typed)
    if word and not word.line:
        return list(_outcomes(reports, word, beside)) if reports else []
    values = stored.with_value(" ".join((beside or typed).lower().split()))
    if word and (values or not beside):
        value = values[0] if beside else ""
        line = _dated(word.line)
        if line.endswith(":"):  # without a bound, as nothing was measured, it is no filter
            bound = tail_bound(stored.bins.get(line.partition("=")[0], []), is_low=line.endswith("lt:"))  # fmt: skip
            line += "" if bound is None else number_text(bound)
        return [(joined(filter(None, (line, value))), word.meaning)]
    fields = [field for field in stored.fields_like(typed) if stored.values.get(field)]
    return [(line, "") for line in [*values, *(comparison_text(field, stored.values[field][0]) for field in fields)]]  # fmt: skip


def _word_of(typed: str) -> tuple[Word | None, str]:
    """Return the everyday word that a text is, or begins or ends with, and the rest of the text."""
    typed = " ".join(typed.lower().split())
    names = {name: word for word in EVERYDAY_WORDS for name in word.names}
    for name in sorted(names, key=len, reverse=True):
        rest = f" {typed} ".removeprefix(f" {name} ").removesuffix(f" {name} ")
        if rest != f" {typed} ":
            return names[name], rest.strip()
    return None, ""


class Evaluation(msgspec.Struct, frozen=True):
    """The fields of a report that say which cells it has."""

    model: ReportedModel
    created: str
    confusion: Confusion = Confusion()


def _outcomes(reports: ReportStore, word: Word, beside: str) -> Iterator[tuple[str, str]]:
    """Yield the filters of what was wrong in the newest evaluation of each model; damaged ones are left out."""
    newest = {report.model.name: report.id for report in reversed(reports.all()) if report.kind == "evaluation"}  # fmt: skip
    for report_id in sorted(newest.values(), reverse=True)[:_MAX_EVALUATIONS]:
        with suppress(StoreError):
            evaluation = reports.decode(report_id, Evaluation)
            labels = {label.lower(): label for label in evaluation.confusion.labels} if beside else {"": ""}  # fmt: skip
            for label in _near(beside, labels)[:1]:
                if line := outcome_line(
                    report_id, evaluation.confusion, word.names[0], labels[label]
                ):
                    yield line, f"{word.meaning} in the evaluation of {evaluation.model.name} {evaluation.model.version}, {time_text(evaluation.created, 'day')}"  # fmt: skip


def outcome_line(report_id: str, confusion: Confusion, outcome: str, label: str = "") -> str:
    """Return the filter of what a report says was `missed`, `false positives` or `wrong`, of all labels or one; empty if nothing was."""
    of_truth, of_predicted = ([comparison_text(field, label)] if label else [] for field in ("truth", "predicted"))  # fmt: skip
    cells: list[list[str]] = []
    if outcome != "false positives" and any(n for name, n in confusion.misses.items() if label in ("", name)):  # fmt: skip
        cells.append([*of_truth, comparison_text("predicted", "")])
    if outcome != "missed" and any(n for name, n in confusion.hallucinations.items() if label in ("", name)):  # fmt: skip
        cells.append([comparison_text("truth", ""), *of_predicted])
    for truth, row in (
        zip(confusion.labels, confusion.matrix, strict=False) if outcome == "wrong" else ()
    ):
        others = [other for other, n in zip(confusion.labels, row, strict=False) if n and other != truth and label in ("", truth, other)]  # fmt: skip
        cells += [[comparison_text("truth", truth), choice_text("predicted", others)]] if others else []  # fmt: skip
    lines = [joined([comparison_text("report", report_id), *cell]) for cell in cells]
    return lines[0] if len(lines) == 1 else " | ".join(f"({line})" for line in lines if len(lines) <= _MAX_CELLS)  # fmt: skip


class WindowFilter(msgspec.Struct, frozen=True):
    """The inferences of a window as a filter."""

    line: str
    """Filter of the page of inferences; empty where the window has no times, as of files."""
    is_whole: bool = True
    """Whether the filter of the report is part of it, which is not where it was sent as JSON."""


def window_filter(model: ReportedModel, window: Window | None) -> WindowFilter:
    """Return the filter that finds the inferences of a model in the time of a window, and by its filter."""
    if window is None or window.start is None or window.end is None or not model.name:
        return WindowFilter("")
    comparisons = [comparison_text("model", model.name)]
    if model.version and ", " not in model.version:  # it is about one alone
        comparisons.append(comparison_text("version", model.version))
    comparisons += [f"ts=ge:{window.start}", f"ts=le:{window.end}"]
    where = window.filter
    if not where:
        return WindowFilter(joined(comparisons))
    if not isinstance(where, str) or check(where) is not None:
        return WindowFilter(joined(comparisons), is_whole=False)
    return WindowFilter(joined([*comparisons, as_part(where)]))
