"""Callers by claims, and their sessions."""

import time

import pytest

from quadriga.engine.access.key_ring import KeyRing
from quadriga.engine.access.sessions import SESSION_COOKIE, cookie_value
from quadriga.engine.config.settings import Settings
from quadriga.extras.sign_on.settings import parse_role_entries
from quadriga.extras.sign_on.sign_on import SignOn, caller_of_claims, person_id, person_name
from quadriga.proto.access import Caller


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


def test_a_session_ends_by_its_time_and_before_if_it_was_ended(tmp_path, monkeypatch):
    settings = Settings(
        data=str(tmp_path),
        extras={
            "sign_on": {
                "issuer": "https://login.example.org",
                "client_id": "q",
                "roles": "sub:*=annotate",
            }
        },
    )
    sign_on = SignOn(settings, KeyRing(settings))
    caller = Caller(name="mara", key_id="oidc-1", team="quality")
    session, value = sign_on.new_session(caller, ["annotate"])
    cookies = f"a=b; {SESSION_COOKIE}={value}; c=d".encode()
    assert sign_on.find(cookies) == session
    assert session.caller.rights == {"annotate", "read"}
    assert (session.caller.team, session.caller.name) == ("quality", "mara")
    assert sign_on.find(None) is None
    assert cookie_value(cookies, "c") == "d"
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 8 * 3600 - 2)
    assert sign_on.find(cookies) == session
    monkeypatch.setattr(time, "time", lambda: now_s + 8 * 3600 + 1)
    assert sign_on.find(cookies) is None
    monkeypatch.undo()
    sign_on.end(session, "mara")
    assert sign_on.find(cookies) is None


def test_a_role_of_another_version_has_no_rights():
    caller = caller_of_claims({"sub": "1", "groups": ["x"]}, parse_role_entries("groups:x=read"))
    assert caller.rights == {"read"}
    assert not caller_of_claims({"sub": "1"}, parse_role_entries("groups:x=read")).rights
