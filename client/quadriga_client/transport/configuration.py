"""What the environment says: the variables that the commands of `quadriga` read, too."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError

DEFAULT_URL = "http://127.0.0.1:8080"
KEY_VARIABLE = "QUADRIGA_API_KEY"
KEY_FILE_VARIABLE = "QUADRIGA_API_KEY_FILE"
CA_VARIABLE = "QUADRIGA_CA_FILE"
CERTIFICATE_VARIABLE = "QUADRIGA_CLIENT_CERTIFICATE_FILE"

Certificate = str | os.PathLike[str] | tuple[str | os.PathLike[str], str | os.PathLike[str]]
"""File with certificate and key, or one file for each."""


def chosen_key(key: str | None) -> str:
    """Return the key to send: the given one, or that of the environment, itself or in a file; empty for none.

    Raises:
        InputError: The file cannot be read, both variables are set, or the key has characters that none has.
    """
    if key is None:
        key, path = os.environ.get(KEY_VARIABLE, ""), os.environ.get(KEY_FILE_VARIABLE)
        if path and key:
            raise InputError(f"expected {KEY_VARIABLE} or {KEY_FILE_VARIABLE}, got both")
        if path:
            try:
                key = Path(path).read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{KEY_FILE_VARIABLE}: cannot read {path}: {error}") from error
    if not key.isascii() or not (key.isprintable() and " " not in key):
        raise InputError("expected a key of visible ASCII characters, got others")
    return key


def tls_contexts(
    ca: str | os.PathLike[str] | None, certificate: Certificate | None
) -> Callable[[], ssl.SSLContext]:
    """Return a function that returns the context of a new connection with https.

    Args:
        ca: File of the authorities that are trusted; None for that of the environment, or those of the system.
        certificate: Certificate and key of the client; None for those of the environment, or none.

    Raises:
        InputError: A file cannot be used.
    """
    named = "" if ca else f"{CA_VARIABLE}: "
    ca = ca or os.environ.get(CA_VARIABLE) or None
    certificate = certificate or os.environ.get(CERTIFICATE_VARIABLE) or None
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InputError(f"{named}cannot use the authorities of {ca}: {_reason(error)}") from error
    if certificate is not None:
        files = certificate if isinstance(certificate, tuple) else (certificate,)
        try:
            context.load_cert_chain(*files)
        except OSError as error:
            raise InputError(f"cannot use the certificate {files[0]}: {_reason(error)}") from error
    return lambda: context


def _reason(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
