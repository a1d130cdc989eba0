"""Single sign-on of one server: who a token or a cookie belongs to, and how people get theirs."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from quadriga.engine.config.claim_roles import granted, parse_role_entries
from quadriga.engine.config.settings import Settings
from quadriga.extras.sign_on.log_in import LogIn, LogInError, LogInState
from quadriga.extras.sign_on.people import caller_of_claims
from quadriga.extras.sign_on.provider import BadToken, KeysAway, Provider
from quadriga.engine.access.seals import Seal, server_key
from quadriga.extras.sign_on.sessions import PersonSession, Sessions
from quadriga.proto.access import STRANGER, Caller

EndSession = Callable[[str, str, int], None]


class NoRole(LogInError):
    """The provider knows the person, and the setting gives them no role here."""

    def __init__(self, caller: Caller) -> None:
        super().__init__(f"{caller.name} has no role here. Ask who runs this server.", "no role")
        self.caller = caller


class SignOn:
    """Single sign-on; safe to use from several threads.

    Args:
        settings: Settings of the server.
        is_ended: Returns whether a session was ended, by its id.
        end_session: Lets a session count no more, in all servers that share the database, by its id, the name of the
            person, and the time at which it would have ended in milliseconds since 1970.
    """

    def __init__(
        self, settings: Settings, is_ended: Callable[[str], bool], end_session: EndSession
    ) -> None:
        key = server_key(settings.session_key, Path(settings.data))
        # Sessions and log-ins count for the settings that they began with.
        scope = f"{settings.oidc_issuer} {settings.oidc_client_id} {settings.oidc_roles}"
        self._entries = parse_role_entries(settings.oidc_roles)
        self._audience = settings.oidc_audience or settings.oidc_client_id
        self.provider = Provider(settings)
        self.log_in = LogIn(settings, self.provider, Seal(key, f"log-in {scope}"))
        self.sessions = Sessions(Seal(key, f"session {scope}"), settings.session_hours, is_ended)
        self._end_session = end_session
        self.issuer = settings.oidc_issuer

    def caller_of_token(self, token: str) -> Caller:
        """Return the caller of a request that presents a token; one without rights if the token does not count."""
        try:
            return caller_of_claims(self.provider.claims(token, self._audience), self._entries)
        except KeysAway as error:
            return msgspec.structs.replace(STRANGER, refusal=str(error), is_known=False)
        except BadToken as error:
            return msgspec.structs.replace(STRANGER, refusal=str(error))

    def caller_of_cookies(self, cookies: bytes | None) -> Caller | None:
        """Return the caller whose session a header `Cookie` has; None for none."""
        session = self.sessions.find(cookies)
        return None if session is None else session.caller

    def begin_session(
        self, begun: LogInState, code: str | None, problem: str | None = None
    ) -> tuple[PersonSession, str]:
        """Return the session of the person whom the provider has sent back, and the value of its cookie.

        Args:
            begun: The log-in.
            code: What the provider has sent with the person.
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
        return self.sessions.begin(caller, tuple(sorted(roles)))

    def end_session(self, session: PersonSession) -> None:
        """Let a session count no more."""
        self._end_session(session.id, session.name, session.expires_s * 1000)
