"""A version of a model as lists show it, whether it is loaded or not."""

from collections.abc import Sequence

import msgspec

from quadriga.engine.models.model import Model
from quadriga.proto.messages import ModelState


class ServedVersion(msgspec.Struct, frozen=True):
    """One version of a model, as lists show it."""

    name: str
    version: str
    state: ModelState
    reason: str
    sha256: str | None = None
    """Hash of the model's file; None where it is not loaded, as `task` and `labels`."""
    task: str | None = None
    labels: Sequence[str] = ()
    behind: str | None = None
    """Name of the model behind it; None without one."""

    def with_model(self, model: Model | None) -> "ServedVersion":
        """Return it with what is known of its model, if that is loaded."""
        if model is None:
            return self
        then = model.recognition.written.then
        return msgspec.structs.replace(
            self,
            sha256=model.reference.sha256,
            task=model.recognition.task,
            labels=model.labels,
            behind=None if then is None else then.model,
        )
