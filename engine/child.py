"""What the supervisor tells its child processes, and what their end tells it."""

from typing import Literal

import msgspec

from engine.settings import Settings

UNUSABLE = 78
"""Exit status of a child that no restart can help: the settings are wrong (EX_CONFIG)."""


class ChildTask(msgspec.Struct, frozen=True):
    """What a child is to do."""

    role: Literal["worker", "writer", "jobs"]
    settings: Settings
    number: int = 0
    """Of a worker; no two that run at once share one."""
    listener_fd: int = -1
    """The listening socket, inherited."""
    board_fd: int = -1
    """The shared memory in which workers say that they are ready, inherited."""
    grpc_address: str = ""
    """Where to listen for gRPC, beside the other workers; empty for not at all."""
    run_directory: str = ""
    """Where workers meet to load and unload models."""
