"""Errors of configuration tell what would have been right."""

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from quadriga.engine.config.schema import explain_validation_error


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    mode: Literal["a", "b"] | None = None
    level: Annotated[int, Meta(ge=0)] = 0


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    kind: Annotated[Literal["x", "y"], Meta(description="d")] = "x"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"inner": {"mode": "c"}}, "inner.mode: expected one of a, b, got 'c'"),
        ({"inner": {}, "kind": "z"}, "kind: expected one of x, y, got 'z'"),
        ({"inner": {"level": -1}}, "inner.level: Expected 'int' >= 0"),
        (
            {"inner": {"modus": "a"}},
            "inner: Object contains unknown field 'modus'; expected mode, level",
        ),
        ({"inner": {}, "x": 1}, "Object contains unknown field 'x'; expected inner, kind"),
    ],
)
def test_explain(value, text):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, Outer)
    assert explain_validation_error(caught.value, Outer) == text
