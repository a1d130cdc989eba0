"""Roles and a team from the claims of an identity provider, by the setting `oidc_roles`.

Entries are separated by commas or line ends; each is `CLAIM:VALUE=ROLE+ROLE@TEAM`, such as `groups:line-4=annotate@quality`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

import msgspec

from quadriga.proto.access import Role
from quadriga.store.errors import StoreError
from quadriga.store.scope import check_team

ANY_VALUE = "*"
"""Value of an entry that any value of its claim fits."""

FORM = "CLAIM:VALUE=ROLE, with +ROLE for more roles and @TEAM for a team"

_SPACED = frozenset({"scope", "scp"})
"""Claims whose value is a list with spaces between (RFC 8693, section 4.2)."""


class RoleEntry(msgspec.Struct, frozen=True):
    """One entry of the setting."""

    claim: str
    value: str
    roles: tuple[Role, ...]
    team: str = ""

    def fits(self, claims: Mapping[str, Any]) -> bool:
        """Check whether claims have the value."""
        values = set(_values(self.claim, claims))
        return bool(values) if self.value == ANY_VALUE else self.value in values


def parse_role_entries(text: str) -> tuple[RoleEntry, ...]:
    """Parse the setting.

    Raises:
        ValueError: An entry has another form, or names a role that there is not.
    """
    return tuple(_parse(part.strip()) for part in re.split(r"[,\n]", text) if part.strip())


def granted(entries: Sequence[RoleEntry], claims: Mapping[str, Any]) -> tuple[frozenset[Role], str]:
    """Return the roles and the team that claims give; no roles if no entry fits.

    The first entry that fits decides the team, and further ones of that team add their roles: nobody sees more than
    the first one says, whatever other groups they are in.
    """
    fitting = [entry for entry in entries if entry.fits(claims)]
    if not fitting:
        return frozenset(), ""
    team = fitting[0].team
    return frozenset(role for entry in fitting if entry.team == team for role in entry.roles), team


def _parse(text: str) -> RoleEntry:
    source, equals, grant = text.rpartition("=")
    claim, colon, value = source.rpartition(":")
    roles, at, team = grant.partition("@")
    claim, value, team = claim.strip(), value.strip(), team.strip()
    if not (equals and colon and claim and value) or bool(at) != bool(team):
        raise ValueError(f"expected {FORM}, got {text!r:.200}")
    names = tuple(name.strip() for name in roles.split("+"))
    for name in names:
        if name not in get_args(Role):
            known = ", ".join(get_args(Role))
            raise ValueError(f"expected a role among {known} in {text!r:.200}, got {name!r:.100}")
    try:
        check_team(team)
    except StoreError as error:
        raise ValueError(f"{error}, in {text!r:.200}") from error
    return RoleEntry(claim, value, names, team)  # type: ignore[arg-type]  # checked above


def _values(claim: str, claims: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of a claim, by a path with dots, such as `realm_access.roles`; a URL is one name."""
    value: Any = claims
    for name in [claim] if "://" in claim else claim.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        yield from value.split() if claim in _SPACED else [value]
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))
