"""Callers that an identity provider vouches for, as their claims say."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from quadriga.engine.config.claim_roles import RoleEntry, granted
from quadriga.proto.access import ROLES, Caller, Role

_MAX_NAME = 200
_NAMES = ("email", "preferred_username", "upn", "name", "azp", "client_id", "appid", "sub")
"""Claims that can be a name for logs, the best first."""

NO_ROLE = "expected claims that the setting oidc_roles gives a role, got none"


def caller_of_claims(claims: Mapping[str, Any], entries: Sequence[RoleEntry]) -> Caller:
    """Return the caller that verified claims describe; one without rights if they give no role."""
    roles, team = granted(entries, claims)
    return caller_with(person_id(claims), person_name(claims), roles=sorted(roles), team=team)


def caller_with(key_id: str, name: str, *, roles: Sequence[str], team: str) -> Caller:
    """Return a caller with roles; one without rights for no role."""
    rights = frozenset(right for role in roles for right in _rights(role))
    return Caller(name=name, key_id=key_id, rights=rights, team=team, refusal=NO_ROLE)


def person_name(claims: Mapping[str, Any]) -> str:
    """Return a name for logs; an e-mail address that the provider has not verified is none."""
    for claim in _NAMES:
        value = claims.get(claim)
        if claim == "email" and claims.get("email_verified") is False:
            continue
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value.strip()[:_MAX_NAME]
    return "nameless"


def person_id(claims: Mapping[str, Any]) -> str:
    """Return an id that stays the same whatever the name: of issuer and subject, as only both together are unique."""
    subject = f"{claims.get('iss')} {claims['sub']}"
    return f"oidc-{hashlib.sha256(subject.encode('utf-8', 'replace')).hexdigest()[:12]}"


def _rights(role: str) -> tuple[Role, ...]:
    return ROLES.get(role, ())  # type: ignore[call-overload, no-any-return]  # a role of another version has no rights
