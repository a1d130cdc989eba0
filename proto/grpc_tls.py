"""TLS of the gRPC port: the certificate is asked for again with each connection, as it may be renewed."""

from collections.abc import Callable
from typing import Any

import grpc

TlsTexts = tuple[bytes, bytes, bytes]
"""Certificate, private key, and the certificates that may have signed those of clients (empty: they need none), PEM."""


def server_credentials(read: Callable[[], TlsTexts]) -> Any:
    """Return credentials that use what `read` returns when a connection begins; gRPC takes TLS 1.2 and later.

    Whether clients need a certificate is decided now, and stays.
    """
    texts = read()

    def fetch() -> Any:
        """Return the new configuration; None for the one before."""
        nonlocal texts
        latest = read()
        if latest == texts:
            return None
        texts = latest
        return _configuration(latest)

    return grpc.dynamic_ssl_server_credentials(_configuration(texts), fetch, bool(texts[2]))


def _configuration(texts: TlsTexts) -> Any:
    certificate, key, client_ca = texts
    return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca or None)
