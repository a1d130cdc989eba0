"""The worker's side of retention: how long a model's inferences are kept, asked and stated."""

from typing import Annotated

import msgspec

from store.changing import Changes
from store.database import run
from store.errors import ChangeError
from store.inferences import Inferences
from store.records import RetentionRule
from store.rows import text

MAX_DAYS = 1_000_000
MAX_NAME_BYTES = 2048

_Days = Annotated[float, msgspec.Meta(ge=0, le=MAX_DAYS)] | None


class Retention(msgspec.Struct, frozen=True):
    """How long a model's inferences and inputs are kept; null is for ever."""

    model: str
    inputs_days: float | None
    inferences_days: float | None


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    inputs_days: _Days = None
    inferences_days: _Days = None


_decoder = msgspec.json.Decoder(_Body)


class RetentionRules:
    """Knows and changes the rules; safe to use from several threads."""

    def __init__(self, inferences: Inferences, changes: Changes) -> None:
        self._inferences = inferences
        self._changes = changes

    def get(self, model: str) -> Retention:
        """Return the rule of a model, of all its versions; that of one without is to keep all.

        Raises:
            NotReadyError: There is no database yet.
        """
        with self._inferences.snapshot() as connection:
            row = run(
                connection,
                "SELECT inputs_days, inferences_days FROM retention WHERE model = ?",
                (text(model),),
            ).first()
        return Retention(model, *(row or (None, None)))

    def put(self, model: str, body: bytes) -> Retention:
        """Replace the rule of a model, for its past and its future inferences, and return it.

        Raises:
            ChangeError: The body is no rule, or would keep inputs for longer than inferences.
            NotReadyError: The writer is behind.
            JournalError: The rule could not be kept.
        """
        try:
            given = _decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ChangeError(
                "expected the body to be a JSON object with inputs_days and inferences_days, numbers or "
                f"null, got: {error}"
            ) from error
        inputs, inferences = given.inputs_days, given.inferences_days
        if inputs is not None and inferences is not None and inputs > inferences:
            raise ChangeError(
                f"expected inputs_days to be at most inferences_days ({inferences:g}), got {inputs:g}"
            )
        if (size := len(text(model).encode(errors="replace"))) > MAX_NAME_BYTES:
            raise ChangeError(
                f"expected a model's name of at most {MAX_NAME_BYTES} bytes, got {size}"
            )
        self._changes.apply([RetentionRule(model, inputs, inferences)])
        return self.get(model)
