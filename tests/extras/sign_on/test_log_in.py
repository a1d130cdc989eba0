"""Single sign-on on a real server, with a real identity provider: tokens of machines, and people by the code flow."""

import base64
import hashlib
import hmac
import json
import re
import time
from contextlib import closing
from urllib.parse import parse_qs, urlsplit

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from quadriga.proto.grpc.messages import SERVICE
from tests.grpc_client import Client
from tests.oidc_provider import ProviderProcess
from tests.onnx_models import doubling
from tests.server_process import ServerProcess, quadriga

INFER = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}
SESSION, STATE = "__Host-quadriga-session", "__Host-quadriga-login"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def provider():
    with ProviderProcess() as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory, provider):
    """Yield a server of two workers with single sign-on on a loopback address, which is not open for that."""
    folder = tmp_path_factory.mktemp("sign-on")
    doubling(folder / "models" / "doubling" / "model.onnx")
    flags = [
        *provider.flags(oidc_client_secret="a secret: 7%+/"),
        "--workers",
        "2",
        "--grpc-port",
        "0",
    ]
    with ServerProcess(folder / "data", folder / "models", *flags) as running:
        for _ in range(8):  # both workers know the provider
            running.wait_until(lambda: bearer(running, provider.token())[0] == 200)
        yield running


def ask(server, method, path, body=None, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    text = None if body is None else json.dumps(body)
    return server.request(method, path, text, named)


def bearer(server, token, path="/v2/models/doubling/infer"):
    status, _, body = ask(server, "POST", path, INFER, Authorization=f"Bearer {token}")
    return status, body.decode()


def rpc(server, token=None, cookie=None):
    """Ask for the metadata of the server over gRPC."""
    metadata = [("authorization", f"Bearer {token}")] if token else [("cookie", cookie)]
    with Client(server.grpc) as client:
        call = client.channel.unary_unary(f"/{SERVICE}/ServerMetadata")
        return call(b"", timeout=30, metadata=metadata)


def cookies_of(server, path, **headers):
    """Send a GET; give the status, the headers, the body, and the cookies that it sets."""
    connection = server.connect()
    with closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        lines = response.headers.get_all("set-cookie") or []
        cookies = dict(line.partition(";")[0].split("=", 1) for line in lines)
        page = re.sub("(?s)<style>.*</header>", "", response.read().decode())
        return response.status, response.headers, page, cookies, lines


def begun(server, next_path="/console/"):
    """Begin a log-in; give the URL at the provider and the browser's cookie."""
    status, headers, _, cookies, _ = cookies_of(server, f"/console/login?next={next_path}")
    assert status == 302
    return headers["location"], cookies[STATE]


def logged_in(server, provider, person):
    """Log in; give the value of the cookie of the session, and the page that follows."""
    url, state = begun(server)
    back = urlsplit(provider.approve(url, person))
    status, _, page, cookies, _ = cookies_of(
        server, f"{back.path}?{back.query}", Cookie=f"{STATE}={state}"
    )
    assert status == 200, page
    return cookies[SESSION], page


def account(server, session, **headers):
    status, _, body = ask(
        server, "GET", "/console/account", Cookie=f"{SESSION}={session}", **(headers or OWN_PAGE)
    )
    return status, json.loads(body)


def audit_lines(server):
    answer = quadriga("audit", "--json", "--limit", "1000", "--data", server.data)
    return [json.loads(line) for line in answer.stdout.splitlines()]


def public_pem(provider):
    own = jwt.PyJWK(provider.get("/jwks")["keys"][0]).key
    return own.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def unsigned(provider, header, **claims):
    """Give a token with any header and no signature of its own."""
    parts = provider.token(**claims).split(".")
    head = base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode()
    return f"{head}.{parts[1]}."


def hs256(provider):
    """Give a token that is signed with the public key as a shared secret, as a library that trusts `alg` would verify."""
    kid = provider.get("/test/key")["kid"]
    body = unsigned(provider, {"alg": "HS256", "kid": kid}).rstrip(".")
    digest = hmac.digest(public_pem(provider), body.encode(), hashlib.sha256)
    return f"{body}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def now(shift_s):
    return int(time.time()) + shift_s


def signed_by_another(provider, key, algorithm):
    return provider.token(
        key=key, algorithm=algorithm, headers={"kid": provider.get("/test/key")["kid"]}
    )


BAD_TOKENS = {
    "wrong audience": lambda p: p.token(aud="another"),
    "no audience": lambda p: p.token(aud=None),
    "wrong issuer": lambda p: p.token(iss="https://login.example.org"),
    "no issuer": lambda p: p.token(iss=None),
    "expired": lambda p: p.token(exp=now(-60)),
    "no end": lambda p: p.token(exp=None),
    "no subject": lambda p: p.token(sub=None),
    "an empty subject": lambda p: p.token(sub=" "),
    "a subject that is no text": lambda p: p.token(sub=7),
    "an end beyond all numbers": lambda p: p.token(exp=10**400),
    "not yet valid": lambda p: p.token(nbf=now(120)),
    "issued in the future": lambda p: p.token(iat=now(120)),
    "another key": lambda p: signed_by_another(p, rsa.generate_private_key(65537, 2048), "RS256"),
    "another kind of key": lambda p: signed_by_another(p, ec.generate_private_key(ec.SECP256R1()), "ES256"),
    "another curve": lambda p: signed_by_another(p, ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
    "alg none": lambda p: unsigned(p, {"alg": "none", "kid": p.get("/test/key")["kid"]}),
    "alg None": lambda p: unsigned(p, {"alg": "None"}),
    "no alg": lambda p: unsigned(p, {"kid": p.get("/test/key")["kid"]}),
    "HS256 with the public key": hs256,
    "no kid": lambda p: p.token(headers={}),
    "a number as kid": lambda p: unsigned(p, {"alg": "RS256", "kid": 7}),
    "no signature": lambda p: unsigned(p, {"alg": "RS256", "kid": p.get("/test/key")["kid"]}),
    "changed claims": lambda p: ".".join(
        [*p.token().split(".")[:1], p.token(groups=["ops"]).split(".")[1], p.token().split(".")[2]]
    ),
    "no role": lambda p: p.token(azp="toaster"),
    "huge": lambda p: p.token(padding="x" * 20_000),
    "deep": lambda p: "eyJ" + base64.urlsafe_b64encode(b"[" * 9000).decode() + ".e30.x",
    "garbage": lambda _: "eyJhbGciOi.%%.",
    "dots": lambda _: "..",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_bad_token_is_refused_over_http_and_grpc(server, provider, name):
    token = BAD_TOKENS[name](provider)
    status, text = bearer(server, token)
    assert status == 401, (status, text)
    assert token[-12:] not in text or len(token) < 12
    with pytest.raises(grpc.RpcError) as error:
        rpc(server, token)
    assert error.value.code().name in ("UNAUTHENTICATED", "RESOURCE_EXHAUSTED"), error.value


def test_a_token_of_a_machine_counts_over_http_and_grpc(server, provider):
    token = provider.token()
    assert bearer(server, token)[0] == 200
    assert bearer(server, provider.token(aud=["other", "quadriga"]))[0] == 200
    answer = ask(server, "GET", "/console/account", Authorization=f"Bearer {token}")
    assert json.loads(answer[2]) == {
        "name": "robot", "rights": ["infer"], "team": "line-4", "expires": None
    }  # fmt: skip
    rpc(server, token)
    status, _, body = ask(server, "GET", "/api/inferences", Authorization=f"Bearer {token}")
    assert (status, b"got one for infer" in body) == (403, True)


def test_a_session_does_not_count_over_grpc(server, provider):
    session, _ = logged_in(server, provider, "mara")
    cookie = f"{SESSION}={session}"
    answer = ask(server, "GET", "/console/account", Cookie=cookie, **OWN_PAGE)
    assert answer[0] == 200
    with pytest.raises(grpc.RpcError) as error:
        rpc(server, cookie=cookie)
    assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_server_with_a_provider_is_not_open_and_keys_count_beside_it(server, provider):
    assert ask(server, "GET", "/v2")[0] == 401
    made = quadriga("keys", "create", "--role", "read", "--json", "--data", server.data)
    key = json.loads(made.stdout)["key"]
    server.wait_until(lambda: ask(server, "GET", "/v2", Authorization=f"Bearer {key}")[0] == 200)
    session, _ = logged_in(server, provider, "mara")
    cookie = {"Cookie": f"{SESSION}={session}", **OWN_PAGE}

    def account_of_key():
        return ask(server, "GET", "/console/account", X_API_Key=key, **cookie)

    server.wait_until(lambda: account_of_key()[0] == 200)  # the worker that answers knows the key
    answers = [account_of_key() for _ in range(8)]
    shown = [json.loads(body)["rights"] for status, _, body in answers if status == 200]
    assert shown  # another worker may learn of the key later
    assert set(map(tuple, shown)) == {("read",)}  # who presents a key is its holder
    assert ask(server, "GET", "/console/account", X_API_Key=f"{key}x", **cookie)[0] == 401


@pytest.mark.parametrize(
    ("person", "rights", "team"),
    [
        ("mara", ["annotate", "read"], "quality"),
        ("omar", ["annotate", "infer", "metrics", "monitor", "operate", "read"], ""),
    ],
)
def test_a_person_logs_in_with_the_roles_and_team_of_the_groups(
    server, provider, person, rights, team
):
    session, page = logged_in(server, provider, person)
    assert '<meta http-equiv="refresh" content="0;url=/console/">' in page
    for _ in range(8):  # both workers know it
        status, answer = account(server, session)
        assert (status, answer["name"]) == (200, f"{person}@example.org")
        assert (answer["rights"], answer["team"]) == (rights, team)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", answer["expires"])
    line = next(line for line in audit_lines(server) if line["action"] == "log-in")
    assert (line["name"], line["status"], line["address"]) == (
        f"{person}@example.org",
        200,
        "127.0.0.1",
    )
    assert line["key_id"].startswith("oidc-")


def test_the_way_to_the_provider_has_state_nonce_and_pkce_and_its_cookies_are_hidden(
    server, provider
):
    status, headers, _, _, lines = cookies_of(server, "/console/login")
    sent = parse_qs(urlsplit(headers["location"]).query)
    assert status == 302
    assert headers["location"].startswith(f"{provider.issuer}/oauth2/authorize?")
    assert sent["code_challenge_method"] == ["S256"]
    assert {"state", "nonce", "code_challenge"} <= set(sent)
    assert sent["redirect_uri"] == [f"http://{server.host}/console/callback"]
    for part in ("HttpOnly", "Secure", "Path=/", "SameSite=lax", "Max-Age=600"):
        assert part in lines[0].split("; "), lines
    url, state = begun(server)
    back = urlsplit(provider.approve(url, "mara"))
    lines = cookies_of(server, f"{back.path}?{back.query}", Cookie=f"{STATE}={state}")[4]
    session = next(line for line in lines if line.startswith(SESSION))
    for part in ("HttpOnly", "Secure", "Path=/", "SameSite=strict"):
        assert part in session.split("; "), session
    assert "Domain" not in session


def test_a_code_and_a_state_are_used_once_and_by_the_browser_that_began(server, provider):
    url, state = begun(server)
    back = urlsplit(provider.approve(url, "mara"))
    path, cookie = f"{back.path}?{back.query}", f"{STATE}={state}"
    _, another = begun(server)
    for given in (
        "",
        f"{STATE}={another}",
        f"{STATE}={state[:-3]}abc",
        f"{STATE}=x.y",
        f"{SESSION}={state}",
    ):
        status, _, page, cookies, _ = cookies_of(server, path, Cookie=given)
        assert (status, SESSION in cookies) == (400, False), page
    assert SESSION in cookies_of(server, path, Cookie=cookie)[3]
    status, _, page, cookies, _ = cookies_of(server, path, Cookie=cookie)
    assert (status, SESSION in cookies) == (400, False)
    assert "did not accept" in page


def test_who_has_no_role_or_denies_gets_no_session_and_it_is_in_the_audit_log(server, provider):
    for person, text in (("eve", "eve@example.org has no role"), ("", "did not let you in")):
        url, state = begun(server)
        back = urlsplit(provider.approve(url, person))
        query = (
            back.query
            if person
            else f"{back.query}&state={parse_qs(urlsplit(url).query)['state'][0]}"
        )
        status, _, page, cookies, _ = cookies_of(
            server, f"{back.path}?{query}", Cookie=f"{STATE}={state}"
        )
        assert (status, SESSION in cookies, text in page) == (400, False, True), page
    lines = [line for line in audit_lines(server) if line["action"] == "log-in"]
    refused = next(line for line in lines if line["name"] == "eve@example.org")
    assert (refused["status"], refused["target"], refused["key_id"][:5]) == (
        400,
        "no role",
        "oidc-",
    )
    assert {line["status"] for line in lines if line["name"] == "nobody"} == {400}


BAD_PATHS = (
    "https://evil.example", "//evil.example", "/%5Cevil.example", "/%09/evil.example", "javascript:alert(1)", "",
    "/%0d%0aLocation:x", "evil", "%2F%2Fevil.example", "/" + "a" * 600,
)  # fmt: skip


@pytest.mark.parametrize("bad", BAD_PATHS)
def test_nobody_is_taken_elsewhere_after_the_log_in(server, provider, bad):
    url, state = begun(server, bad)
    back = urlsplit(provider.approve(url, "mara"))
    _, _, page, _, _ = cookies_of(server, f"{back.path}?{back.query}", Cookie=f"{STATE}={state}")
    assert '<meta http-equiv="refresh" content="0;url=/console/">' in page


def test_a_session_counts_only_with_the_mark_of_a_page_of_this_server(server, provider):
    session, _ = logged_in(server, provider, "omar")
    origin = {"Origin": f"http://{server.host}"}
    visit = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    for method, headers, status in (
        ("GET", OWN_PAGE, 200),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
        ("GET", {}, 401),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),
        ("POST", OWN_PAGE, 400),
        ("POST", origin, 400),
        ("POST", {}, 401),
        ("POST", {"Sec-Fetch-Site": "none"}, 401),
        ("POST", visit, 403),
        ("POST", {"Origin": "http://evil.example"}, 403),
        ("POST", {"Origin": "null"}, 403),
        ("POST", {**OWN_PAGE, "Origin": "http://evil.example"}, 403),
    ):
        path = "/console/account" if method == "GET" else "/api/inferences/delete"
        body = None if method == "GET" else {}
        got, _, answer = ask(server, method, path, body, Cookie=f"{SESSION}={session}", **headers)
        assert got == status, (method, headers, got, answer)


def test_log_out_ends_the_session_for_whoever_has_the_cookie(server, provider):
    session, _ = logged_in(server, provider, "mara")
    cookie = {"Cookie": f"a=b; {SESSION}={session}"}
    assert ask(server, "POST", "/console/logout", **cookie)[0] == 303  # without a mark: of nobody
    assert account(server, session)[0] == 200
    status, headers, _ = ask(
        server, "POST", "/console/logout", **cookie, Origin=f"http://{server.host}"
    )
    assert (status, headers["location"], "Max-Age=0" in headers["set-cookie"]) == (
        303,
        "/console/",
        True,
    )
    line = next(line for line in audit_lines(server) if line["action"].startswith("log-"))
    assert (line["action"], line["name"], line["status"]) == ("log-out", "mara@example.org", 303)
    time.sleep(2.5)  # within this time every worker and every server knows it
    assert {account(server, session)[0] for _ in range(10)} == {401}
    listed = quadriga("keys", "list", "--json", "--data", server.data).stdout
    assert "session" not in listed


def test_a_forged_or_foreign_cookie_is_no_session(server, provider):
    session, _ = logged_in(server, provider, "mara")
    body, _, mark = session.partition(".")
    content = json.loads(base64.urlsafe_b64decode(body + "=="))
    changed = base64.urlsafe_b64encode(
        json.dumps({**content, "roles": ["admin"]}).encode()
    ).decode()
    for bad in (
        f"{changed.rstrip('=')}.{mark}",
        f"{body}.",
        body,
        f"{body}.{mark}x",
        "",
        "x" * 9000,
        begun(server)[1],
    ):
        assert account(server, bad)[0] == 401, bad


def test_random_key_ids_ask_the_provider_at_most_once_in_ten_seconds(server, provider):
    before = provider.get("/test/fetches")["jwks"]
    begun_s = time.monotonic()
    statuses = set()
    for number in range(300):
        statuses.add(
            bearer(
                server,
                provider.token(headers={"kid": f"k{number}"})
                if number < 3
                else unsigned_kid(number),
            )[0]
        )
    took_s = time.monotonic() - begun_s
    assert statuses <= {401, 503}
    assert provider.get("/test/fetches")["jwks"] - before <= 2 * (1 + took_s / 10)  # two workers
    assert bearer(server, provider.token())[0] == 200


def unsigned_kid(number):
    header = base64.urlsafe_b64encode(json.dumps({"alg": "RS256", "kid": f"k{number}"}).encode())
    return f"{header.rstrip(b'=').decode()}.e30.x"


def test_a_provider_that_is_away_stops_nobody_whose_key_is_known(tmp_path, provider):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    away = ProviderProcess()
    with ServerProcess(tmp_path / "data", tmp_path / "models", *away.flags()) as server:
        status, text = bearer(server, provider.token(iss=away.issuer))
        assert (status, "try again" in text) == (503, True)
        status, _, page, _, _ = cookies_of(server, "/console/login")
        assert (status, "does not answer" in page) == (503, True)
        with away:
            server.wait_until(lambda: bearer(server, away.token())[0] == 200)
            session, _ = logged_in(server, away, "mara")
            token, url, state = away.token(), *begun(server)
            code = urlsplit(away.approve(url, "mara"))
        assert bearer(server, token)[0] == 200
        assert account(server, session)[0] == 200
        status, _, page, cookies, _ = cookies_of(
            server, f"{code.path}?{code.query}", Cookie=f"{STATE}={state}"
        )
        assert (status, "does not answer" in page, SESSION in cookies) == (503, True, False)
        with away:  # with a new key
            server.wait_until(lambda: bearer(server, away.token())[0] == 200)
            assert bearer(server, token)[0] == 401
        assert "Traceback" not in server.log.read_text()


def test_sessions_outlive_workers_and_are_shared_by_servers_with_one_key(tmp_path, provider):
    doubling(tmp_path / "models" / "doubling" / "model.onnx")
    flags = provider.flags(session_key="k" * 40)
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    first = ServerProcess(tmp_path / "a", tmp_path / "models", *flags, "--database", database)
    second = ServerProcess(tmp_path / "b", tmp_path / "models", *flags, "--database", database)
    with first, second:
        for running in (first, second):
            running.wait_until(lambda: bearer(running, provider.token())[0] == 200)  # noqa: B023 - called right there
        session, _ = logged_in(first, provider, "mara")
        assert account(second, session)[0] == 200
        assert first.stop() == 0
        first.start()
        assert account(first, session)[0] == 200
        origin = f"http://{first.host}"
        assert (
            ask(first, "POST", "/console/logout", Cookie=f"{SESSION}={session}", Origin=origin)[0]
            == 303
        )
        second.wait_until(lambda: account(second, session)[0] == 401, timeout_s=10)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"oidc-roles": "groups=ops"}, "OIDC_ROLES: expected CLAIM:VALUE=ROLE"),
        ({"oidc-roles": ""}, "extras.sign_on: roles is required with issuer"),
        ({"oidc-client-id": ""}, "extras.sign_on: client_id is required with issuer"),
        ({"oidc-issuer": "http://login.example.org"}, "extras.sign_on.issuer"),
        ({"insecure": "true"}, "expected extras.sign_on.issuer or insecure, got both"),
    ],
)
def test_settings_that_cannot_be_used_are_an_error_at_the_start(
    tmp_path, changed, text, monkeypatch
):
    settings = {
        "oidc-issuer": "https://login.example.org",
        "oidc-client-id": "q",
        "oidc-roles": "sub:*=read",
    }
    for name, value in {**settings, **changed}.items():
        monkeypatch.setenv(f"QUADRIGA_{name.upper().replace('-', '_')}", value)
    answer = quadriga("serve", str(tmp_path), "--port", "0", "--data", tmp_path / "data", code=2)
    assert answer.returncode != 0
    assert text in answer.stderr + answer.stdout
