"""What a key may do, and how a request presents it."""

import base64
from typing import get_args

import pytest

from quadriga.proto.access import (
    ANYBODY,
    ROLES,
    STRANGER,
    Caller,
    Need,
    Role,
    admit,
    admit_model,
    headers_by_name,
    presented_key,
)
from quadriga.proto.errors import Forbidden, Unauthenticated

ALLOWED = {
    "nothing": {*get_args(Role)},
    "key": {*get_args(Role)},
    "infer": {"infer", "operate", "admin"},
    "metrics": {"metrics", "monitor", "operate", "admin"},
    "read": {"read", "annotate", "monitor", "operate", "admin"},
    "annotate": {"annotate", "operate", "admin"},
    "monitor": {"monitor", "operate", "admin"},
    "operate": {"operate", "admin"},
    "admin": {"admin"},
}


def caller_with(*roles: Role, models: tuple[str, ...] = ()) -> Caller:
    rights = frozenset(right for role in roles for right in ROLES[role])
    return Caller(name="test", rights=rights, models=models)


def test_every_need_is_in_the_table():
    assert set(ALLOWED) == set(get_args(Need))
    assert set(ROLES) == set(get_args(Role))


@pytest.mark.parametrize("need", get_args(Need))
@pytest.mark.parametrize("role", get_args(Role))
def test_a_role_opens_these_doors(role: Role, need: Need):
    if role in ALLOWED[need]:
        admit(caller_with(role), need)
    else:
        with pytest.raises(Forbidden, match=f"role .*{need}.*got one for .*{role}"):
            admit(caller_with(role), need)


@pytest.mark.parametrize("need", get_args(Need))
def test_without_a_key_only_open_doors_open(need: Need):
    admit(ANYBODY, need)
    if need == "nothing":
        admit(STRANGER, need)
    else:
        with pytest.raises(Unauthenticated, match="got none"):
            admit(STRANGER, need)


def test_roles_add_up():
    admit(caller_with("infer", "read"), "infer")
    admit(caller_with("infer", "read"), "read")
    with pytest.raises(Forbidden, match="got one for infer, read"):
        admit(caller_with("infer", "read"), "annotate")


@pytest.mark.parametrize(
    ("patterns", "name", "folder_name", "admitted"),
    [
        ((), "ships", "ships", True),
        (("shapes-*",), "shapes-detector", "shapes-detector", True),
        (("shapes-*",), "m-shapes-detector", "shapes-detector", True),
        (("shapes-*",), "SHAPES-DETECTOR", "shapes-detector", True),
        (("shapes-*",), "ships", "ships", False),
        (("shapes-*", "ships"), "ships", "ships", True),
        (("m-4f*",), "m-4f2", "detector", True),
        (("*",), "", "", True),
        (("shapes",), "shapes-detector", "shapes-detector", False),
        (("sh[ai]pes",), "sh[ai]pes", "shapes", True),
    ],
)
def test_a_key_is_for_the_models_of_its_patterns(patterns, name, folder_name, admitted):
    caller = caller_with("infer", models=patterns)
    if admitted:
        admit_model(caller, name, folder_name)
    else:
        with pytest.raises(Forbidden, match="expected a key for the model"):
            admit_model(caller, name, folder_name)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({}, None),
        ({b"authorization": b"Bearer abc"}, "abc"),
        ({b"authorization": b"bearer   abc "}, "abc"),
        ({b"authorization": b"BEARER abc"}, "abc"),
        ({b"authorization": b"Basic abc"}, None),
        ({b"authorization": b"Basic " + base64.b64encode(b"logger:abc")}, "abc"),
        ({b"authorization": b"basic " + base64.b64encode(b":a:b")}, "a:b"),
        ({b"authorization": b"Basic " + base64.b64encode(b"abc")}, None),
        ({b"authorization": b"Basic " + base64.b64encode(b"abc:")}, None),
        ({b"authorization": b"Basic \xff\xfe"}, None),
        ({b"authorization": b"Basic"}, None),
        ({b"authorization": b"Bearer"}, None),
        ({b"authorization": b"Bearer "}, None),
        ({b"authorization": b"abc"}, None),
        ({b"x-api-key": b"abc"}, "abc"),
        ({b"x-api-key": b""}, None),
        ({b"x-api-key": b"abc", b"authorization": b"Bearer def"}, "abc"),
        ({b"x-api-key": b"\xff\x00"}, "\xff\x00"),
    ],
)
def test_keys_are_read_from_both_headers(headers, key):
    assert presented_key(headers.get) == key


@pytest.mark.parametrize(
    ("headers", "by_name"),
    [
        ([], {}),
        ([(b"a", b"1"), (b"a", b"2"), (b"x-api-key", b"k")], {b"a": b"2", b"x-api-key": b"k"}),
        ([(b"x-api-key", b"k"), (b"x-api-key", b"m")], {b"x-api-key": b"k, m"}),
        ([(b"x-api-key", b"k"), (b"x-api-key", b"k")], {b"x-api-key": b"k, k"}),
        (
            [(b"authorization", b"Bearer k"), (b"a", b"1"), (b"authorization", b"Bearer m")],
            {b"authorization": b"Bearer k, Bearer m", b"a": b"1"},
        ),
    ],
)
def test_a_repeated_header_of_a_key_is_no_key(headers, by_name):
    assert headers_by_name(headers) == by_name
