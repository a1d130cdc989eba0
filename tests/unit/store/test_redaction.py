"""Secrets, and folders of this machine, do not stay in texts."""

from pathlib import Path

import pytest

from quadriga.store.records.redaction import HIDDEN, redact, without_folders, without_secrets

CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", HIDDEN),
        (CANARY, HIDDEN),
        (f"host=a password={CANARY}", HIDDEN),
        (f"postgresql://u:{CANARY}@host:5432/db", "postgresql://host:5432/db"),
        (f"postgresql://{CANARY}@host/db", "postgresql://host/db"),
        (f"mysql://u:{CANARY}@[::1]:3306/db", "mysql://[::1]:3306/db"),
        (f"postgresql://u:a@{CANARY}@host/db", "postgresql://host/db"),
        (f"postgresql://u:a/{CANARY}@host/db", "postgresql://host/db"),
        (f"postgresql://u:a?{CANARY}@host/db", f"postgresql://{HIDDEN}"),
        (f"postgresql://u:a#{CANARY}@host/db", f"postgresql://{HIDDEN}"),
        (f"postgresql://u:{CANARY}", f"postgresql://{HIDDEN}"),
        (f"postgresql://u:{CANARY}/db", f"postgresql://{HIDDEN}"),
        (f"postgresql://host/db?password={CANARY}", "postgresql://host/db"),
        (f"postgresql://host/db?password=a@{CANARY}", f"postgresql://{HIDDEN}"),
        (f"az://container/folder?sig={CANARY}", "az://container/folder"),
        ("sqlite:////data/store.db", "sqlite:////data/store.db"),
        ("s3://bucket/folder", "s3://bucket/folder"),
    ],
)
def test_a_url_is_shown_without_what_may_be_secret(url, expected):
    assert without_secrets(url) == expected
    assert CANARY not in without_secrets(url)


@pytest.mark.parametrize(
    "text",
    [
        f"cannot connect to postgresql://u:{CANARY}@host/db: no route",
        f"got 'https://u:{CANARY}@host:8443/db'",
        f"GET https://host/blob?sig={CANARY}&x=1 failed",
        f"conninfo: host=a password={CANARY}",
    ],
)
def test_credentials_are_left_out_of_any_text(text):
    assert CANARY not in redact(text)


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        (f"postgresql://u:{CANARY}@host/db", f"wrong password {CANARY!r}"),
        ("postgresql://u:canary%2F7f3a@host/db", "wrong password 'canary/7f3a'"),
        (f"postgresql://host/db?password={CANARY}", f"{CANARY} is wrong"),
        (f"u:{CANARY}", f"expected a URL, got u:{CANARY}"),
    ],
)
def test_known_secrets_are_left_out_with_their_parts(secret, text):
    hidden = redact(text, [secret])
    assert CANARY not in hidden
    assert "canary/7f3a" not in hidden
    assert HIDDEN in hidden


def test_other_texts_stay_as_they_are():
    text = "Quadriga listens on http://127.0.0.1:8080, mail@example.org, token 7"
    assert redact(text, ["", "a", "postgresql://u:a@host/db"]) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Load model from /srv/models/a/1/model.onnx failed", "Load model from a/1/model.onnx failed"),
        ("nothing in /srv/models", "nothing in models"),
        ("nothing in '/srv/models', sorry", "nothing in 'models', sorry"),
        ("/srv/models-2/a/model.onnx", "model.onnx"),
        ("cannot import name 'x' from 'm' (/opt/lib/m.py)", "cannot import name 'x' from 'm' (m.py)"),
        ("<module 'a' from '/home/u/a/__init__.py'>", "<module 'a' from '__init__.py'>"),
        ("OpenCV /io/opencv/modules/imgproc/src/resize.cpp:4211: error", "OpenCV resize.cpp:4211: error"),
        ("Name:'/model.0/conv/Conv' failed", "Name:'/model.0/conv/Conv' failed"),
        ("expected and/or, 1/255, ./a/b.py", "expected and/or, 1/255, ./a/b.py"),
    ],
)  # fmt: skip
def test_folders_of_this_machine_are_left_out(text, expected):
    assert without_folders(text, Path("/srv/models")) == expected


def test_the_root_of_all_is_no_folder_to_leave_out():
    assert without_folders("a / b", Path("/")) == "a / b"
