"""Messages to webhooks in each form."""

import base64
import hashlib
import hmac
import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from quadriga.monitor.watch.alerts import Delivery, message_of, standard_signature
from quadriga.monitor.watch.webhooks import Webhook, check_webhooks
from quadriga.store.records.errors import QueryError

PAGE = Path(__file__).parents[4] / "docs" / "drift-reference.md"
BLOCKS = [
    json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
]
URL = "https://example.org/hook"
WINDOW = {"from": "2026-03-01T12:00:00.000Z", "to": "2026-03-01T13:00:00.000Z", "n": 912}
REPORT = "/api/reports/1772370061000000000-5a8f"
SIGNAL = {"name": "image.brightness", "effect": 1.31, "least_effect": 0.1, "p_adjusted": 0.0004}
DRIFT = {"event": "drift", "model": "shapes-detector", "window": WINDOW, "signals": [SIGNAL], "report": REPORT}  # fmt: skip
FALL = {
    "event": "fall", "model": "shapes-detector", "kind": "evaluation", "window": WINDOW,
    "metric": {"name": "AP", "value": 0.41, "low": 0.37, "high": 0.45},
    "reason": "AP is 0.45 at most, expected at least 0.5", "report": REPORT,
}  # fmt: skip
START = "2026-03-01T10:00:00.000Z"


def delivery(event, **changes):
    values = {"queued_s": 1772370063.25, "alarm_start": START} | changes
    return Delivery(id="1-drift-2", model="m", url=URL, body=json.dumps(event), **values)


def content(event, format_, **changes):
    return json.loads(message_of(Webhook(URL, None, format_), delivery(event, **changes), 5).body)


def test_the_signature_is_that_of_the_reference_library():
    """The secret, message and signature are those of the tests of the library `standardwebhooks`."""
    signature = standard_signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp="1614265330",
        body=b'{"test": 2432232314}',
    )
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize("format_", ["standard", "alertmanager"])
@pytest.mark.parametrize(
    ("secret", "key"),
    [
        ("known to both", b"known to both"),
        ("whsec_" + base64.b64encode(b"\xff\x00key").decode(), b"\xff\x00key"),
        ("whsec_" + base64.b64encode(b"unpadded").decode().rstrip("="), b"unpadded"),
    ],
)
def test_messages_are_signed_with_their_id_and_time(format_, secret, key):
    headers, body = message_of(Webhook(URL, secret, format_), delivery(DRIFT), 1772370064.9)
    assert headers.keys() == {"webhook-id", "webhook-timestamp", "webhook-signature"}
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("1-drift-2", "1772370064")
    version, _, digest = headers["webhook-signature"].partition(",")
    signed = b"1-drift-2.1772370064." + body
    assert version == "v1"
    assert base64.b64decode(digest) == hmac.new(key, signed, hashlib.sha256).digest()
    unsigned = message_of(Webhook(URL, None, format_), delivery(DRIFT), 5).headers
    assert unsigned.keys() == {"webhook-id", "webhook-timestamp"}


def test_the_body_of_standard_webhooks_has_type_timestamp_and_data():
    shown = next(block for block in BLOCKS if "type" in block)
    assert content(DRIFT, "standard") == shown
    assert shown["data"] == {"kind": "drift"} | {key: DRIFT[key] for key in DRIFT if key != "event"}
    fall = content(FALL, "standard")
    assert (fall["type"], fall["data"]["metric"]["value"]) == ("evaluation.fall", 0.41)
    for event in (DRIFT, FALL):
        recovered = content(event | {"event": "recovered"}, "standard")
        assert recovered["type"] == f"{event.get('kind', 'drift')}.recovered"


GROUP_TYPES = {
    "version": str, "groupKey": str, "truncatedAlerts": int, "status": str, "receiver": str, "groupLabels": dict,
    "commonLabels": dict, "commonAnnotations": dict, "externalURL": str, "alerts": list,
}  # fmt: skip
ALERT_TYPES = {
    "status": str, "labels": dict, "annotations": dict, "startsAt": str, "endsAt": str, "generatorURL": str,
    "fingerprint": str,
}  # fmt: skip


@pytest.mark.parametrize("event", [DRIFT, FALL])
def test_the_body_of_alertmanager_is_what_its_receivers_decode(event):
    firing = content(event, "alertmanager")
    resolved = content(event | {"event": "recovered", "reason": ""}, "alertmanager")
    for group, status in ((firing, "firing"), (resolved, "resolved")):
        (alert,) = group["alerts"]
        assert {key: type(value) for key, value in group.items()} == GROUP_TYPES
        assert {key: type(value) for key, value in alert.items()} == ALERT_TYPES
        assert (group["version"], group["status"], alert["status"]) == ("4", status, status)
        for texts in (alert["labels"], alert["annotations"], group["groupLabels"]):
            assert {type(value) for value in texts.values()} == {str}
        assert group["commonLabels"] == alert["labels"]
        assert group["commonAnnotations"] == alert["annotations"]
        assert alert["annotations"]["report"] == REPORT
        assert datetime.fromisoformat(alert["startsAt"]) == datetime.fromisoformat(START)
    before, after = firing["alerts"][0], resolved["alerts"][0]
    assert before["endsAt"] == "0001-01-01T00:00:00Z"  # Go's zero time: not over
    assert after["endsAt"] == WINDOW["to"]
    assert [firing["groupKey"], before["fingerprint"]] == [resolved["groupKey"], after["fingerprint"]]  # fmt: skip
    assert content(event, "alertmanager", alarm_start=None)["alerts"][0]["startsAt"] == WINDOW["from"]  # fmt: skip


def test_the_page_shows_the_body_of_alertmanager():
    assert content(DRIFT, "alertmanager") == next(block for block in BLOCKS if "groupKey" in block)


def test_alarms_of_models_and_kinds_differ_in_their_keys():
    events = [DRIFT, FALL, DRIFT | {"model": 'a"b\n'}]
    groups = [content(event, "alertmanager") for event in events]
    assert len({group["groupKey"] for group in groups}) == 3
    assert len({group["alerts"][0]["fingerprint"] for group in groups}) == 3


@pytest.mark.parametrize("secret", ["whsec_", "whsec_%%%", "whsec_abcde", "whsec_ä", "whsec_a b"])
def test_secrets_that_only_look_like_those_of_the_standard_are_refused(secret):
    check_webhooks([Webhook(URL, secret)])  # of the form `quadriga` it is a plain text
    with pytest.raises(
        QueryError, match=r"expected webhooks\[0\].secret to have base64 after whsec_$"
    ):
        check_webhooks([Webhook(URL, secret, "standard")])


def test_a_webhook_shows_no_secret():
    assert "hush" not in f"{Webhook(URL, 'hush')} {[Webhook(URL, 'hush')]!r}"
