"""Whether the headers of a request say in one way which host it is for, and where its body ends."""

import re
from collections.abc import Sequence
from functools import lru_cache

_HOST = re.compile(
    rb"(?:\[[0-9A-Fa-fvV.:]+\]|(?:[\w.~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]{0,5})?", re.ASCII
)
"""Source: RFC 3986, section 3.2.2: an address in brackets, or a name, which may be empty; and a port."""


MAX_REMEMBERED_HOST = 256
"""Maximum length of a Host that is remembered: clients choose it, and memory is limited."""


class FramingError(ValueError):
    """Headers that two servers might read differently."""


def check_headers(headers: Sequence[tuple[bytes, bytes]], http_version: str) -> None:
    """Check that the headers of a request name its host, and frame its body, in one way.

    Health checkers that speak HTTP/1.0 send no Host.

    Source: RFC 9112, sections 3.2 and 6.1.

    Raises:
        FramingError: They do not.
    """
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        raise FramingError(f"expected one header Host, got {len(hosts)}")
    if hosts and not _is_host(hosts[0]):
        raise FramingError(f"expected Host to be a name or an address, got {hosts[0]!r:.80}")
    if http_version != "1.1" and any(name == b"transfer-encoding" for name, _ in headers):
        raise FramingError(f"expected no Transfer-Encoding in HTTP/{http_version}, got one")


def _is_host(value: bytes) -> bool:
    if len(value) > MAX_REMEMBERED_HOST:
        return _HOST.fullmatch(value) is not None
    return _is_short_host(value)


@lru_cache(maxsize=64)
def _is_short_host(value: bytes) -> bool:
    return _HOST.fullmatch(value) is not None
