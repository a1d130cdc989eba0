"""The command that sends the first image: for the real address, and a model that is served."""

import shlex

from quadriga.engine.api.models import ModelEntry


def image_command(url: str, entries: list[ModelEntry], *, needs_key: bool) -> tuple[str, str]:
    """Return a shell command that sends an image file to the first model that is ready, and the model; empty without one.

    Args:
        url: URL of the server, without a slash at its end.
        entries: The models.
        needs_key: Whether requests need a key.
    """
    model = next((e.name for e in entries if any(v.state == "READY" for v in e.versions)), "")
    if not model:
        return "", ""
    path = "/infer" if len(entries) == 1 else f"/api/serve/serve-model-{model}-pred/infer"
    key = " \\\n  -H 'Authorization: Bearer YOUR-KEY'" if needs_key else ""
    command = f"curl {shlex.quote(url + path)} -H 'Content-Type: image/jpeg' \\\n  --data-binary @image.jpg{key}"
    return command, model
