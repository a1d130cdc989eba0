"""What the caller of a request may see of the store: the one place where a key becomes a scope."""

from quadriga.proto.errors import Forbidden
from quadriga.proto.request import current_caller
from quadriga.store.records.scope import Scope


def caller_scope() -> Scope:
    """Return what the caller of the request that this task or thread answers may see of the store."""
    caller = current_caller()
    return Scope(caller.team, caller.models)


def check_sees_everything(what: str) -> None:
    """Return if the caller sees what the whole server has.

    Raises:
        Forbidden: Its key is for a team or for some models.
    """
    if not caller_scope().is_everything:
        raise Forbidden(f"expected a key without team and models, as {what} of the whole server")
