"""Settings of single sign-on, and the roles and teams that they give by claims of the identity provider.

Entries of `roles` are separated by commas or line ends; each is `CLAIM:VALUE=ROLE+ROLE@TEAM`, such as
`groups:line-4=annotate@quality`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

import msgspec

from quadriga.engine.config.settings import described
from quadriga.proto.access import Role
from quadriga.store.records.errors import StoreError
from quadriga.store.records.scope import check_team

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


class SignOnSettings(msgspec.Struct, frozen=True):
    """Settings of single sign-on."""

    # fmt: off
    issuer: Annotated[str, described("OpenID Connect issuer URL. Enables single sign-on.", pattern=r"^(https://[^\s?#]+|http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[^\s?#]*)?)?$", example="https://login.example.org/realms/vision")] = ""
    client_id: Annotated[str, described("OIDC client ID.")] = ""
    client_secret: Annotated[str, described("OIDC client secret. Leave empty for a public client.", secret=True)] = ""
    scopes: Annotated[str, described("OIDC scopes, space-separated.")] = "openid profile email"
    audience: Annotated[str, described("Required `aud` of machine tokens. Default: `client_id`.")] = ""
    roles: Annotated[str, described("Claim-to-role mapping, such as `groups:ops=operate, groups:line-4=annotate@quality`. Users without a match are rejected.", parse=parse_role_entries)] = ""
    # fmt: on

    def __post_init__(self) -> None:
        """Check that a provider has its client and its roles.

        Raises:
            ValueError: One is missing.
        """
        if self.issuer and not self.client_id:
            raise ValueError("client_id is required with issuer")
        if self.issuer and not self.roles.strip(", \n"):
            raise ValueError("roles is required with issuer")
