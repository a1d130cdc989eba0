"""Who sends a request, and whether the door that it knocks at opens: one decision for every protocol.

Every operation, route and RPC declares what it needs; `admit` compares that with the rights of the caller. Who the
caller is, a `Gate` reads from the request's key. A `Quota` limits how many requests a key may send.

Source: draft-ietf-httpapi-ratelimit-headers-10 (`RateLimit-Policy`, `RateLimit`), RFC 6585, section 4 (429), RFC 9110,
section 10.2.3 (`Retry-After`).
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, Protocol

import msgspec

from quadriga.proto.errors import Forbidden, KeysNotRead, Unauthenticated
from quadriga.quoting import quoted

Role = Literal["infer", "metrics", "read", "annotate", "monitor", "operate", "admin"]
"""What a key is for; `ROLES` has what each may do."""

Need = Literal["nothing", "key", Role]
"""What a door needs: nothing, any key, or the right of a role."""

ROLES: Mapping[Role, tuple[Role, ...]] = {
    "infer": ("infer",),
    "metrics": ("metrics",),
    "read": ("read",),
    "annotate": ("annotate", "read"),
    "monitor": ("monitor", "read", "metrics"),
    "operate": ("operate", "infer", "metrics", "read", "annotate", "monitor"),
    "admin": ("admin", "operate", "infer", "metrics", "read", "annotate", "monitor"),
}
"""Rights of each role: to run models; to read `/metrics`; to search what is stored; to correct it; to run and schedule reports; to load,
unload and delete; to manage keys. A new right that changes something also belongs in `CHANGING`: such requests are audited."""

CHANGING: frozenset[Need] = frozenset({"annotate", "monitor", "operate"})
"""Needs of doors that change something, unless the request is a GET; see `quadriga.proto.request.is_audited`."""

AUTHORIZATION = b"authorization"
KEY_HEADER = b"x-api-key"
TEAM_HEADER = b"x-quadriga-team"
"""Header in which the server's own jobs name the team that they work for; of nobody else it has a meaning."""

RateHeaders = Sequence[tuple[bytes, bytes]]
"""Headers of an answer that tell a client what is left of its rate."""

NO_KEY = "expected a key in Authorization: Bearer or X-API-Key, got none"


class Quota:
    """The limits of a key, and what it has used of them: here none; methods are safe to call from any thread."""

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited; else requests are counted only."""
        return False

    def check(self) -> None:
        """Check, without counting anything, that a request may begin now; raises LimitReached if not."""

    def begin(self) -> RateHeaders:
        """Count a request that begins; return headers for its answer.

        Raises:
            LimitReached: The key has used up what it has, and nothing was counted.
        """
        return ()

    def end(self) -> None:
        """Count the end of a request that had begun."""

    def resume(self) -> None:
        """Count a request that had ended as one at once with others again, up to its next end: its answer has not left."""

    def add_message(self) -> None:
        """Count a further request within one that has begun, as in a stream; raises as `begin`."""

    def check_jobs(self, unfinished: int) -> None:
        """Check that the key may submit a job, given its jobs that wait or run; raises LimitReached if not."""


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Sender of a request, as far as the server knows it."""

    name: str
    """Name for logs: that of the key, never its secret."""
    key_id: str = ""
    """Id of the key; empty without one."""
    rights: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    """Patterns of the models that the key is for, such as `shapes-*`; empty for all models."""
    team: str = ""
    """Team that the caller belongs to; empty for none."""
    quota: Quota | None = None
    """Limits of the key, and what it has used; None without a key."""
    is_of_jobs: bool = False
    """Whether the server's own jobs send the request: they alone may name a team in `TEAM_HEADER`."""
    refusal: str = NO_KEY
    """Why the caller has no rights: the text of the error, for a caller without rights."""
    is_known: bool = True
    """Whether the server can tell who it is: not before it has read its keys."""

    def may_use(self, model: str) -> bool:
        """Check whether the key is for a model."""
        return not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)


ANYBODY = Caller(name="anybody", rights=frozenset(ROLES["admin"]))
"""Caller of a server that needs no keys."""

STRANGER = Caller(name="nobody")
"""Caller without a key, where keys are needed."""


class Gate(Protocol):
    """Tells who sends a request."""

    def identify(self, read_header: Callable[[bytes], bytes | None]) -> Caller:
        """Return the caller of a request, by its headers or metadata; names are in lower case. Raises nothing."""


class OpenGate:
    """Gate of a server that needs no keys."""

    def identify(self, _: Callable[[bytes], bytes | None]) -> Caller:
        """Return `ANYBODY`."""
        return ANYBODY


def admit(caller: Caller, need: Need) -> None:
    """Return if a caller has what a door needs.

    Raises:
        Unauthenticated: The caller has no valid key.
        Forbidden: The key has not this right.
        KeysNotRead: The server does not know its keys yet.
    """
    if need == "nothing":
        return
    if not caller.is_known:
        raise KeysNotRead(caller.refusal)
    if not caller.rights:
        raise Unauthenticated(caller.refusal)
    if need not in caller.rights and need != "key":
        roles = [role for role, rights in ROLES.items() if need in rights]
        owned = ", ".join(role for role in ROLES if role in caller.rights)
        raise Forbidden(f"expected a key with the role {' or '.join(roles)}, got one for {owned}")


def admit_model(caller: Caller, name: str, folder_name: str) -> None:
    """Return if the key of a caller is for a model.

    Args:
        caller: Sender of the request.
        name: The model, as the request names it.
        folder_name: The name that the server has for it; `name` for an unknown model.

    Raises:
        Forbidden: The key is for other models.
    """
    if not (caller.may_use(folder_name) or caller.may_use(name)):
        patterns = ", ".join(caller.models)
        raise Forbidden(f"expected a key for the model {quoted(name, 100)}, got one for {patterns}")


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return headers or metadata by their names; of repeated ones the last.

    A header of a key that is repeated has all its values, with commas between (RFC 9110, section 5.3), which are no key:
    what is in front of this server may have read another one of them.
    """
    headers = headers if isinstance(headers, list) else list(headers)
    by_name = dict(headers)
    if len(by_name) != len(headers):
        for name in (AUTHORIZATION, KEY_HEADER):
            if name in by_name:
                by_name[name] = b", ".join(value for other, value in headers if other == name)
    return by_name


def presented_key(read_header: Callable[[bytes], bytes | None]) -> str | None:
    """Return the key that a request presents; None if it presents none.

    The password of `Basic` counts, too: senders that know no header but a URL, as KServe's logger, have it there.

    Source: RFC 6750, section 2.1, and RFC 7617, section 2, for the header `Authorization`.
    """
    key = read_header(KEY_HEADER)
    if key is None:
        scheme, _, key = (read_header(AUTHORIZATION) or b"").partition(b" ")
        if scheme.lower() == b"basic":
            return _password(key.strip())
        if scheme.lower() != b"bearer":
            return None
    return key.strip().decode("latin-1") or None


def _password(credentials: bytes) -> str | None:
    """Return the password of `user:password` in base64; None if there is none."""
    try:
        _, _, password = base64.b64decode(credentials, validate=True).partition(b":")
    except ValueError:
        return None
    return password.decode("latin-1") or None
