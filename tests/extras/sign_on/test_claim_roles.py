"""Roles by claims of an identity provider."""

import pytest

from quadriga.extras.sign_on.settings import granted, parse_role_entries

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
