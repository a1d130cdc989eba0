"""Releases are signed and verified by the commands of the page on security."""

from pathlib import Path

import pytest

from tests.certificates import openssl
from tests.pages import blocks, shell

FILES = ("quadriga-0.2.0-py3-none-any.whl", "quadriga-0.2.0.tar.gz", "sbom.cdx.json")


def add_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"a")


def sign_by_another(folder: Path) -> None:
    openssl("genrsa", "-out", folder / "another.key")
    sums, signature = folder / "SHA256SUMS", folder / "SHA256SUMS.sig"
    openssl("dgst", "-sha256", "-sign", folder / "another.key", "-out", signature, sums)


@pytest.mark.parametrize(
    "harm",
    [
        *(lambda folder, name=name: add_byte(folder / name) for name in FILES),
        lambda folder: add_byte(folder / "SHA256SUMS"),
        lambda folder: (folder / FILES[0]).unlink(),
        sign_by_another,
    ],
    ids=[*FILES, "the list", "a file is missing", "another key"],
)
def test_a_release_is_accepted_as_it_was_signed_only(tmp_path, harm):
    sign, verify = (block.text for block in blocks("docs/security.md") if "dgst" in block.text)
    folder = tmp_path / "dist"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(name)
    openssl("genrsa", "-out", tmp_path / "release.key")
    openssl("rsa", "-in", tmp_path / "release.key", "-pubout", "-out", folder / "release.pem")
    shell(sign, tmp_path)
    output = shell(verify, folder)
    assert "Verified OK" in output
    assert all(f"{name}: OK" in output for name in FILES)
    harm(folder)
    shell(verify, folder, code=1)
