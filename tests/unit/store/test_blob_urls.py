import errno
import stat
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from quadriga.store.blobs.files import FileBlobs
from quadriga.store.blobs.interface import blob_key
from quadriga.store.blobs.urls import BlobUrls
from quadriga.store.records.errors import NotFoundError, NotReadyError, QueryError


@pytest.fixture
def blobs(tmp_path: Path) -> FileBlobs:
    return FileBlobs(tmp_path / "blobs")


def parts(url: str) -> dict[str, str]:
    split = urlsplit(url)
    query = {name: values[0] for name, values in parse_qs(split.query).items()}
    query["mime"], query["inference_id"] = query.pop("type"), query.pop("inference")
    return query | {"digest": split.path.rpartition("/")[2]}


def test_a_signed_url_names_the_bytes_to_every_worker_and_after_a_restart(blobs, tmp_path) -> None:
    key = blobs.put(b"image")
    file = tmp_path / "data" / "url.key"
    url = BlobUrls(blobs, file).sign(key, "image/png", "http://host:1/api/blobs/", inference_id="7")
    assert url.startswith(f"http://host:1/api/blobs/{key.partition(':')[2]}?expires=")
    assert BlobUrls(blobs, file).verify(**parts(url)) == b"image"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    with pytest.raises(QueryError, match="the signature of the URL"):
        BlobUrls(blobs, tmp_path / "other.key").verify(**parts(url))
    file.write_bytes(b"\xff\r\n")  # a key of others' making
    url = BlobUrls(blobs, file).sign(key, "image/png", "http://host:1/api/blobs/", inference_id="7")
    assert BlobUrls(blobs, file).verify(**parts(url)) == b"image"


SHARED = "a secret of all servers behind one address"


def test_servers_with_a_common_secret_serve_the_urls_of_each_other(blobs, tmp_path) -> None:
    key = blobs.put(b"image")
    first, second = (
        BlobUrls(blobs, tmp_path / name / "url.key", shared_secret=SHARED) for name in "ab"
    )
    url = first.sign(key, "image/png", "http://host/api/blobs/", inference_id="7")
    assert second.verify(**parts(url)) == b"image"
    assert not list(tmp_path.glob("?/url.key"))  # nobody needs one
    for other in (
        BlobUrls(blobs, tmp_path / "a" / "url.key"),
        BlobUrls(blobs, tmp_path / "a" / "url.key", shared_secret=SHARED + "."),
    ):
        with pytest.raises(QueryError, match="the signature of the URL"):
            other.verify(**parts(url))


def test_urls_that_were_signed_before_a_common_secret_stay_valid(blobs, tmp_path) -> None:
    key, file = blobs.put(b"image"), tmp_path / "url.key"
    url = BlobUrls(blobs, file).sign(key, "image/png", "http://host/api/blobs/", inference_id="7")
    assert BlobUrls(blobs, file, shared_secret=SHARED).verify(**parts(url)) == b"image"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("digest", "0" * 64),
        ("expires", "99999999999"),
        ("expires", ""),
        ("expires", "soon\n"),
        ("mime", "text/html"),
        ("signature", ""),
        ("signature", "0" * 64),
        ("signature", "é\ud800"),
    ],
)
def test_a_url_that_was_changed_is_refused(blobs, tmp_path, name: str, value: str) -> None:
    urls = BlobUrls(blobs, tmp_path / "url.key")
    signed = parts(
        urls.sign(blobs.put(b"image"), "image/png", "http://host/api/blobs/", inference_id="7")
    )
    with pytest.raises(QueryError, match="the signature of the URL is not one of this server"):
        urls.verify(**(signed | {name: value}))


def test_fields_do_not_run_into_each_other(blobs, tmp_path) -> None:
    urls = BlobUrls(blobs, tmp_path / "url.key")
    signed = parts(
        urls.sign(blobs.put(b"image"), "1\n2", "http://host/api/blobs/", inference_id="7")
    )
    moved = signed | {"expires": signed["expires"] + "\n1", "mime": "2"}
    with pytest.raises(QueryError):
        urls.verify(**moved)


def test_a_url_whose_time_is_over_is_refused(blobs, tmp_path) -> None:
    urls = BlobUrls(blobs, tmp_path / "url.key", seconds=-1)
    signed = parts(
        urls.sign(blobs.put(b"image"), "image/png", "http://host/api/blobs/", inference_id="7")
    )
    with pytest.raises(QueryError, match="the URL has expired"):
        urls.verify(**signed)


def test_bytes_that_are_gone_are_said(blobs, tmp_path) -> None:
    urls = BlobUrls(blobs, tmp_path / "url.key")
    key = blobs.put(b"image")
    signed = parts(urls.sign(key, "image/png", "http://host/api/blobs/", inference_id="7"))
    assert blobs.delete(key, as_of=time.time() + 7200)
    with pytest.raises(NotFoundError, match="blob not found"):
        urls.verify(**signed)


def test_without_room_for_the_key_nothing_is_signed_and_nothing_left(
    blobs, tmp_path, monkeypatch
) -> None:
    urls = BlobUrls(blobs, tmp_path / "data" / "url.key")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.link", full)
        with pytest.raises(NotReadyError, match="No space left"):
            urls.sign(blob_key(b"image"), "image/png", "http://host:1/api/blobs/", inference_id="7")
    assert list((tmp_path / "data").iterdir()) == []
    assert urls.sign(
        blob_key(b"image"), "image/png", "http://host/b/", inference_id="7"
    ).startswith("http://host/b/")
