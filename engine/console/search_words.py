"""What people type who do not know the filter: their words, signs and values, and the line that each of them means."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from quadriga.engine.console.filter_line import (
    as_part,
    choice_text,
    comparison_text,
    field_and_rest,
    joined,
    parts,
)
from quadriga.engine.console.filter_problems import EXAMPLE, OUTCOME_NAMES, Problem, check
from quadriga.engine.console.formats import day
from quadriga.engine.console.inference_filter import FilterLinks
from quadriga.engine.console.texts import FIELD_WORDS, OPERATOR_WORDS, TEXTS, text
from quadriga.monitor.report.saved import ReportStore
from quadriga.monitor.report.schema import Confusion, ReportedModel
from quadriga.store.browsing.facets import FacetsRequest, find_facets
from quadriga.store.query.filters.syntax import BOUNDS, FIELDS, OPERATORS, PROPERTIES, SIGNAL_FIELDS
from quadriga.store.query.inferences import InferenceReader
from quadriga.store.query.request import QueryRequest
from quadriga.store.records.errors import (
    NotFoundError,
    NotReadyError,
    QueryError,
    QueryTimeoutError,
    StoreError,
)

MAX_OFFERED = 3
_MAX_READ = 1000
"""Characters of a line beyond which nothing is offered."""
_VALUES = 100
_NEAR = 0.7
"""Likeness from which a name is near, 0 to 1; north and south are as 0.6."""
_SIGNS = {"<": "lt:", "<=": "le:", ">": "gt:", ">=": "ge:", "!=": "ne:", "==": "", "=": "", ":": "",
          "below": "lt:", "under": "lt:", "less than": "lt:", "above": "gt:", "over": "gt:", "more than": "gt:",
          "at least": "ge:", "at most": "le:", "is not": "ne:", "is": "",
          **{f"{operator}:": f"{operator}:" for operator in OPERATORS["value"]}, "eq:": ""}  # fmt: skip
"""Signs of comparisons, and the operator of the filter that each means."""
_NEGATION = re.compile(r"(?:no|non|not|without)\b")
"""The beginning of a name in lower case that may be the opposite of the rest."""
_COMPARISON = re.compile(
    r'("(?:[^"\\]|\\.)*"\s*|[^"=<>!:]+?)(==|!=|>=|<=|=|>|<|:|\s(?ai:below|under|less than|above|over|more than|at least|at most|is not|is)\s'
    rf"|\s(?ai:{'|'.join(OPERATORS['value'])})\s*:)\s*(\S.*)"
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_OPERATOR = re.compile(r"(?:eq|ne|gt|ge|lt|le|in|contains|exists):")
_ALTERNATIVE = re.compile(r"\sor\s", re.IGNORECASE)
_CONJUNCTION = re.compile(
    r'("(?:[^"\\]|\\.)*"?)|\sand\s|&&|(?<![\s=<>&|!(])(?<!\sor)(?<!\sand)(?<!\snot)\s+'
    r"(?=(?:(?:meta|std|sig)\.[\w.]+|label|model|version|ts|ground_truth|box)\s*[=<>])",
    re.IGNORECASE,
)
"""A quoted text, which stays as it is, or what joins comparisons: a word, a sign, or nothing but a space before a field."""
_KNOWN = {*FIELDS, *SIGNAL_FIELDS, "label", "best", "box", "geo"}
FIELD_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "box=score": ("score", "scores", "confidence", "conf", "certainty", "probability"),
    "predictions": ("objects", "detections", "count", "number of objects", "boxes"),
    "ts": ("time", "date", "day", "created", "timestamp", "when"),
    "latency_ms": ("latency", "duration", "milliseconds"),
    "label": ("class", "category", "object", "prediction", "predicted label"),
    "ground_truth.label": ("true label", "true class", "ground truth"),
    "request_id": ("request",),
    "sig.image.brightness": ("brightness",),
    "sig.image.contrast": ("contrast",),
    "sig.image.blur": ("blur", "sharpness"),
    "sig.image.saturation": ("saturation",),
}
"""Words for a field that the filter calls by another name; `box=score` is the score of some prediction."""


class Phrase(NamedTuple):
    """Words that stand for a comparison by themselves."""

    names: tuple[str, ...]
    line: str
    meaning: str
    """Name of the text that says what it finds."""


def phrases(today: date) -> list[Phrase]:
    """Return the words that are understood without a comparison; `today` is the day in UTC."""
    one_day = timedelta(days=1)
    return [
        Phrase(("low score", "low confidence", "score", "confidence", "low", "unsure", "uncertain"),
               "box=score:lt:0.5", "phrase_low"),
        Phrase(("high score", "high confidence", "high", "sure", "certain"), "box=score:ge:0.9", "phrase_high"),
        Phrase(("many objects", "objects", "count", "detections", "crowded"), "predictions=ge:5", "phrase_many"),
        Phrase(("no objects", "no detections", "nothing found", "empty"), "predictions=0", "phrase_empty"),
        Phrase(("yesterday",), _day_line(today - one_day, today), "phrase_yesterday"),
        Phrase(("today",), f"ts=ge:{today}T00:00:00Z", "phrase_today"),
        Phrase(("last hour", "hour"), "ts=ge:-1h", "last_hour"),
        Phrase(("last 24 hours", "last day", "24 hours"), "ts=ge:-24h", "last_day"),
        Phrase(("last week", "last 7 days", "this week", "week"), "ts=ge:-7d", "last_week"),
        Phrase(("failed", "failures", "errors", "error"), "status=500", "phrase_failed"),
        Phrase(("slow",), "latency_ms=ge:1000", "phrase_slow"),
        Phrase(("labelled", "labeled", "annotated", "with truth", "truth", "has truth", "truth known"), "ground_truth=exists:true", "phrase_truth"),
        Phrase(("unlabelled", "unlabeled", "not labelled", "without truth", "no truth", "truth not known"), "ground_truth=exists:false", "phrase_no_truth"),
    ]  # fmt: skip


def _day_line(start: date, end: date) -> str:
    """Return the comparison of the time with a day, in UTC, that ends where the next begins."""
    return f"ts=ge:{start}T00:00:00Z & ts=lt:{end}T00:00:00Z"


def _near_names(sought: str, names: Iterable[str]) -> list[str]:
    """Return the names that are spelled nearly as one, all in lower case, and do not say the opposite, as `no ship` of `ship`."""
    is_negated = _NEGATION.match(sought) is not None
    alike = [name for name in names if (_NEGATION.match(name) is not None) == is_negated]
    return difflib.get_close_matches(sought, alike, MAX_OFFERED, _NEAR)


class Correction(msgspec.Struct, frozen=True):
    """Another line that may have been meant."""

    line: str
    words: str
    """Words about what it finds; empty where the line says it."""


class _Meaning(NamedTuple):
    line: str
    words: str = ""


class Outcome(msgspec.Struct, frozen=True):
    """A filter that finds the images of some cells of a report."""

    line: str
    words: str


class StoredWords:
    """The fields and the frequent values of what is stored.

    Args:
        values: Texts by field; a field whose values are none has an empty list.
        outcomes: Filters of evaluations, by the words that they stand for.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[str]],
        outcomes: Mapping[str, Sequence[Outcome]] | None = None,
    ) -> None:
        self._values = values
        self.outcomes: Mapping[str, Sequence[Outcome]] = outcomes or {}
        self._keys = {key.removeprefix("meta.").lower(): key for key in values if key.startswith("meta.")}  # fmt: skip
        self._compared_by_lower_case: dict[str, list[tuple[str, str]]] = {}
        for field, listed in values.items():
            if field in {"label", "model"} or field.startswith("meta."):
                for value in listed:
                    entry = self._compared_by_lower_case.setdefault(value.lower(), [])
                    entry.append((field, value))

    @classmethod
    def read(cls, store: InferenceReader, reports: ReportStore | None = None) -> "StoredWords":
        """Return the words of all that the caller sees."""
        values: dict[str, list[str]] = {}
        with suppress(QueryError, NotFoundError):
            for facet in find_facets(store, FacetsRequest({}, None, _VALUES, 2)).facets:
                listed = values.setdefault(facet.field, [])
                listed += [entry.value for entry in facet.values if isinstance(entry.value, str)]
        if "label" in values:
            values["best"] = values["label"]
        return cls(values, None if reports is None else read_outcomes(reports))

    def is_stored(self, field: str) -> bool:
        """Check whether some inferences have a field."""
        return field in self._values

    def has(self, field: str, value: str) -> bool:
        """Check whether a value is one of those of a field."""
        return value in self._values.get(field, ())

    def keys_named(self, name: str) -> list[str]:
        """Return the key of the metadata of a name, in any letter case; none if it is not stored."""
        key = self._keys.get(name.strip('"').lower())
        return [] if key is None else [key]

    def keys_like(self, name: str) -> list[str]:
        """Return the keys of the metadata that a name may mean, the nearest first."""
        keys = self._keys
        sought = name.removeprefix("meta.").lower()
        parts_of = [key for short, key in keys.items() if sought in re.split(r"[._\W]+", short)]
        near = [keys[match] for match in _near_names(sought, keys)]
        exact = [keys[sought]] if sought in keys else []
        return list(dict.fromkeys([*exact, *parts_of, *near]))[:MAX_OFFERED]

    def values_like(self, field: str, value: str) -> list[str]:
        """Return the values of a field that one may mean: in other letters, the beginning of one, or nearly the same."""
        by_lower_case: dict[str, str] = {}
        for known in self._values.get(field, ()):
            by_lower_case.setdefault(known.lower(), known)
        sought = value.lower()
        if sought in by_lower_case:
            return [by_lower_case[sought]]
        begun = [known for lower, known in by_lower_case.items() if len(sought) > 1 and lower.startswith(sought)]  # fmt: skip
        near = [by_lower_case[match] for match in _near_names(sought, by_lower_case)]
        return list(dict.fromkeys([*begun, *near]))[:MAX_OFFERED]

    def comparisons_with(self, value: str) -> list[str]:
        """Return comparisons of labels, models and metadata with a value that is stored, in any letter case."""
        stored = self._compared_by_lower_case.get(value.lower(), [])
        return [comparison_text(field, known) for field, known in stored[:MAX_OFFERED]]

    def example(self, field: str) -> str:
        """Return a comparison of a field with its most frequent value; an empty text if there is none."""
        values = self._values.get(field, ())
        return comparison_text(field, values[0]) if values else ""

    def metadata_example(self) -> str:
        """Return a comparison of a key of the metadata with a value of it; an empty text if none has texts."""
        examples = (self.example(field) for field in self._values if field.startswith("meta."))
        return next(filter(None, examples), "")


def corrections(line: str, words: StoredWords, today: date) -> list[Correction]:
    """Return the lines that somebody may have meant by one that is no filter, or that finds nothing.

    Args:
        line: What was typed.
        words: What is stored.
        today: The day in UTC.
    """
    if len(line) > _MAX_READ:
        return []
    meanings_of_parts = [
        _meanings(part.text, words, today) or [_Meaning(part.text)]
        for part in parts(_CONJUNCTION.sub(lambda match: match[1] or " & ", line))
    ]
    # Of several wrong parts the first meanings stand together; of one each of its meanings is offered.
    longest = max(meanings_of_parts, key=len, default=[])
    typed = joined(as_part(part.text) for part in parts(line))
    offered = []
    for number in range(len(longest)):
        chosen = [meanings[min(number, len(meanings) - 1)] for meanings in meanings_of_parts]
        corrected = joined(as_part(meaning.line) for meaning in chosen)
        if corrected != typed and check(corrected) is None:
            words_of_all = "; ".join(meaning.words for meaning in chosen if meaning.words)
            offered.append(Correction(corrected, words_of_all))
    return list(dict.fromkeys(offered))[:MAX_OFFERED]


def _meanings(typed: str, words: StoredWords, today: date) -> list[_Meaning]:
    """Return what one part may mean; nothing for one that is right, as far as that is known."""
    if typed.startswith(("(", "!")):
        return []
    if (
        '"' not in typed
        and _ALTERNATIVE.search(typed)
        and (meanings := _alternatives(typed, words, today))
    ):
        return meanings
    match = _COMPARISON.fullmatch(typed.strip())
    if match is None:
        return _of_words(" ".join(typed.lower().split()), words, today)
    name, sign, operand = match[1].strip(), match[2].strip().lower(), match[3].strip()
    sign = " ".join(sign.split()).replace(" :", ":")
    field = _field_of(name)
    operator = _SIGNS[sign]
    is_alternative = '"' not in operand and _ALTERNATIVE.search(operand)
    if operator and (is_alternative or _OPERATOR.match(operand)):
        return []
    keys = words.keys_like(name) if field is None else [] if field == name else words.keys_named(name)  # fmt: skip
    of_keys = [_Meaning(_compared(key, operator, operand, words)) for key in keys]
    if field is None:
        return of_keys
    return of_keys + _of_known_field(
        field, operator, operand, typed=typed, words=words, today=today
    )


def _of_known_field(
    field: str, operator: str, operand: str, *, typed: str, words: StoredWords, today: date
) -> list[_Meaning]:
    """Return what a comparison of a field of the filter, or of a score, may mean."""
    if field == "box=score":
        return _of_score(operator, operand)
    if field == "ts":
        bound = _OPERATOR.match(operand)
        moment = operand[bound.end() :].strip() if bound and not operator else operand
        if (phrase := _day(moment) or _phrase(moment.lower(), today)) is not None:
            return _of_time(bound[0] if bound and not operator else operator, phrase)
    if field.startswith("meta.") and not words.is_stored(field):
        keys = words.keys_like(field)
        return [_Meaning(_compared(key, operator, operand, words)) for key in keys]
    value = _first_piece(field, operand)
    rest = operand[len(value) :]
    plain = value.strip().strip('"')
    if not operator and not _OPERATOR.match(operand) and not words.has(field, plain):
        near = words.values_like(field, plain)
        if near:
            return [_Meaning(comparison_text(field, known) + rest) for known in near]
    corrected = f"{_name_text(field)}={operator}{operand}"
    is_same = corrected.replace(" ", "") == typed.replace(" ", "")
    return [] if is_same else [_Meaning(corrected)]


def _of_time(operator: str, phrase: _Meaning) -> list[_Meaning]:
    """Return the comparison of the time with a day or another phrase: all of it, or what is before, until, since or after it.

    Nothing is after what goes on until now, such as today: there `>` is since its beginning, too.
    """
    begin, *end = (part.text for part in parts(phrase.line))
    if not begin.startswith("ts=ge:") or operator not in {"", "eq:", "gt:", "ge:", "le:", "lt:"}:
        return []
    if operator == "gt:" and end:
        return [_Meaning(text.replace("lt:", "ge:", 1)) for text in end]
    if operator in {"gt:", "ge:"}:
        return [_Meaning(begin)]
    if operator == "le:":
        return [_Meaning(text) for text in end]
    return [_Meaning(begin.replace("ge:", "lt:", 1))] if operator == "lt:" else [phrase]


def _of_score(operator: str, operand: str) -> list[_Meaning]:
    """Return the comparison of a score, which may be in percent."""
    match = re.fullmatch(r"((?:eq|gt|ge|lt|le):)?\s*(\d+(?:[.,]\d+)?|[.,]\d+)\s*(%?)", operand)
    if match is None or operator == "ne:":
        return []
    number = float(match[2].replace(",", "."))
    score = number / 100 if match[3] or 1 < number <= 100 else number
    bound = match[1] or operator or "ge:"
    words = TEXTS.get(f"phrase_score_{bound[:2]}", "")
    return [_Meaning(f"box=score:{bound}{score:.6g}", words.format(score=f"{score:.6g}"))]


def _of_words(typed: str, words: StoredWords, today: date) -> list[_Meaning]:
    """Return what words without a comparison may mean: a phrase, a stored value or key, or several of these."""
    if (phrase := _day(typed) or _phrase(typed, today)) is not None:
        return [phrase]
    if outcomes := words.outcomes.get(typed):
        return [_Meaning(outcome.line, outcome.words) for outcome in outcomes]
    if comparisons := words.comparisons_with(typed):
        return [_Meaning(comparison) for comparison in comparisons]
    if combined := _of_several_words(typed.split(), words, today):
        return [combined]
    examples = [words.example(key) for key in words.keys_like(typed)]
    near = [comparison_text("label", label) for label in words.values_like("label", typed)]
    return [_Meaning(line) for line in [*near, *filter(None, examples)]][:MAX_OFFERED]


def _of_several_words(typed: Sequence[str], words: StoredWords, today: date) -> _Meaning | None:
    """Return what several phrases and values in one row mean together; None unless all are understood."""
    meanings: list[_Meaning] = []
    start = 0
    while start < len(typed):
        for end in range(len(typed), start, -1):
            piece = " ".join(typed[start:end])
            phrase = _phrase(piece, today)
            comparisons = words.comparisons_with(piece) or words.comparisons_with(piece.removesuffix("s"))  # fmt: skip
            if phrase is not None or comparisons:
                meanings.append(phrase or _Meaning(comparisons[0]))
                start = end
                break
        else:
            return None
    words_of_all = "; ".join(meaning.words for meaning in meanings if meaning.words)
    return (
        _Meaning(joined(meaning.line for meaning in meanings), words_of_all) if meanings else None
    )


def _alternatives(typed: str, words: StoredWords, today: date) -> list[_Meaning]:
    """Return what alternatives mean that were joined by the word `or`; several where a name may be that of several keys."""
    pieces = [piece.strip() for piece in _ALTERNATIVE.split(typed)]
    field, first = field_and_rest(pieces[0])
    name = field.removesuffix("=").strip()
    values = [value.strip() for value in (first, *(piece.removeprefix(field) for piece in pieces[1:]))]  # fmt: skip
    if field and not any(re.search(r"[=<>:]", value) for value in values):
        return [
            _Meaning(f"{_name_text(meant)}=in:{','.join(_value_text(meant, value, words) for value in values)}")
            for meant in _fields_of(name, words)
        ]  # fmt: skip
    if not all(field_and_rest(piece)[0] or _of_words(piece, words, today) for piece in pieces):  # fmt: skip
        return []
    lines = [piece if check(piece) is None else next(iter(_meanings(piece, words, today)), _Meaning(piece)).line
             for piece in pieces]  # fmt: skip
    return [_Meaning(" | ".join(as_part(line) for line in lines))]


def _fields_of(name: str, words: StoredWords) -> list[str]:
    """Return the field that a name means, or the keys of the metadata that it may mean."""
    field = _field_of(name)
    if field is None or (field.startswith("meta.") and not words.is_stored(field)):
        return words.keys_like(name if field is None else field)
    return [field]


def _value_text(field: str, value: str, words: StoredWords) -> str:
    near = [] if words.has(field, value) else words.values_like(field, value)
    return field_and_rest(comparison_text("meta.value", near[0] if near else value))[1]


def _day(typed: str) -> _Meaning | None:
    """Return the comparison that a date stands for, as `2026-01-31`; None for what is none."""
    try:
        day = date.fromisoformat(typed) if _DATE.fullmatch(typed) else None
        return None if day is None else _Meaning(_day_line(day, day + timedelta(days=1)))
    except (ValueError, OverflowError):
        return None


def _phrase(typed: str, today: date) -> _Meaning | None:
    """Return the comparison that words stand for by themselves; None for others."""
    phrase = _phrases_by_name(today).get(typed)
    return None if phrase is None else _Meaning(phrase.line, TEXTS[phrase.meaning])


@lru_cache(maxsize=2)
def _phrases_by_name(today: date) -> Mapping[str, Phrase]:
    return {name: phrase for phrase in reversed(phrases(today)) for name in phrase.names}


def _field_of(name: str) -> str | None:
    """Return the field that a name means; None for one that may be a key of the metadata."""
    plain = name.strip('"')
    if plain in _KNOWN or plain.startswith(("meta.", "std.")):
        return plain
    lower = " ".join(plain.lower().split())
    if lower in _KNOWN:
        return lower
    return next((field for field, names in FIELD_SYNONYMS.items() if lower in names), None)


def _compared(key: str, operator: str, operand: str, words: StoredWords) -> str:
    """Return the comparison of a key with an operand, whose value is completed to a stored one where one is near."""
    plain = operand.strip('"')
    near = [] if operator or _OPERATOR.match(operand) or words.has(key, plain) else words.values_like(key, plain)  # fmt: skip
    return comparison_text(key, near[0]) if near else f"{_name_text(key)}={operator}{operand}"


def _first_piece(field: str, operand: str) -> str:
    """Return the value of an operand: of a label what stands before its bounds."""
    if field != "label":
        return operand
    match = re.match(r'"(?:[^"\\]|\\.)*"|[^:]*', operand)
    return match[0] if match else operand


def _name_text(field: str) -> str:
    return field_and_rest(comparison_text(field, 0))[0].removesuffix("=")


class MeantLine(msgspec.Struct, frozen=True):
    """Another filter that may have been meant, as a link."""

    line: str
    words: str
    """What it finds, in words and with the number of inferences."""
    link: str


def explained(store: InferenceReader, line: str) -> Problem | None:
    """Return why a line is no filter, with an example of what is stored; None if it is one."""
    problem = check(line)
    if problem is not None and EXAMPLE in problem.message:
        with suppress(NotReadyError, QueryTimeoutError):
            return check(line, StoredWords.read(store).metadata_example() or EXAMPLE)
    return problem


def meant_lines(
    store: InferenceReader, line: str, links: FilterLinks, reports: ReportStore | None = None
) -> list[MeantLine]:
    """Return the filters that may have been meant by one that is none, or finds nothing; those that find something first.

    Args:
        store: What the caller sees of the store.
        line: What was typed.
        links: Makes the links of the page.
        reports: The reports that the caller may see; None to do without those of evaluations.
    """
    today = datetime.now(UTC).date()
    meant: list[tuple[bool, MeantLine]] = []
    with suppress(NotReadyError, QueryTimeoutError):  # the page says without them what is wrong
        for correction in corrections(line, StoredWords.read(store, reports), today):
            with suppress(QueryError, NotFoundError):
                counted = store.count(QueryRequest(correction.line))
                count = f"{counted.count:,}{'' if counted.is_exact else TEXTS['or_more']}"
                words = ", ".join(filter(None, (correction.words, text("found_count", n=count))))
                link = links.to(correction.line)
                meant.append((not counted.count, MeantLine(correction.line, words, link)))
    return [shown for _, shown in sorted(meant, key=lambda entry: entry[0])]


SHOWN_TEXTS = (
    "suggestions", "suggestions_count", "recent", "forget_recent", "one_equals", "full_name", "right_form", "from_day", "until_day",
    "on_day", "last_hour", "last_day", "last_week", "value_of", "and_score", "at_least_score", "about",
)  # fmt: skip
"""Names of the texts that the script shows."""

_OTHER_OPERATORS = {"label": ("ne", "in"), "best": ("ne", "in"), "box": (), "geo": ("exists",)}
"""Operators of the fields that are a kind of their own."""

_FIRST_FIELDS = (
    "model", "label", "ts", "ground_truth", "ground_truth.review", "box", "latency_ms", "status", "predictions",
)  # fmt: skip

_REVIEWS = ("needs_review", "approved", "rejected")


def filter_words() -> dict[str, Any]:
    """Return what the script completes with, besides the values that are stored; it takes it as JSON.

    Returns:
        `fields`: name, kind and words of each, in the order in which they are offered. `operators`: of each kind, with their
        words. `properties`: what a prediction is bounded by, with its words. `values`: those that a field can have at all.
        `names`: fields by other words for them. `outcomes`: words that evaluations have filters for, with what they find. `phrases`: words that stand for a comparison, with it and what it finds.
        `texts`: what else is shown.
    """
    kinds = {
        **FIELDS,
        **dict.fromkeys(SIGNAL_FIELDS, "number"),
        **{name: name for name in _OTHER_OPERATORS},
    }
    names = [*_FIRST_FIELDS, *(name for name in kinds if name not in _FIRST_FIELDS)]
    operators = dict[str, tuple[str, ...]](OPERATORS.items()) | _OTHER_OPERATORS
    return {
        "fields": [[name, kinds[name], _words_of_field(name)] for name in names],
        "operators": {
            kind: [[name, OPERATOR_WORDS["time" if kind == "time" else "value"][name]] for name in of_kind]
            for kind, of_kind in operators.items()
        },
        "bounds": [[name, OPERATOR_WORDS["value"][name]] for name in BOUNDS],
        "properties": [[name, FIELD_WORDS[f"of.{name}"]] for name in (*PROPERTIES, "n")],
        "values": {"ground_truth.review": list(_REVIEWS)},
        "names": {name: field for field, names in FIELD_SYNONYMS.items() for name in names},
        "phrases": [[[*phrase.names], phrase.line, TEXTS[phrase.meaning]] for phrase in phrases(datetime.now(UTC).date())],
        "outcomes": [[[*names], TEXTS[f"outcome_{kind}"]] for kind, names in OUTCOME_NAMES.items()],
        "texts": {name: TEXTS[name] for name in SHOWN_TEXTS},
    }  # fmt: skip


def _words_of_field(field: str) -> str:
    return FIELD_WORDS["sig.image" if field.startswith("sig.image.") else field]


MAX_EVALUATIONS = 3
"""Models whose newest evaluations are looked at."""
_MAX_CELLS = 50
"""Labels of a filter; a matrix in which more of them were taken for others has none."""


class _Evaluation(msgspec.Struct, frozen=True):
    """The fields of a report that say which cells it has."""

    model: ReportedModel
    created: str
    confusion: Confusion | None = None


def read_outcomes(reports: ReportStore) -> dict[str, list[Outcome]]:
    """Return the filters that each word of `OUTCOME_NAMES` stands for, those of the newest evaluation first."""
    outcomes: dict[str, list[Outcome]] = {name: [] for names in OUTCOME_NAMES.values() for name in names}  # fmt: skip
    for report_id, evaluation in _newest(reports):
        lines = outcome_lines(report_id, evaluation.confusion or Confusion())
        words = {
            "model": f"{evaluation.model.name} {evaluation.model.version}",
            "day": day(evaluation.created),
        }
        for kind, line in lines.items():
            for name in OUTCOME_NAMES[kind]:
                outcomes[name].append(Outcome(line, text(f"phrase_{kind}", **words)))
    return outcomes


def outcome_lines(report_id: str, confusion: Confusion) -> dict[str, str]:
    """Return the filters of what a report says was missed, and of all that was wrong, as far as there is some."""
    report = comparison_text("report", report_id)
    missed = [joined([report, comparison_text("predicted", "")])] if any(confusion.misses.values()) else []  # fmt: skip
    false = [joined([report, comparison_text("truth", "")])] if any(confusion.hallucinations.values()) else []  # fmt: skip
    taken = [
        joined([report, comparison_text("truth", label), choice_text("predicted", others)])
        for label, others in _taken_for_others(confusion)
    ]
    wrong = [*missed, *false, *taken] if len(taken) <= _MAX_CELLS else []
    alternatives = {"missed": missed, "wrong": wrong}
    return {
        kind: parts[0] if len(parts) == 1 else " | ".join(f"({part})" for part in parts)
        for kind, parts in alternatives.items()
        if parts
    }


def _taken_for_others(confusion: Confusion) -> Iterator[tuple[str, list[str]]]:
    """Yield each label with those that it was taken for."""
    for place, (label, row) in enumerate(zip(confusion.labels, confusion.matrix, strict=False)):
        others = [
            other
            for column, (other, count) in enumerate(zip(confusion.labels, row, strict=False))
            if count and column != place
        ]
        if others:
            yield label, others


def _newest(reports: ReportStore) -> Iterator[tuple[str, _Evaluation]]:
    """Yield the id and the content of the newest evaluation of each model; damaged ones are left out."""
    newest: Mapping[str, str] = {
        summary.model.name: summary.id
        for summary in reversed(reports.all())
        if summary.kind == "evaluation"
    }
    for report_id in sorted(newest.values(), reverse=True)[:MAX_EVALUATIONS]:
        try:
            yield report_id, reports.decode(report_id, _Evaluation)
        except StoreError:
            continue
