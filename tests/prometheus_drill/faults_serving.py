"""Faults of processes and models, by the alerts that have to fire."""

import json
import os
import signal
import time

from tests.poisoned_task import write_poisoned_model
from tests.prometheus_drill.models import (
    image_body,
    replace_model,
    write_colours,
    write_damaged,
    write_fails_on_bright_images,
    write_slow,
)
from tests.prometheus_drill.stage import Stage, wait_until_answers
from tests.prometheus_drill.watch import Watch, repeating
from tests.server_process import ServerProcess, image_input

ROUND_S = 5.5
"""Seconds between two kills of the same child: one that died within 5 s is started again more slowly each time."""

HANG_TIMEOUT_S = 6.0


def send(server: ServerProcess, model: str, body: str) -> int:
    """Send a request; give its status."""
    return server.request("POST", f"/v2/models/{model}/infer", body)[0]


def load_model(server: ServerProcess, model: str) -> None:
    """Load a model as the runbook says."""
    status, _, answer = server.request("POST", f"/v2/repository/models/{model}/load")
    assert status == 200, answer


def stopped_replica(stage: Stage, watch: Watch) -> None:
    """End all processes of a server, and start it again."""
    with stage.running(stage.server("stopped")) as server:
        watch.begin(server)
        server.kill()
        watch.fires("QuadrigaDown")
        server.start()
        watch.mended()


def hung_workers(stage: Stage, watch: Watch) -> None:
    """Stop all workers by SIGSTOP, on a server that does not end them: nothing answers."""
    with stage.running(stage.server("hung", hang_timeout_s=3600)) as server:
        pid = server.child_pid("worker-0")
        watch.begin(server)
        os.kill(pid, signal.SIGSTOP)
        watch.fires("QuadrigaDown")
        os.kill(pid, signal.SIGCONT)
        watch.mended()


def damaged_model(stage: Stage, watch: Watch) -> None:
    """Serve nothing but a model that fails to load; then repair its file and load it."""
    models = stage.folder / "damaged-models"
    write_colours(models / "colours")
    with stage.running(stage.server("damaged", models=models)) as server:
        watch.begin(server)
        write_damaged(models / "colours")
        server.stop()
        server.start(ready=False)
        wait_until_answers(server)
        watch.fires("QuadrigaNotReady")
        replace_model(models / "colours")
        load_model(server, "colours")
        watch.mended()


def failing_model(stage: Stage, watch: Watch) -> None:
    """Load a version that fails on what clients send; then take it away again."""
    models = stage.models("failing")
    write_colours(models / "colours" / "1")
    with stage.running(stage.server("failing", models=models)) as server:
        body = image_body(brightness=250)
        with repeating(lambda: send(server, "colours", body), 0.05):
            watch.begin(server)
            write_fails_on_bright_images(models / "colours" / "2")
            load_model(server, "colours")
            watch.fires("QuadrigaRequestsFail")
            for file in sorted((models / "colours" / "2").iterdir()):
                file.unlink()
            (models / "colours" / "2").rmdir()
            load_model(server, "colours")
            watch.mended()


def overload(stage: Stage, watch: Watch) -> None:
    """Send more at once than may wait."""
    models, extensions = stage.folder / "overload-models", stage.folder / "overload-extensions"
    write_slow(models / "slow", extensions)
    flags = ("--max-queue", "2", "--threads", "1", "--extensions", str(extensions))
    with stage.running(stage.server("overload", *flags, models=models)) as server:
        body = image_body(brightness=100)
        watch.begin(server)
        with repeating(lambda: send(server, "slow", body), 0.2, threads=8):
            watch.fires("QuadrigaRequestsRefused")
        watch.mended()


def long_queue(stage: Stage, watch: Watch) -> None:
    """Send more at once than one thread can do, where all may wait."""
    models, extensions = stage.folder / "queue-models", stage.folder / "queue-extensions"
    write_slow(models / "slow", extensions)
    flags = ("--threads", "1", "--extensions", str(extensions))
    with stage.running(stage.server("queue", *flags, models=models)) as server:
        body = image_body(brightness=100)
        watch.begin(server)
        with repeating(lambda: send(server, "slow", body), 0.01, threads=8):
            watch.fires("QuadrigaQueueLong")
        watch.mended()


def killed_workers(stage: Stage, watch: Watch) -> None:
    """End a worker by SIGKILL three times, as a system without memory does."""
    with stage.running(stage.server("killed", "--workers", "2")) as server:
        watch.begin(server)
        for _ in range(3):
            server.kill_child("worker-1")
            time.sleep(ROUND_S)
        watch.fires("QuadrigaProcessRestarts")
        watch.mended()


def hanging_worker(stage: Stage, watch: Watch) -> None:
    """Stop a worker by SIGSTOP three times; the supervisor ends it and starts it again."""
    server = stage.server("hanging", "--workers", "2", hang_timeout_s=HANG_TIMEOUT_S)
    with stage.running(server):
        watch.begin(server)
        for _ in range(3):
            server.wait_until(lambda: server.child_pid("worker-1"))
            pid = server.child_pid("worker-1")
            time.sleep(ROUND_S)
            os.kill(pid, signal.SIGSTOP)
            server.wait_until(lambda pid=pid: server.child_pid("worker-1") not in {0, pid}, 60)
        watch.fires("QuadrigaProcessRestarts")
        watch.mended()


def poisonous_image(stage: Stage, watch: Watch) -> None:
    """Send an image that ends its process by SIGSEGV, until its model is refused; then load the model."""
    models, extensions = stage.models("poison"), stage.folder / "poison-extensions"
    (models / "bad").mkdir()
    body = json.dumps({"inputs": [image_input(write_poisoned_model(models / "bad", extensions))]})
    flags = ("--workers", "2", "--extensions", str(extensions))
    with stage.running(stage.server("poison", *flags, models=models)) as server:
        watch.begin(server)
        with repeating(lambda: send(server, "bad", body), 2.0):
            watch.fires("QuadrigaModelRefused")
        load_model(server, "bad")
        watch.mended()
