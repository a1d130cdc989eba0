"""Ids of requests: the first that a client gives, or a new one."""

import uuid

import pytest

from quadriga.proto.errors import InvalidRequest
from quadriga.proto.messages import MAX_NAME_CHARACTERS, first_request_id
from quadriga.proto.request import new_request_id


def test_new_ids_are_uuids_of_version_4_and_differ():
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == len(ids)
    for id_ in ids:
        parsed = uuid.UUID(id_)
        assert (str(parsed), parsed.version, parsed.variant) == (id_, 4, uuid.RFC_4122)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (("a",), "a"),
        (("a", "b"), "a"),
        ((None, "b"), "b"),
        (("", "b"), "b"),
        (("é" * 1024,), "é" * 1024),
    ],
)
def test_the_first_id_counts(ids, expected):
    assert first_request_id(*ids) == expected


@pytest.mark.parametrize("ids", [(), (None,), ("", None)])
def test_without_an_id_there_is_a_new_one(ids):
    assert uuid.UUID(first_request_id(*ids)).version == 4


def test_an_id_has_a_maximum_length():
    with pytest.raises(InvalidRequest, match="expected id of at most"):
        first_request_id("x" * (MAX_NAME_CHARACTERS + 1))
