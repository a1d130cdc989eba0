"""The form of the setting `models`."""

import re
from urllib.parse import urlsplit


def check_models(text: str) -> None:
    """Check that the setting `models` is a folder, or a URL of an object store without secrets.

    Raises:
        ValueError: It is not; the text has nothing of the URL.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        return
    if scheme not in ("s3", "gs", "az"):
        raise ValueError("expected models in a folder, or at s3://, gs:// or az://")
    try:
        parts = urlsplit(text)
        has_secrets = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        has_secrets = True
    if has_secrets or not parts.netloc:
        raise ValueError(
            "expected a bucket and a folder in the URL of models, without user, password and parameters: "
            "credentials come from the environment, such as AWS_ACCESS_KEY_ID"
        )
    if re.search(r"[\s\x00-\x1f]|/\.\.?(/|$)", text):
        raise ValueError("expected a URL of models without spaces and `..`")
