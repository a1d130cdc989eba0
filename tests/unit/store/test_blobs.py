from pathlib import Path

import pytest

from store.blobs import BlobStore
from store.errors import JournalError, StoreError

EMPTY = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@pytest.mark.parametrize("data", [b"", b"x", b"\x89PNG" * 100_000])
def test_bytes_come_back_by_their_key(tmp_path: Path, data: bytes) -> None:
    blobs = BlobStore(tmp_path)
    key = blobs.put(data)
    assert key == blobs.key(data)
    assert blobs.get(key) == data


def test_the_same_bytes_are_one_file_in_a_folder_by_prefix(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path)
    assert blobs.put(b"") == blobs.put(b"") == EMPTY
    digest = EMPTY.removeprefix("blake3:")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / digest[:2] / digest]


def test_bytes_never_kept_are_none(tmp_path: Path) -> None:
    assert BlobStore(tmp_path).get(EMPTY) is None


@pytest.mark.parametrize(
    "key", ["", "blake3:", "blake3:../../etc/passwd", "sha256:" + "0" * 64, "blake3:" + "A" * 64,
            "blake3:" + "0" * 64 + "\n", "blake3:" + "0" * 63]
)  # fmt: skip
def test_malformed_keys_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(StoreError, match="expected a blob key"):
        BlobStore(tmp_path).get(key)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        BlobStore(tmp_path).put("text")  # type: ignore[arg-type]
    digest = EMPTY.removeprefix("blake3:")
    (tmp_path / digest[:2]).touch()  # a file where the folder belongs
    with pytest.raises(JournalError, match="expected to keep 0 bytes"):
        BlobStore(tmp_path).put(b"")
    assert [p.name for p in tmp_path.iterdir()] == [digest[:2]]
