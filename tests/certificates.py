"""A local authority and the certificates that it signs, made by the command openssl, as the page on security shows."""

import shutil
import subprocess
from pathlib import Path

_NEW_KEY = ("-noenc", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def openssl(*arguments: object) -> None:
    """Run the command, which these tests need."""
    program = shutil.which("openssl")
    assert program, "the tests of TLS need the command openssl: apt-get install openssl"
    subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """An authority with its files in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        openssl(
            *("req", "-x509", *_NEW_KEY, "-subj", f"/CN={folder.name}"),
            *("-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign"),
            *("-keyout", self._key, "-out", self.certificate),
        )

    def sign(
        self,
        name: str,
        *,
        usage: str = "serverAuth,clientAuth",
        days: int = 1,
        new_key: tuple[str, ...] = _NEW_KEY,
    ) -> Path:
        """Sign a certificate for 127.0.0.1 and localhost; return a file with it and its key.

        One of -1 days has expired already.
        """
        path, key, request, extensions = (
            self._folder / f"{name}.{ending}" for ending in ("pem", "key", "csr", "ext")
        )
        extensions.write_text(
            "basicConstraints=critical,CA:FALSE\n"
            "subjectAltName=DNS:localhost,IP:127.0.0.1\n"
            f"extendedKeyUsage={usage}\n"
        )
        openssl("req", *new_key, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key),
            *("-days", days, "-extfile", extensions, "-out", path),
        )
        path.write_bytes(path.read_bytes() + key.read_bytes())
        return path


def replace_by_link(link: Path, target: Path) -> None:
    """Let a link point elsewhere at once, as Kubernetes and cert-manager renew files."""
    new = link.with_name(f"{link.name}.new")
    new.symlink_to(target)
    new.replace(link)
