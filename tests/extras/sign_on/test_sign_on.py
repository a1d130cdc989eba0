"""Roles by claims, sealed texts, sessions, and where a log-in may lead."""

import subprocess
import sys
import time

import msgspec
import pytest

from quadriga.engine.access.browsers import BrowserRules
from quadriga.engine.assembly.app import Application
from quadriga.engine.config.claim_roles import granted, parse_role_entries
from quadriga.engine.config.settings import Settings
from quadriga.engine.config.settings_reading import SettingsError
from quadriga.extras.sign_on.log_in import own_path
from quadriga.extras.sign_on.people import caller_of_claims, person_id, person_name
from quadriga.engine.access.seals import Seal, server_key
from quadriga.extras.sign_on.sessions import SESSION_COOKIE, Sessions, cookie_value
from quadriga.proto.access import Caller

SETTING = """
groups:ops=operate
groups:vision-annotators = annotate+infer @ quality, groups:line-4=monitor@quality
groups:line-5=monitor@line-5,
realm_access.roles:boss=admin
https://example.org/roles:all of them=read
scope:infer=infer@robots
"""


@pytest.mark.parametrize(
    ("claims", "roles", "team"),
    [
        ({}, set(), ""),
        ({"groups": []}, set(), ""),
        ({"groups": ["other"]}, set(), ""),
        ({"groups": "ops"}, {"operate"}, ""),
        ({"groups": "ops vision-annotators"}, set(), ""),
        ({"groups": ["vision-annotators"]}, {"annotate", "infer"}, "quality"),
        ({"groups": ["line-4", "vision-annotators"]}, {"annotate", "infer", "monitor"}, "quality"),
        ({"groups": ["line-5", "vision-annotators"]}, {"annotate", "infer"}, "quality"),
        ({"groups": ["vision-annotators", "ops"]}, {"operate"}, ""),
        ({"realm_access": {"roles": ["boss"]}}, {"admin"}, ""),
        ({"realm_access.roles": ["boss"]}, set(), ""),  # another claim than the path means
        ({"realm_access.roles": ["boss"], "realm_access": {"roles": ["other"]}}, set(), ""),
        ({"realm_access": ["boss"]}, set(), ""),
        ({"https://example.org/roles": ["all of them"]}, {"read"}, ""),
        ({"scope": "openid infer"}, {"infer"}, "robots"),
        ({"scope": "inference"}, set(), ""),
        ({"groups": [1, None, {"ops": "ops"}]}, set(), ""),
        ({"groups": {"ops": 1}}, set(), ""),
        ({"groups": ["OPS", "ops "]}, set(), ""),
    ],
)
def test_claims_give_the_roles_and_the_team_of_the_first_entry_that_fits(claims, roles, team):
    assert granted(parse_role_entries(SETTING), claims) == (roles, team)


def test_a_star_is_any_value_of_a_claim_that_is_there():
    entries = parse_role_entries("sub:*=read")
    assert granted(entries, {"sub": "x"}) == ({"read"}, "")
    assert granted(entries, {"sub": None}) == (set(), "")
    entries = parse_role_entries("a.b:*=read")
    assert granted(entries, {"a.b": "x"}) == (set(), "")
    assert granted(entries, {"a": {"b": "x"}}) == ({"read"}, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("groups", "expected CLAIM:VALUE=ROLE"),
        ("groups=read", "expected CLAIM:VALUE=ROLE"),
        ("groups:=read", "expected CLAIM:VALUE=ROLE"),
        (":x=read", "expected CLAIM:VALUE=ROLE"),
        ("groups:x=read@", "expected CLAIM:VALUE=ROLE"),
        ("groups:x=", "expected a role among infer"),
        ("groups:x=reed", "got 'reed'"),
        ("groups:x=read+", "got ''"),
        ("groups:x=read@a team", "expected a team"),
        ("groups:x=annotate@default", "is not 'default'"),
    ],
)
def test_a_setting_of_another_form_is_an_error_with_the_expected_one(text, problem):
    with pytest.raises(ValueError, match="expected") as error:
        parse_role_entries(text)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": "a@b.c", "name": "A"}, "a@b.c"),
        ({"email": "a@b.c", "email_verified": False, "preferred_username": "a"}, "a"),
        ({"azp": "robot", "sub": "1"}, "robot"),
        ({"name": "a\nb", "sub": "1"}, "1"),
        ({"name": "x" * 999}, "x" * 200),
        ({"sub": 7}, "nameless"),
    ],
)
def test_a_name_for_logs_is_the_best_claim_that_can_be_one(claims, name):
    assert person_name(claims) == name


def test_the_id_of_a_person_is_of_issuer_and_subject():
    first = person_id({"iss": "https://a", "sub": "1", "email": "x@y.z"})
    assert first == person_id({"iss": "https://a", "sub": "1", "email": "other@y.z"})
    assert len({first, person_id({"iss": "https://b", "sub": "1"}), person_id({"iss": "https://a", "sub": "2"})}) == 3  # fmt: skip


class Content(msgspec.Struct, frozen=True):
    text: str


def test_a_sealed_text_opens_with_its_key_and_purpose_only(tmp_path):
    key = server_key("", tmp_path)
    assert key == server_key("", tmp_path)
    assert (tmp_path / "session.key").stat().st_mode & 0o777 == 0o600
    seal = Seal(key, "a")
    text = seal.close(Content("x"))
    assert seal.open(text, Content) == Content("x")
    body, _, mark = text.partition(".")
    bad = ["", ".", body, f"{body}.", f".{mark}", f"{text}x", f"x{text}", f"{text}.", "é" * 20]
    bad += ["a" * 5000, f"{body[:-1]}A.{mark}"]
    assert [seal.open(wrong, Content) for wrong in bad] == [None] * len(bad)
    for other in (Seal(key, "b"), Seal(b"k" * 32, "a")):
        assert other.open(text, Content) is None
    assert seal.open(f"e30.{seal.derive('e30')}", Content) is None  # of another version


def test_a_session_ends_by_its_time_and_before_if_it_was_ended(monkeypatch):
    ended = set()
    sessions = Sessions(Seal(b"k" * 32, "session"), 0.5, ended.__contains__)
    caller = Caller(name="mara", key_id="oidc-1", team="quality")
    session, value = sessions.begin(caller, ("annotate",))
    cookies = f"a=b; {SESSION_COOKIE}={value}; c=d".encode()
    assert sessions.find(cookies) == session
    assert session.caller.rights == {"annotate", "read"}
    assert (session.caller.team, session.caller.name) == ("quality", "mara")
    assert sessions.find(None) is None
    assert cookie_value(cookies, "c") == "d"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 1798)
    assert sessions.find(cookies) == session
    monkeypatch.setattr(time, "time", lambda: now_s + 1801)
    assert sessions.find(cookies) is None
    monkeypatch.undo()
    ended.add(session.id)
    assert sessions.find(cookies) is None


def test_a_role_of_another_version_has_no_rights():
    caller = caller_of_claims({"sub": "1", "groups": ["x"]}, parse_role_entries("groups:x=read"))
    assert caller.rights == {"read"}
    assert not caller_of_claims({"sub": "1"}, parse_role_entries("groups:x=read")).rights


@pytest.mark.parametrize(
    ("path", "led_to"),
    [
        ("/console/", "/console/"),
        ("/api/reports/x/page?a=b&c=%20", "/api/reports/x/page?a=b&c=%20"),
        ("/", "/"),
        ("", "/console/"),
        ("//evil.example", "/console/"),
        ("/\\evil.example", "/console/"),
        ("/a\\b", "/console/"),
        ("/\t/evil.example", "/console/"),
        ("/a\n", "/console/"),
        ("https://evil.example", "/console/"),
        ("javascript:alert(1)", "/console/"),
        ("/é", "/console/"),
        ("/" + "a" * 501, "/console/"),
    ],
)
def test_a_log_in_leads_to_paths_of_this_server_only(path, led_to):
    assert own_path(path) == led_to


@pytest.mark.parametrize(
    ("method", "headers", "counts"),
    [
        ("GET", {}, False),
        ("POST", {}, False),
        ("GET", {"sec-fetch-site": "same-origin"}, True),
        ("GET", {"sec-fetch-site": "none"}, True),
        ("POST", {"sec-fetch-site": "same-origin"}, True),
        ("POST", {"sec-fetch-site": "none"}, False),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {"sec-fetch-site": "cross-site", "origin": "http://here"}, False),
        ("POST", {"origin": "http://here"}, True),
        ("GET", {"origin": "https://friend"}, False),
        ("POST", {"origin": "https://friend", "sec-fetch-site": "same-origin"}, False),
        ("POST", {"origin": "null"}, False),
    ],
)
def test_a_session_counts_with_the_mark_of_an_own_page(method, headers, counts):
    rules = BrowserRules(Settings(cors_origins="https://friend"))
    given = {name.encode(): value.encode() for name, value in {"host": "here", **headers}.items()}
    assert rules.may_use_session(method, given, "http") is counts


def test_without_the_extra_the_error_names_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "quadriga.extras.sign_on.pages", None)
    settings = Settings(data=str(tmp_path), oidc_issuer="https://login.example.org")
    with pytest.raises(SettingsError, match=r"pip install 'quadriga\[oidc\]'"):
        Application(settings)


def test_a_server_without_a_provider_loads_nothing_of_it():
    script = "import sys, quadriga.engine.assembly.app; print({'jwt', 'authlib', 'httpx2'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
