"""Single sign-on of one server: who a token or a cookie belongs to, and how people get theirs."""

import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.access.sessions import (
    SESSION_COOKIE,
    BrowserSession,
    CookieSigner,
    cookie_value,
    server_key,
)
from quadriga.engine.config.settings import SESSION_HOURS, Settings
from quadriga.extras.sign_on.log_in import LogIn, LogInError, LogInState
from quadriga.extras.sign_on.provider import BadToken, KeysAway, Provider
from quadriga.extras.sign_on.settings import (
    RoleEntry,
    SignOnSettings,
    granted,
    parse_role_entries,
)
from quadriga.proto.access import ROLES, STRANGER, Caller, Role

_MAX_NAME = 200
_NAMES = ("email", "preferred_username", "upn", "name", "azp", "client_id", "appid", "sub")
"""Claims that can be a name for logs, the best first."""

NO_ROLE = "expected claims that the setting extras.sign_on.roles gives a role, got none"


class NoRole(LogInError):
    """The provider knows the person, and the setting gives them no role here."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(f"{caller.name} has no role here. Ask who runs this server.", "no role")
        self.caller = caller


class PersonSession(BrowserSession, frozen=True, kw_only=True):
    """The content of the cookie of a person's session."""

    name: str
    roles: tuple[str, ...]
    team: str = ""

    @property
    def caller(self) -> Caller:
        """Caller of the requests of this session."""
        return _caller(self.key_id, self.name, roles=self.roles, team=self.team)


class SignOn:
    """Single sign-on; safe to use from several threads.

    Args:
        settings: Settings of the server.
        keys: The keys, which know the sessions that were ended, in all servers that share the database.
    """

    def __init__(self, settings: Settings, keys: KeyRing) -> None:
        own = msgspec.convert(settings.extras["sign_on"], SignOnSettings)
        key = server_key(settings)
        # Sessions and log-ins count for the settings that they began with.
        scope = f"{own.issuer} {own.client_id} {own.roles}"
        self._keys = keys
        self._entries = parse_role_entries(own.roles)
        self._audience = own.audience or own.client_id
        self._seconds = round(SESSION_HOURS * 3600)
        self._signer = CookieSigner(key, f"session {scope}")
        self._provider = Provider(own.issuer)
        self.log_in = LogIn(own, self._provider, CookieSigner(key, f"log-in {scope}"))
        self.host = urlsplit(own.issuer).netloc
        """Host of the provider."""

    def start(self) -> None:
        """Ask the provider for its keys, in a thread that ends with the process."""
        self._provider.start()

    def close(self) -> None:
        """Ask the provider no more."""
        self._provider.close()

    def caller_of_token(self, token: str) -> Caller:
        """Return the caller of a request that presents a token; one without rights if the token does not count."""
        try:
            return caller_of_claims(self._provider.claims(token, self._audience), self._entries)
        except KeysAway as error:
            return msgspec.structs.replace(STRANGER, refusal=str(error), is_known=False)
        except BadToken as error:
            return msgspec.structs.replace(STRANGER, refusal=str(error))

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""
        session = self.find(cookies)
        return None if session is None else session.caller

    def begin(
        self, begun: LogInState, code: str | None, problem: str | None = None
    ) -> tuple[PersonSession, str]:
        """Return the session of the person whom the provider has sent back, and the value of its cookie.

        Args:
            begun: The log-in.
            code: Code that the provider has sent with the person.
            problem: The error that it has sent instead.

        Raises:
            LogInError: It has failed, or the person has no role.
        """
        if not code:
            detail = f"the provider says {problem or 'nothing'!r:.100}"
            raise LogInError("The provider did not let you in.", detail)
        claims = self.log_in.claims(begun, code)
        caller, (roles, _) = caller_of_claims(claims, self._entries), granted(self._entries, claims)
        if not roles:
            raise NoRole(caller)
        return self.new_session(caller, sorted(roles))

    def new_session(self, caller: Caller, roles: Sequence[str]) -> tuple[PersonSession, str]:
        """Return a new session of a caller with roles, and the value of its cookie."""
        session = PersonSession(
            id=secrets.token_hex(16),
            key_id=caller.key_id,
            name=caller.name,
            roles=tuple(roles),
            team=caller.team,
            expires_s=int(time.time()) + self._seconds,
        )
        return session, self._signer.sign(session)

    def find(self, cookies: bytes | None) -> PersonSession | None:
        """Return the session of a header `Cookie`; None if there is none, or it has ended."""
        text = cookie_value(cookies, SESSION_COOKIE)
        return self._signer.read_session(text, PersonSession, self._keys.is_ended)

    def end(self, session: BrowserSession, name: str) -> None:
        """Let a session count no more, here and in every server that shares the database."""
        self._keys.end_session(session.id, name, session.expires_s * 1000)


def caller_of_claims(claims: Mapping[str, Any], entries: Sequence[RoleEntry]) -> Caller:
    """Return the caller that verified claims describe; one without rights if they give no role."""
    roles, team = granted(entries, claims)
    return _caller(person_id(claims), person_name(claims), roles=sorted(roles), team=team)


def _caller(key_id: str, name: str, *, roles: Sequence[str], team: str) -> Caller:
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
