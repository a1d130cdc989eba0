"""Names of models: a model is called by its folder's name or by its id `m-<name>`, in any letter case.

Every path, command and protocol that takes the name of a model finds the model by `find_model_name`.
"""

import difflib
from collections.abc import Callable, Collection, Iterable

from quadriga.quoting import MAX_MODEL_NAME, quoted
from quadriga.store.query.filters.syntax import Compare, Filter, leaves
from quadriga.store.query.sql.catalog import model_spellings, split_version
from quadriga.store.records.errors import NotFoundError

_MAX_LISTED = 5

NamesOf = Callable[[], Collection[str]]


def find_model_name(name: str, names: Iterable[str]) -> str | None:
    """Return which of some models a name means; None if it means none.

    The exact name comes first, then the name in another letter case, then the one that has `name` as its id, and
    last the one whose name is the id: with the folders `bar` and `m-bar`, `m-bar` is the second.
    """
    if len(name) > MAX_MODEL_NAME:
        return None
    names = set(names)
    if name in names:
        return name
    by_lower_case: dict[str, str] = {}
    for known in sorted(names):
        by_lower_case.setdefault(known.lower(), known)
    candidates = model_spellings(name)
    return next((by_lower_case[text] for text in candidates if text in by_lower_case), None)


class ModelNames:
    """The names of the models of a server and its store.

    Args:
        stored: Returns the names of models that have stored inferences, or had some.
        served: Returns the names of models that the server knows; None where the server is not asked, as in a job:
            then no name counts as unknown.
    """

    def __init__(self, stored: NamesOf, served: NamesOf | None = None) -> None:
        self._stored = stored
        self._served = served

    def resolve(self, name: str) -> str:
        """Return the name of the model that a name means.

        Raises:
            NotFoundError: No model of this name is served or stored; the message has names that are near.
        """
        served = set() if self._served is None else set(self._served())
        if (model_name := find_model_name(name, served)) is not None:
            return model_name
        names = served | set(self._stored())
        model_name = find_model_name(name, names)
        if model_name is not None:
            return model_name
        if self._served is None:
            return name
        raise NotFoundError(unknown_model_text(name, names))

    def check_filter(self, tree: Filter) -> None:
        """Check that the models a filter compares with, with or without a version, are known; raises as `resolve`."""
        if self._served is None:
            return
        for leaf in leaves(tree):
            if (
                isinstance(leaf, Compare)
                and leaf.field == "model"
                and leaf.operator in {"eq", "in"}
            ):
                values = leaf.value if isinstance(leaf.value, tuple) else (leaf.value,)
                for value in values:
                    self.resolve(split_version(str(value))[0])


def unknown_model_text(name: str, names: Collection[str]) -> str:
    """Return the error about a name that no model has, with the names that are near."""
    by_lower_case = {known.lower(): known for known in sorted(names)}
    near = [
        by_lower_case[match]
        for spelling in (model_spellings(name)[:2] if len(name) <= MAX_MODEL_NAME else ())
        for match in difflib.get_close_matches(spelling, by_lower_case, n=_MAX_LISTED)
    ]
    error = f"model not found: {quoted(name, 140)}"
    if near:
        return f"{error}; did you mean {' or '.join(dict.fromkeys(near))}?"
    if not names:
        return f"{error}; there is none"
    hidden_count = len(names) - _MAX_LISTED
    hidden = f" and {hidden_count} more" if hidden_count > 0 else ""
    return f"{error}; there are {', '.join(sorted(names)[:_MAX_LISTED])}{hidden}"
