"""Names and ids of replays: answers of a version to stored images, under the name of the model and a suffix.

No folder can have such a name. So counts, searches, retention, drift and evaluations of a model concern its live
inferences alone, and this name asks for its replays. Shadows of release 0.2.0, which saw live requests, are stored alike.
"""

import zlib

from quadriga.store.records.ids import COUNTER_BITS, replacement_id, worker_of
from quadriga.store.records.records import ModelReference

REPLAY_SUFFIX, SHADOW_SUFFIX = "~replay", "~shadow"
SUFFIXES = (REPLAY_SUFFIX, SHADOW_SUFFIX)

REPLAY_OF = "replay_of"
"""Key of the standard metadata of a replay, and parameter of its request: the id of the inference that is replayed."""


def replay_name(model: str) -> str:
    """Return the name under which replays of a model are stored."""
    return model if is_replay(model) else model + REPLAY_SUFFIX


def is_replay(name: str) -> bool:
    """Check whether a name is that of replays, or of a shadow."""
    return name.lower().endswith(SUFFIXES)


def live_name(name: str) -> str:
    """Return the name of the model that is replayed; any other name as it is."""
    return name.rpartition("~")[0] if is_replay(name) else name


def replay_id(replayed: int, model: ModelReference) -> int:
    """Return the id of a replay: of the same millisecond as the inference, and the same whenever it is replayed.

    Inferences of one worker and millisecond keep ids of their own, as the model moves all of them equally far.
    """
    text = f"{worker_of(replayed)} {model.name} {model.version} {model.sha256}"
    step = (
        zlib.crc32(text.encode()) % ((1 << COUNTER_BITS) - 1) + 1
    )  # never 0: an import may be replayed
    return replacement_id(replayed, replayed + step)
