"""Log-in of people: the authorization code flow with PKCE, from the first redirect to the claims.

Source: OpenID Connect Core 1.0, section 3.1; RFC 7636 (PKCE); RFC 9700, security of OAuth 2.0.
"""

import hmac
import secrets
import time
from typing import Any

import httpx2
import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import OAuth2Client

from quadriga.engine.access.sessions import CookieSigner, own_path
from quadriga.extras.sign_on.provider import TIMEOUT_S, Addresses, BadToken, Provider
from quadriga.extras.sign_on.settings import SignOnSettings

LOG_IN_S = 600
"""Time from the first redirect to the provider's answer."""


class LogInState(msgspec.Struct, frozen=True):
    """What the browser keeps while its user is at the provider; nonce and code verifier follow from it, and stay here."""

    state: str
    next_path: str
    redirect_uri: str
    expires_s: int


class LogInError(Exception):
    """A log-in has failed; the message is for the person, `detail` for the log."""

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail or message


class NoLogIn(LogInError):
    """Nobody has begun this log-in here, or long ago."""


class ProviderAway(LogInError):
    """The provider does not answer."""


class LogIn:
    """Takes people to the provider and back.

    Args:
        settings: Settings of single sign-on.
        provider: The provider.
        signer: Signs what the browser keeps meanwhile.
    """

    def __init__(self, settings: SignOnSettings, provider: Provider, signer: CookieSigner) -> None:
        self._settings = settings
        self._provider = provider
        self._signer = signer

    def begin(self, next_path: str, redirect_uri: str) -> tuple[str, str]:
        """Return the URL at the provider, and the value of the cookie for the time until its answer.

        Raises:
            ProviderAway: Where the provider is, is not known yet.
        """
        state = LogInState(
            state=secrets.token_urlsafe(32),
            next_path=own_path(next_path),
            redirect_uri=redirect_uri,
            expires_s=int(time.time()) + LOG_IN_S,
        )
        addresses = self._addresses()
        with self._client(addresses, redirect_uri) as client:
            url, _ = client.create_authorization_url(
                addresses.authorization_endpoint,
                state=state.state,
                nonce=self._signer.derive(f"nonce {state.state}"),
                code_verifier=self._verifier(state),
            )
        return url, self._signer.sign(state)

    def opened(self, cookie: str, state: str) -> LogInState:
        """Return the log-in that a browser has begun, by its cookie and the provider's parameter `state`.

        Raises:
            NoLogIn: There is none.
        """
        begun = self._signer.read(cookie, LogInState)
        if begun is None or time.time() >= begun.expires_s:
            raise NoLogIn("This log-in was not begun here, or too long ago.")
        if not hmac.compare_digest(begun.state.encode(), state.encode("utf-8", "replace")):
            raise NoLogIn("Another log-in was begun in this browser meanwhile.")
        return begun

    def claims(self, begun: LogInState, code: str) -> dict[str, Any]:
        """Return the claims of the person whom the provider has sent with a code.

        Raises:
            ProviderAway: The provider does not answer.
            LogInError: The provider refuses the code, or its token does not count.
        """
        addresses = self._addresses()
        try:
            with self._client(addresses, begun.redirect_uri) as client:
                answer = client.fetch_token(
                    addresses.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=self._verifier(begun),
                )
                claims = self._checked(begun, answer.get("id_token"))
                if addresses.userinfo_endpoint and answer.get("access_token"):
                    claims = self._with_user_info(client, addresses, claims)
                return claims
        except httpx2.HTTPError as error:
            raise _away(f"{type(error).__name__}: {error}") from error
        except (AuthlibBaseError, msgspec.MsgspecError, ValueError, TypeError) as error:
            raise LogInError("The provider did not accept this log-in.", str(error)) from error

    def _checked(self, begun: LogInState, token: object) -> dict[str, Any]:
        """Return the claims of an ID token.

        Source: OpenID Connect Core 1.0, section 3.1.3.7.
        """
        client_id = self._settings.client_id
        if not isinstance(token, str):
            raise LogInError("The provider sent no ID token.")
        try:
            claims = self._provider.claims(token, client_id, is_key_named=False)
        except BadToken as error:
            raise LogInError(
                "The provider sent a token that does not count.", str(error)
            ) from error
        nonce = str(claims.get("nonce", ""))
        if not hmac.compare_digest(
            nonce.encode("utf-8", "replace"), self._signer.derive(f"nonce {begun.state}").encode()
        ):
            raise LogInError("The provider sent a token of another log-in.")
        if claims.get("azp", client_id) != client_id or not isinstance(claims.get("sub"), str):
            raise LogInError("The provider sent a token for another client.")
        return claims

    def _with_user_info(
        self, client: OAuth2Client, addresses: Addresses, claims: dict[str, Any]
    ) -> dict[str, Any]:
        """Return claims with those that the provider has at its UserInfo endpoint only, such as groups."""
        answer = client.get(addresses.userinfo_endpoint)
        if answer.status_code != httpx2.codes.OK or not answer.headers.get(
            "content-type", ""
        ).startswith("application/json"):
            return claims
        more = msgspec.json.decode(answer.content, type=dict[str, Any])
        if more.get("sub") != claims["sub"]:  # OpenID Connect Core 1.0, section 5.3.2
            raise LogInError("The provider sent claims of another person.")
        return {**more, **claims}

    def _addresses(self) -> Addresses:
        if (addresses := self._provider.addresses) is None:
            raise _away("it has not answered yet")
        return addresses

    def _client(self, addresses: Addresses, redirect_uri: str) -> OAuth2Client:
        secret = self._settings.client_secret
        methods = addresses.token_endpoint_auth_methods_supported
        is_basic = "client_secret_basic" in methods or "client_secret_post" not in methods
        method = ("client_secret_basic" if is_basic else "client_secret_post") if secret else "none"
        return OAuth2Client(
            self._settings.client_id,
            secret or None,
            token_endpoint_auth_method=method,
            scope=self._settings.scopes,
            redirect_uri=redirect_uri,
            code_challenge_method="S256",
            verify=self._provider.tls,
            timeout=TIMEOUT_S,
        )

    def _verifier(self, begun: LogInState) -> str:
        return self._signer.derive(f"verifier {begun.state}")


def _away(detail: str) -> ProviderAway:
    return ProviderAway("The identity provider does not answer. Try again in a moment.", detail)
