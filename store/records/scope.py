"""Scope: which records a caller may see. What a scope leaves out is, for its caller, not there."""

import re
from fnmatch import fnmatchcase
from typing import Protocol, TypeVar

import msgspec

from quadriga.quoting import quoted
from quadriga.store.records.errors import StoreError
from quadriga.store.records.records import live_name

DEFAULT_OWNER = "default"
"""Owner of the statements of whoever belongs to no team."""

MAX_TEAM = 64
_TEAM = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_TEAM - 1}}}", re.ASCII)
_WILDCARDS = frozenset("*?[")
ViewT_co = TypeVar("ViewT_co", covariant=True)


class Scope(msgspec.Struct, frozen=True, omit_defaults=True):
    """Records of a team and of some models. Whoever belongs to no team sees the records of every team."""

    team: str = ""
    """Team whose records are seen, and whose the records, jobs and files are that are made; empty for none."""
    models: tuple[str, ...] = ()
    """Patterns of the models whose records are seen, such as `shapes-*`; empty for all models."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.team and not self.models

    @property
    def owner(self) -> str:
        """Owner of what is stated within the scope about inferences: the team, or `default` for none."""
        return owner_of(self.team)

    def admits_model(self, name: str) -> bool:
        """Check whether records of a model may be seen; those of its replays may, if those of the model may."""
        names = {name, live_name(name)}
        return not self.models or any(
            fnmatchcase(admitted, pattern) for pattern in self.models for admitted in names
        )

    def admits(self, model: str, team: str) -> bool:
        """Check whether the records of a team about a model may be seen."""
        return self.team in ("", team) and self.admits_model(model)

    def covers(self, other: "Scope") -> bool:
        """Check whether whatever is within another scope certainly is within this one."""
        if self.team not in ("", other.team):
            return False
        patterns = set(self.models)
        return not patterns or (
            bool(other.models)
            and all(
                model in patterns or (not _WILDCARDS & set(model) and self.admits_model(model))
                for model in other.models
            )
        )


EVERYTHING = Scope()
"""Scope of whoever works on the data folder itself, and of callers without a team whose key is for all models."""


class Scoped(Protocol[ViewT_co]):
    """What can be used within a scope alone, so that no caller of it can forget the scope."""

    def within(self, scope: Scope) -> ViewT_co:
        """Return a view that shows what the scope admits, and makes what belongs to its team."""


def owner_of(team: str) -> str:
    """Return the owner of statements of a team, empty for none."""
    return team or DEFAULT_OWNER


def check_team(team: str) -> None:
    """Check the name of a team; empty for none.

    Raises:
        StoreError: It is too long, has other characters, or has another meaning.
    """
    if team and (team == DEFAULT_OWNER or _TEAM.fullmatch(team) is None):
        raise StoreError(
            f"expected a team of at most {MAX_TEAM} letters, digits, -, _ and ., which begins with a letter or a digit "
            f"and is not {DEFAULT_OWNER!r}, got {quoted(team, 80)}"
        )
