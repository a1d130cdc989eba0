"""The traffic rule of a model: the shares of its versions, and the key whose values keep to one version.

All workers of all servers draw alike, as a draw is a hash of what the request brings, and of nothing else.
"""

import hashlib
import math
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from quadriga.proto.errors import InvalidRequest, ProtocolError
from quadriga.proto.http.chariot import parse_metadata_value
from quadriga.proto.messages import InferRequest
from quadriga.quoting import quoted
from quadriga.store.errors import JSON_ERRORS

MAX_SHARES = 16
"""Maximum number of versions with a share."""

MAX_KEY_CHARACTERS = 256
"""Maximum length of the metadata key, and of a version."""

_TOLERANCE = 1e-6
"""How far the sum of shares may be from 1, as decimal fractions are rounded."""


class TrafficRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How requests to a model that name no version are divided."""

    shares: dict[str, float] = {}
    """Share of each version, together 1; empty: the highest version that is ready answers all."""
    sticky_by: str | None = None
    """Metadata key: requests with the same value of it are answered by the same version."""

    @property
    def is_default(self) -> bool:
        """Whether it changes nothing."""
        return not self.shares

    @property
    def main_version(self) -> str | None:
        """The version with the largest share, the highest of several; None without shares."""
        shares = self.shares
        return max(shares, key=lambda name: (shares[name], version_order(name)), default=None)


class Draw(msgspec.Struct, frozen=True):
    """What a rule decides about one request."""

    version: str | None
    """The version that answers; None: the highest that is ready."""
    wanted: str | None
    """The version that would answer if all were ready."""


def decode_rule(body: bytes) -> TrafficRule:
    """Decode a rule from JSON.

    Raises:
        InvalidRequest: It is no rule, or its numbers make no sense.
    """
    try:
        rule = msgspec.json.decode(body or b"{}", type=TrafficRule)
    except JSON_ERRORS as error:
        raise InvalidRequest(
            f"expected a JSON object with shares and sticky_by, got: {quoted(str(error), 300)}"
        ) from error
    check_rule(rule)
    return rule


def check_rule(rule: TrafficRule) -> None:
    """Check the numbers and texts of a rule; raises as `decode_rule`."""
    if len(rule.shares) > MAX_SHARES:
        raise InvalidRequest(
            f"expected shares of at most {MAX_SHARES} versions, got {len(rule.shares)}"
        )
    for version, share in rule.shares.items():
        if not 0 <= share <= 1:  # false for NaN, too
            raise InvalidRequest(
                f"expected the share of version {quoted(version, 40)} to be from 0 to 1, got {share:g}"
            )
    total = math.fsum(rule.shares.values())
    if rule.shares and abs(total - 1) > _TOLERANCE:
        raise InvalidRequest(f"expected shares that add up to 1, got {total:g}")
    if rule.sticky_by is not None:
        if not rule.shares:
            raise InvalidRequest("expected shares beside sticky_by, got none")
        if not 0 < len(rule.sticky_by) <= MAX_KEY_CHARACTERS:
            raise InvalidRequest(
                f"expected sticky_by to be a metadata key of 1 to {MAX_KEY_CHARACTERS} characters, "
                f"got {len(rule.sticky_by)}"
            )


def check_versions(rule: TrafficRule, model: str, versions: Collection[str]) -> None:
    """Check that a model has the versions of a rule.

    Raises:
        InvalidRequest: It has not; the text names those that it has.
    """
    for version in rule.shares:
        if version not in versions:
            known = ", ".join(sorted(versions, key=version_order)[:20])
            raise InvalidRequest(
                f"expected a version of {model!r} among {known}, got {quoted(version, 40)}"
            )


def draw_version(
    rule: TrafficRule, model: str, request: InferRequest, ready: Collection[str]
) -> Draw:
    """Draw the version that answers a request, among those that are ready.

    The share of a version that is not ready goes to the others, by a further draw: what they answer anyway stays theirs.
    """
    shares = {version: share for version, share in rule.shares.items() if share > 0}
    if not shares:
        return Draw(None, None)
    subject = _subject(rule, request)
    wanted = version = _drawn(shares, model, subject, "")
    while version is not None and version not in ready:
        del shares[version]
        version = _drawn(shares, model, subject, version)
    return Draw(version, wanted)


def version_order(version: str) -> tuple[int, str]:
    """Return a sort key of versions, which are numbers."""
    return (int(version) if version.isdecimal() else -1, version)


def _drawn(shares: Mapping[str, float], model: str, subject: str, salt: str) -> str | None:
    """Return the version at whose part of the line a subject lies; None without versions."""
    versions = sorted(shares, key=version_order)
    place = _point(model, subject, salt) * math.fsum(shares.values())
    for version in versions:
        place -= shares[version]
        if place < 0:
            return version
    return versions[-1] if versions else None  # rounding


def _point(model: str, subject: str, salt: str) -> float:
    """Return a number from 0 to below 1 that follows from texts, spread evenly."""
    text = f"{salt}\0{model}\0{subject}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest()) / (1 << 48)


def _subject(rule: TrafficRule, request: InferRequest) -> str:
    """Return what decides about a request: the value of the sticky key, else the id of the request."""
    if rule.sticky_by is not None:
        value = _metadata_value(request, rule.sticky_by)
        if value is not None:
            return f"{rule.sticky_by}={value}"
    return request.id


def _metadata_value(request: InferRequest, key: str) -> str | None:
    """Return a value of the metadata as JSON, that of the first input that has it; None where there is none.

    Metadata that cannot be read counts as none here: whoever reads it to store it refuses the request.
    """
    for parameters in (*(tensor.parameters for tensor in request.inputs), request.parameters):
        written = parameters.get("metadata")
        if written is None:
            continue
        try:
            value: Any = parse_metadata_value(written, "metadata")
        except (ProtocolError, ValueError, RecursionError):
            return None
        value = value[key] if key in value else _at_path(value, key.split("."))
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int | float | bool):
            return msgspec.json.encode(value).decode()
    return None


def _at_path(value: Any, parts: list[str]) -> Any:
    for part in parts:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value
