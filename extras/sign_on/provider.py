"""The identity provider: its addresses and keys, which a thread keeps up to date, and the tokens that it has signed.

A request never waits for the provider: what is not known yet is asked for by the thread, at a bounded rate.

Source: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 8725, best practices for JSON Web Tokens.
"""

import hashlib
import logging
import ssl
import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx2
import jwt
import msgspec
from jwt import PyJWK, PyJWKClient
from jwt.exceptions import InvalidSubjectError

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")  # fmt: skip
"""Signatures that count. All have a private key, which the provider alone holds; `none` and secrets of both do not."""

TIMEOUT_S = 5.0
"""Maximum time until the provider accepts a connection, and between two parts of its answer."""

REFRESH_S = 300.0
"""Time until the provider is asked for its keys again, without cause."""

MIN_INTERVAL_S = 10.0
"""Time within which keys that nobody knows make the provider be asked once."""

_MAX_RETRY_S = 30.0
_LEEWAY_S = 30
"""Difference of clocks between the provider and this server."""
_MAX_TOKEN = 16 * 1024
_MAX_VERIFIED = 1024

_log = logging.getLogger(__name__)
logging.getLogger("httpx2").setLevel(logging.WARNING)  # else a line for each request


class Addresses(msgspec.Struct, frozen=True):
    """What the discovery document of the provider says."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class ProviderError(Exception):
    """The provider does not answer, or answers something else than expected; the message is for the log."""


class BadToken(Exception):
    """A token does not count; the message is for the client."""


class KeysAway(BadToken):
    """Whether a token counts is not known before the provider answers."""


class Provider:
    """The provider of one server; safe to use from several threads.

    Args:
        issuer: URL of the provider.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.tls = ssl.create_default_context()
        self.addresses: Addresses | None = None
        self._keys: dict[str, PyJWK] = {}
        self._asked_s = -MIN_INTERVAL_S
        self._answers = False
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._verified: dict[bytes, tuple[dict[str, Any], float]] = {}

    def start(self) -> None:
        """Ask the provider, and go on to do so, in a thread that ends with the process."""
        self._thread = threading.Thread(target=self._run, name="oidc", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ask the provider no more."""
        self._is_closed = True
        self._wake.set()

    def refresh(self) -> None:
        """Ask the provider for its addresses and keys.

        Raises:
            ProviderError: It does not answer as expected; what is known stays.
        """
        try:
            if self.addresses is None:
                self.addresses = self._discover()
            client = PyJWKClient(
                self.addresses.jwks_uri,
                timeout=TIMEOUT_S,
                ssl_context=self.tls,
                cache_jwk_set=False,
            )
            keys = {
                str(key.key_id): key
                for key in client.get_signing_keys()
                if key.key_type in ("RSA", "EC", "OKP") and key.algorithm_name in ALGORITHMS
            }
        except (
            httpx2.HTTPError,
            jwt.PyJWTError,
            msgspec.MsgspecError,
            ValueError,
            OSError,
        ) as error:
            self._answers = False
            raise ProviderError(f"{type(error).__name__}: {error}") from error
        self._keys, self._verified = keys, {}
        self._answers = True

    def claims(self, token: str, audience: str, *, is_key_named: bool = True) -> dict[str, Any]:
        """Return the claims of a token that the provider has signed for an audience, and that is valid now.

        Args:
            token: The token.
            audience: The audience.
            is_key_named: Whether the token must name its key; one that comes from the provider itself need not if there
                is only one key (OpenID Connect Core 1.0, section 10.1).

        Raises:
            KeysAway: The provider has to be asked first.
            BadToken: The token does not count.
        """
        if len(token) > _MAX_TOKEN:
            raise BadToken(f"expected a token of at most {_MAX_TOKEN} characters, got more")
        digest = hashlib.sha256(f"{audience} {token}".encode("utf-8", "replace")).digest()
        known = self._verified.get(digest)
        if known is not None and time.time() < known[1]:
            return known[0]
        verified = self._verified  # a new dict if the keys change meanwhile
        claims, end_s = self._verify(token, audience, is_key_named=is_key_named)
        if len(verified) >= _MAX_VERIFIED:
            verified.clear()
        verified[digest] = (claims, end_s)
        return claims

    def _verify(
        self, token: str, audience: str, *, is_key_named: bool
    ) -> tuple[dict[str, Any], float]:
        """Return the claims of a token, and until when it counts; raises as `claims`."""
        try:
            header = jwt.get_unverified_header(token)
            key_id, algorithm = header.get("kid"), header.get("alg")
            if key_id is None and not is_key_named and len(self._keys) == 1:
                key_id = next(iter(self._keys))
            if algorithm not in ALGORITHMS:
                raise BadToken(
                    f"expected a token signed by one of {', '.join(ALGORITHMS)}, got {algorithm!r:.40}"
                )
            claims = jwt.decode(
                token,
                self._key(key_id),
                algorithms=list(ALGORITHMS),
                audience=audience,
                issuer=self.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
            if not claims["sub"].strip():
                raise jwt.MissingRequiredClaimError("sub")  # its holders would all be one person
            return claims, float(claims["exp"]) + _LEEWAY_S
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise BadToken(_reason(error)) from error

    def _key(self, key_id: object) -> PyJWK:
        """Return the key that a token names."""
        if not isinstance(key_id, str) or not key_id:
            raise BadToken("expected a token that names its key (kid), got one that does not")
        key = self._keys.get(key_id)
        if key is not None:
            return key
        if self._answers and time.monotonic() - self._asked_s < MIN_INTERVAL_S:
            raise BadToken("expected a token of a key of the identity provider, got one of another")
        self._wake.set()
        raise KeysAway("the keys of the identity provider are asked for: try again")

    def _run(self) -> None:
        wait_s, failing = 0.0, ""
        while not self._is_closed:
            self._wake.clear()
            self._asked_s = time.monotonic()
            try:
                self.refresh()
                wait_s = 0.0
                if failing:
                    _log.info("the identity provider answers")
                failing = ""
            except ProviderError as error:
                wait_s = min(max(1.0, 2 * wait_s), _MAX_RETRY_S)
                if str(error) != failing:
                    _log.warning("the identity provider does not answer as expected: %s", error)
                failing = str(error)
            if wait_s:
                self._pause(wait_s)
                continue
            self._wake.wait(REFRESH_S)
            self._pause(self._asked_s + MIN_INTERVAL_S - time.monotonic())

    def _pause(self, seconds: float) -> None:
        """Wait, whatever strangers ask for."""
        until_s = time.monotonic() + seconds
        while not self._is_closed and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.2))

    def _discover(self) -> Addresses:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        with httpx2.Client(verify=self.tls, timeout=TIMEOUT_S) as client:
            answer = client.get(url)
        if answer.status_code != httpx2.codes.OK:
            raise ValueError(f"expected the status 200 of {url}, got {answer.status_code}")
        addresses = msgspec.json.decode(answer.content, type=Addresses)
        if addresses.issuer != self.issuer:
            raise ValueError(f"expected the issuer {self.issuer}, got {addresses.issuer}")
        for name, address in msgspec.structs.asdict(addresses).items():
            is_needed = name in ("authorization_endpoint", "token_endpoint", "jwks_uri")
            if not isinstance(address, str) or not (address or is_needed):
                continue
            if urlsplit(address).scheme not in ("https", urlsplit(self.issuer).scheme):
                raise ValueError(f"expected a URL of https as {name}, got {address!r:.200}")
        return addresses


def _reason(error: Exception) -> str:
    for kind, text in (
        (jwt.ExpiredSignatureError, "one that has expired"),
        (jwt.ImmatureSignatureError, "one that is not valid yet"),
        (jwt.InvalidAudienceError, "one for another audience"),
        (jwt.InvalidIssuerError, "one of another issuer"),
        (jwt.InvalidSignatureError, "one whose signature is wrong"),
        (jwt.MissingRequiredClaimError, "one without exp, iss, aud or sub"),
        (InvalidSubjectError, "one whose sub is no text"),
    ):
        if isinstance(error, kind):
            return f"expected a valid token of the identity provider, got {text}"
    return "expected a key or a token of the identity provider, got something else"
