"""The TLS files of a running process, read again as they are renewed, and its contexts.

A renewal counts for new connections; open ones go on. Files that cannot be used leave everything as it is.
"""

import logging
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from quadriga.engine.access.tls_files import (
    TlsFiles,
    certificate_end_s,
    certificate_problem,
    own_client_context,
    read_tls_files,
    server_context,
    way_in_problem,
)
from quadriga.engine.config.settings import Settings
from quadriga.engine.config.settings_reading import SettingsError

REREAD_S = 1.0
"""Time between two looks at the files."""

_log = logging.getLogger(__name__)


class RenewedFiles:
    """The files that are in use.

    Args:
        settings: Settings that name the files.
        files: The files to begin with: those of the supervisor, as a worker may start while they are broken.
        is_silent: Whether another process of this server logs renewals.
    """

    def __init__(self, settings: Settings, files: TlsFiles, *, is_silent: bool = True) -> None:
        self._settings = settings
        self._is_silent = is_silent
        self._failures = 0
        self._stop = threading.Event()
        self.files = files
        self.context, self.grpc_context = server_context(files), server_context(files, "h2")
        self.certificate_end_s = certificate_end_s(files)
        """When the certificate in use ends, in seconds since 1970; None if that is not known."""
        self.own_problem = way_in_problem(files)
        """Why the server refuses requests of its own jobs, for a log; empty if it does not."""
        self._log_problem()

    def start(self) -> None:
        """Read the files again and again, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="tls-files", daemon=True).start()

    def close(self) -> None:
        """Read the files no more."""
        self._stop.set()

    def reread(self) -> None:
        """Read the files, and use them if they are new and right."""
        try:
            files = read_tls_files(self._settings)
            if files is None or files == self.files:
                self._failures = 0
                return
            context, grpc_context = server_context(files), server_context(files, "h2")
        except SettingsError as error:
            self._failures += 1
            # Certificate and key may be replaced one after the other: only what stays wrong is worth a line.
            if self._failures == 2 and not self._is_silent:
                _log.error("the TLS files stay those that were read last: %s", error)
            return
        self._failures = 0
        self.own_problem = way_in_problem(files)
        self.certificate_end_s = certificate_end_s(files)
        self.files, self.context, self.grpc_context = files, context, grpc_context
        if not self._is_silent:
            _log.info("new connections use the new TLS files")
        self._log_problem()

    def _run(self) -> None:
        while not self._stop.wait(REREAD_S):
            self.reread()

    def _log_problem(self) -> None:
        if not self._is_silent and (problem := certificate_problem(self.files)):
            _log.warning("clients will refuse the certificate of tls_certificate: %s", problem)


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


class OwnServerTrust:
    """What jobs trust: their own server, whose files may be renewed while they run. Safe to use from several threads.

    Args:
        settings: Settings that name the files.
        files: The files to begin with.
    """

    def __init__(self, settings: Settings, files: TlsFiles) -> None:
        self._settings = settings
        self._files = files
        self._context = own_client_context(files)
        self._lock = threading.Lock()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Workers may take a moment to use new files, so those before are trusted, too.
        """
        with self._lock:
            with suppress(SettingsError):  # the workers, too, use those that were read last
                files = read_tls_files(self._settings)
                if files is not None and files != self._files:
                    server_context(files)
                    self._context = own_client_context(files, self._files)
                    self._files = files
            return self._context
