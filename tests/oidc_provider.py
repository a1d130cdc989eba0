"""A real OpenID Connect provider in a process of its own: that of a package, which also verifies PKCE (S256) here.

`/test/key` gives its private key, so that tests can sign what a provider would, and what none would. `/test/rotate` replaces it.
"""

import base64
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from http.client import HTTPConnection
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt

PEOPLE = {
    "mara": {"email": "mara@example.org", "groups": ["vision-annotators"]},
    "omar": {"email": "omar@example.org", "groups": ["ops", "vision-annotators"]},
    "eve": {"email": "eve@example.org", "groups": ["marketing"]},
}
ROLES = "groups:ops=operate, groups:vision-annotators=annotate@quality, azp:robot=infer@line-4"


class ProviderProcess:
    """The provider on a port of 127.0.0.1; start it again on the same one with `start`."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.issuer = f"http://localhost:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        environment = os.environ | {"AUTHLIB_INSECURE_TRANSPORT": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.oidc_provider", str(self.port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while True:
            try:
                self.get("/jwks")
            except OSError:
                assert self.process.poll() is None, "the provider has ended"
                assert time.monotonic() < until
                time.sleep(0.1)
            else:
                return self

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get(self, path: str) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={"host": f"localhost:{self.port}"})
            response = connection.getresponse()
            assert response.status == 200, (path, response.status, response.read())
            return json.loads(response.read())
        finally:
            connection.close()

    def approve(self, url: str, person: str) -> str:
        """Log in at the provider as a person would, by its page; return where it sends the browser."""
        parts = urlsplit(url)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(
                "POST",
                f"{parts.path}?{parts.query}",
                f"sub={person}" if person else "action=deny",
                {"host": parts.netloc, "content-type": "application/x-www-form-urlencoded"},
            )
            response = connection.getresponse()
            body = response.read()
            assert response.status == 302, (response.status, body[:2000])
            return response.headers["location"]
        finally:
            connection.close()

    def flags(self, **more: str) -> list[str]:
        """Give the flags of a server whose provider this is."""
        settings = {"oidc-issuer": self.issuer, "oidc-client-id": "quadriga", "oidc-roles": ROLES}
        settings |= {name.replace("_", "-"): value for name, value in more.items()}
        named = {
            name.replace("oidc-", "extras-sign-on-"): value for name, value in settings.items()
        }
        return [part for name, value in named.items() for part in (f"--{name}", value)]

    def token(self, *, headers: Any = None, algorithm: str = "RS256", key: Any = None, **more: Any):
        """Give a token for a machine with the role infer; a claim that is None is left out."""
        own = self.get("/test/key")
        now_s = int(time.time())
        claims = {"iss": self.issuer, "aud": "quadriga", "sub": "robot-7", "azp": "robot"}
        claims |= {"iat": now_s, "exp": now_s + 600, **more}
        claims = {name: value for name, value in claims.items() if value is not None}
        named = {"kid": own["kid"]} if headers is None else headers
        return jwt.encode(claims, key or own["pem"], algorithm=algorithm, headers=named)


def _application() -> Any:
    import flask  # noqa: PLC0415 - only the process of the provider loads these
    import oidc_provider_mock  # noqa: PLC0415 - as above
    from joserfc.jwk import RSAKey  # noqa: PLC0415 - as above

    # The package takes clients with a secret only; PKCE is for those without one, too.
    oidc_provider_mock._app.AuthorizationCodeGrant.TOKEN_ENDPOINT_AUTH_METHODS = [
        "none",
        "client_secret_basic",
        "client_secret_post",
    ]
    people = [oidc_provider_mock.User(sub=name, claims=claims) for name, claims in PEOPLE.items()]
    application = oidc_provider_mock.app(user_claims=people, require_nonce=True)
    challenges: dict[str, str] = {}
    fetches = []

    @application.before_request
    def verify_code() -> Any:
        request = flask.request
        if request.path == "/jwks":
            fetches.append(time.monotonic())
        if (
            request.path == "/oauth2/authorize"
            and request.args.get("code_challenge_method") != "S256"
        ):
            return flask.jsonify(error="invalid_request"), 400
        if request.path == "/oauth2/token":
            verifier = request.form.get("code_verifier", "")
            digest = hashlib.sha256(verifier.encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            is_form = re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", verifier)
            if not is_form or challenges.pop(request.form.get("code", ""), None) != challenge:
                return flask.jsonify(error="invalid_grant"), 400
        return None

    @application.after_request
    def note_challenge(response: Any) -> Any:
        location = response.headers.get("location", "")
        if flask.request.path == "/oauth2/authorize" and "code=" in location:
            code = parse_qs(urlsplit(location).query)["code"][0]
            challenges[code] = flask.request.args["code_challenge"]
        return response

    @application.get("/test/key")
    def show_key() -> Any:
        key = flask.g.oidc_provider_mock_storage.jwk
        kid = flask.current_app.test_client().get("/jwks").json["keys"][0]["kid"]
        fetches.pop()
        return {
            "kid": kid,
            "pem": RSAKey.import_key(key.as_dict(True)).as_pem(private=True).decode(),
        }

    @application.get("/test/rotate")
    def rotate() -> Any:
        storage = flask.g.oidc_provider_mock_storage
        storage.jwk = type(storage.jwk).generate_key(2048, None, True)
        return {}

    @application.get("/test/fetches")
    def count_fetches() -> Any:
        return {"jwks": len(fetches)}

    return application


if __name__ == "__main__":
    _application().run("127.0.0.1", int(sys.argv[1]), threaded=True, use_reloader=False)
