"""The certificate of the server, its key, and the authority of its clients: read, checked, made TLS contexts, and renewed.

The files are read whole, so that HTTP and gRPC use the same ones however often they are replaced. A renewal counts for new
connections; open ones go on. Files that cannot be used leave everything as it is.
"""

import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from quadriga.engine.config.settings import Settings, SettingsError

REREAD_S = 1.0
"""Time between two looks at the files."""

_log = logging.getLogger(__name__)

_CERTIFICATE = re.compile(
    rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", re.MULTILINE
)
_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )?PRIVATE KEY-----")
_PASSWORD = re.compile(
    rb"-----BEGIN ENCRYPTED PRIVATE KEY-----|^Proc-Type: 4,ENCRYPTED", re.MULTILINE
)
_OTHER_KEY = {"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"}
"""Reasons of OpenSSL for a key that does not fit, the last one if it is of another kind, such as RSA and not EC."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python has no name for."""

_NO_WAY_IN = "with tls_client_ca the server's own certificate has to be one that tls_client_ca signed and that clients may present"
"""What a server needs whose jobs send requests to itself, where clients need a certificate."""


class TlsFiles(msgspec.Struct, frozen=True):
    """Contents of the files that the settings name, in PEM."""

    certificate: bytes
    """The certificate of the server, and those between it and its authority."""
    key: bytes
    client_ca: bytes = b""
    """Certificates of which one must have signed that of a client; empty if clients need none."""

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"TlsFiles({len(self.certificate)} bytes)"

    @property
    def own_certificate(self) -> bytes:
        """The certificate of the server, DER."""
        (first, *_) = _certificates(self.certificate)
        return ssl.PEM_cert_to_DER_cert(first.decode())


def read_tls_files(settings: Settings) -> TlsFiles | None:
    """Read the files that the settings name; None if they name none.

    Raises:
        SettingsError: A file cannot be read, or is not what its setting expects.
    """
    if not settings.tls_certificate:
        for name in ("tls_key", "tls_client_ca"):
            if getattr(settings, name):
                raise SettingsError(f"tls_certificate is required with {name}")
        return None
    certificate = _read(settings, "tls_certificate")
    if not _certificates(certificate):
        raise _unexpected(settings, "tls_certificate", "a certificate in PEM")
    name = "tls_key" if settings.tls_key else "tls_certificate"
    key = _read(settings, name)
    if not _KEY.search(key):
        hint = "" if settings.tls_key else ", as tls_key names no file"
        raise _unexpected(settings, name, f"a private key in PEM{hint}")
    if _PASSWORD.search(key):
        raise SettingsError(f"{name}: expected a private key without a password, got one with")
    client_ca = b""
    if settings.tls_client_ca:
        client_ca = _read(settings, "tls_client_ca")
        if not _certificates(client_ca):
            raise _unexpected(settings, "tls_client_ca", "certificates in PEM")
    return TlsFiles(certificate, key, client_ca)


def server_context(files: TlsFiles, protocol: str = "http/1.1") -> ssl.SSLContext:
    """Return a context that accepts connections, for a protocol as ALPN names it.

    Raises:
        SettingsError: A certificate cannot be parsed, or the key does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([protocol])
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), "tls_certificate", files.certificate)
    _load_own(context, files)
    if files.client_ca:
        _trust(context, "tls_client_ca", files.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def own_client_context(
    files: TlsFiles, *others: TlsFiles, has_time: bool = False
) -> ssl.SSLContext:
    """Return a context that connects to this server, and to no other, whatever name it is reached by.

    Args:
        files: The server's files; where clients need a certificate, the server's own is presented.
        others: Files that the server had before, or will have, whose certificate is trusted, too.
        has_time: Whether a certificate that has expired is refused.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not has_time:
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    for trusted in (files, *others):
        context.load_verify_locations(cadata=trusted.own_certificate)
    if files.client_ca:
        _load_own(context, files)
    return context


def certificate_problem(files: TlsFiles) -> str:
    """Return why clients will refuse the certificate whoever signed it, such as its age; empty if they will not."""
    plain = msgspec.structs.replace(files, client_ca=b"")
    return _refusal(server_context(plain), own_client_context(plain, has_time=True))


def certificate_end_s(files: TlsFiles) -> float | None:
    """Return when the certificate ends, in seconds since 1970; None if it is none of a server's, which OpenSSL does not read."""
    plain = msgspec.structs.replace(files, client_ca=b"")
    with suppress(ssl.SSLError):
        end = _shake_hands(server_context(plain), own_client_context(plain)).get("notAfter")
        return None if end is None else float(ssl.cert_time_to_seconds(str(end)))
    return None


def way_in_problem(files: TlsFiles) -> str:
    """Return why the server refuses requests of its own jobs, which present its own certificate; empty if it does not."""
    refusal = _refusal(server_context(files), own_client_context(files))
    return f"{_NO_WAY_IN} ({refusal})" if refusal else ""


def _refusal(server: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """Return why one of two contexts refuses the other; empty if they shake hands."""
    try:
        _shake_hands(server, client)
    except ssl.SSLError as error:
        return str(getattr(error, "verify_message", error.reason))
    return ""


class RenewedFiles:
    """The files that are in use, and contexts for new connections; safe to use from several threads.

    Args:
        settings: Settings that name the files.
        files: The files to begin with: those of the supervisor, as a worker may start while they are broken.
        is_silent: Whether another process of this server logs renewals.
    """

    def __init__(self, settings: Settings, files: TlsFiles, *, is_silent: bool = True) -> None:
        self._settings = settings
        self._is_silent = is_silent
        self._failures = 0
        self._lock = threading.Lock()
        self.files = files
        self._use(files)

    def start(self) -> None:
        """Read the files again and again, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="tls-files", daemon=True).start()

    def reread(self) -> None:
        """Read the files, and use them if they are new and right."""
        with self._lock:
            try:
                files = read_tls_files(self._settings)
                if files is not None and files != self.files:
                    self._use(files)
                self._failures = 0
            except SettingsError as error:
                self._failures += 1
                # Certificate and key may be replaced one after the other: only what stays wrong is worth a line.
                if self._failures == 2 and not self._is_silent:
                    _log.error("the TLS files stay those that were read last: %s", error)

    def trusting_context(self) -> ssl.SSLContext:
        """Return a context for a new connection to this server, whose workers may have new files a moment before or after."""
        self.reread()
        return self._trusting

    def _use(self, files: TlsFiles) -> None:
        contexts = server_context(files), server_context(files, "h2")
        self.own_problem = way_in_problem(files)
        """Why the server refuses requests of its own jobs, for a log; empty if it does not."""
        self.certificate_end_s = certificate_end_s(files)
        """When the certificate in use ends, in seconds since 1970; None if that is not known."""
        self._trusting = own_client_context(files, self.files)
        # Last, so that a connection that has the new certificate meets what was found out about it.
        self.context, self.grpc_context = contexts
        if files != self.files and not self._is_silent:
            _log.info("new connections use the new TLS files")
        self.files = files
        if not self._is_silent and (problem := certificate_problem(files)):
            _log.warning("clients will refuse the certificate of tls_certificate: %s", problem)

    def _run(self) -> None:
        while True:
            time.sleep(REREAD_S)
            self.reread()


class _Connection(ssl.SSLObject):
    """TLS of a connection, whose end waits for no client."""

    def unwrap(self) -> Any:
        """Say that this side sends no more; whether the client says so, too, is its own affair.

        The event loop would wait for that, which idle clients do not read, and the end of a server for the event loop.

        Source: RFC 8446, section 6.1.
        """
        with suppress(ssl.SSLError):
            super().unwrap()


class RenewedContext(ssl.SSLContext):
    """A context for a listening socket, each of whose connections has the context that is in use when it begins.

    To load other files into a context that is used would not do: it keeps the authorities that it has, and is left with
    a certificate and no key if they do not fit.
    """

    current: Callable[[], ssl.SSLContext]

    @classmethod
    def of(cls, current: Callable[[], ssl.SSLContext]) -> "RenewedContext":
        """Return a context, given what returns the one that is in use."""
        context = cls(ssl.PROTOCOL_TLS_SERVER)
        context.current = current
        return context

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection."""
        current = self.current()
        current.sslobject_class = _Connection
        return current.wrap_bio(*arguments, **options)


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> Mapping[str, object]:
    """Let two contexts shake hands in memory, and return what Python tells of the server's certificate.

    Raises:
        ssl.SSLError: One of them refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):  # a handshake of TLS 1.2 has two round trips
        for side in sides:
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return sides[0].getpeercert() or {}


def _read(settings: Settings, name: str) -> bytes:
    path = getattr(settings, name)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(f"{name}: cannot read {path}: {error.strerror}") from error


def _unexpected(settings: Settings, name: str, expected: str) -> SettingsError:
    return SettingsError(f"{name}: expected {expected} in {getattr(settings, name)}, got none")


def _certificates(pem: bytes) -> list[bytes]:
    return _CERTIFICATE.findall(pem)


def _trust(context: ssl.SSLContext, name: str, pem: bytes) -> None:
    """Let a context trust certificates.

    Raises:
        SettingsError: One cannot be parsed.
    """
    try:
        context.load_verify_locations(cadata=b"\n".join(_certificates(pem)).decode())
    except (ssl.SSLError, ValueError) as error:
        raise SettingsError(f"{name}: a certificate cannot be parsed: {_reason(error)}") from error


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Let a context present the server's certificate.

    Raises:
        SettingsError: The key cannot be parsed or does not fit, or the certificate is too weak.
    """
    with _memory_file(files.certificate) as certificate, _memory_file(files.key) as key:
        try:
            context.load_cert_chain(certificate, key, _no_password)
        except (ssl.SSLError, ValueError) as error:
            reason = _reason(error)
            if reason in _OTHER_KEY:
                text = "tls_key: expected the private key of the certificate, got another one"
            elif reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
                text = f"tls_certificate: expected a stronger key or signature ({reason})"
            else:
                text = f"tls_key: the private key cannot be parsed ({reason})"
            raise SettingsError(text) from error


def _no_password() -> str:
    raise ValueError("it has a password")  # OpenSSL would ask for it on the terminal


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error)


@contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Yield the path of a file in memory: OpenSSL takes a key from a file only."""
    with os.fdopen(os.memfd_create("quadriga-tls"), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"
