"""Search of files for ids of inferences, hashes of images and texts: as text, as numbers, and within archives."""

import re
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20
"""Part of a file that is searched at once: the other threads of the process wait for that."""

_OVERLAP_BYTES = 4096
"""Longest mention that may lie across two chunks; texts of a filter are shorter."""

_TOKENS = re.compile(rb"[0-9a-f]{64}|[0-9]{1,19}")
_TEXT_FILES = (".json", ".jsonl", ".html", ".txt", ".csv")
_WITHOUT_RECORDS = (".json", ".html", ".txt", ".csv")
"""Files in which texts count: those of records name the inferences themselves."""
_MIN_TEXT = 3  # characters; shorter texts are everywhere
_ARCHIVES = (".zip", ".npz")


class Mentions:
    """What to look for.

    Args:
        ids: Ids of inferences.
        digests: Hashes of images, as `blake3:<hex>`.
        texts: Texts, which count where no letter or digit is beside them.
    """

    def __init__(self, ids: Iterable[int], digests: Iterable[str], texts: Iterable[str]) -> None:
        self._ids = sorted(ids)
        self._tokens = {str(id_).encode() for id_ in self._ids}
        self._tokens |= {digest.rpartition(":")[2].encode() for digest in digests}
        words = sorted({form for text in texts for form in _forms(text)})
        self._words = (
            re.compile(rb"(?<!\w)(?:" + b"|".join(map(re.escape, words)) + rb")(?!\w)")
            if words
            else None
        )

    def are_in(self, path: Path) -> bool:
        """Check whether a file, or any file below a folder, mentions anything; an unreadable one counts as if it did."""
        if path.is_dir():
            return any(self.are_in(entry) for entry in path.iterdir())
        with suppress(FileNotFoundError), path.open("rb") as file:
            return self._are_in_file(file, path.name)
        return False

    def are_in_bytes(self, data: bytes) -> bool:
        """Check whether text mentions anything."""
        if self._words is not None and self._words.search(data):
            return True
        return self._are_tokens_in(data)

    def _are_tokens_in(self, data: bytes) -> bool:
        return bool(self._tokens) and any(
            match.group() in self._tokens for match in _TOKENS.finditer(data)
        )

    def _are_in_file(self, file: IO[bytes], name: str) -> bool:
        if name.endswith(_ARCHIVES):
            with suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
                return any(self._are_in_member(archive, info) for info in archive.infolist())
            return True
        if name.endswith(".parquet"):
            return any(self._are_tokens_in(ids) for ids in _parquet_ids(file))
        is_text, with_words = name.endswith(_TEXT_FILES), name.endswith(_WITHOUT_RECORDS)
        for chunk in _chunks(file):
            if self.are_in_bytes(chunk) if with_words else self._are_tokens_in(chunk):
                return True
            if not is_text and self._are_numbers_in(chunk):
                return True
        return False

    def _are_in_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bool:
        if self._are_tokens_in(info.filename.encode()):
            return True
        with archive.open(info) as member:
            return self._are_in_file(member, info.filename)

    def _are_numbers_in(self, chunk: bytes) -> bool:
        """Look for the ids as 64-bit integers at any offset, as arrays and MessagePack have them."""
        if not self._ids:
            return False
        import numpy as np  # noqa: PLC0415 - the writer starts without it

        numbers = np.array(self._ids, dtype=np.int64)
        for offset in range(8):
            count = (len(chunk) - offset) // 8
            if count <= 0:
                break
            for order in ("<i8", ">i8"):
                values = np.frombuffer(chunk, order, count, offset).astype(np.int64)
                places = np.searchsorted(numbers, values).clip(max=len(numbers) - 1)
                if (numbers[places] == values).any():
                    return True
        return False


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    rest = b""
    while data := file.read(_CHUNK_BYTES):
        yield rest + data
        rest = (rest + data)[-_OVERLAP_BYTES:]


def _parquet_ids(file: IO[bytes]) -> Iterator[bytes]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - optional dependency, of those who made the file

    for batch in pq.ParquetFile(file).iter_batches(columns=["id"]):
        yield "\n".join(map(str, batch.column(0).to_pylist())).encode()


def _forms(text: str) -> Iterator[bytes]:
    """Yield a text as it is, as JSON has it, and as HTML has it; none if it is too short."""
    if len(text) >= _MIN_TEXT:
        yield text.encode(errors="replace")
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield escaped.replace('"', "&#34;").replace("'", "&#39;").encode(errors="replace")
        yield text.replace("\\", "\\\\").replace('"', '\\"').encode(errors="replace")
