"""Scenes of what clients and models do: slow bodies, overload, endless and crashing models, poison images."""

import json
import shutil
import socket
import time
from collections import Counter
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.drill.client import BUSY, FAILED
from tests.drill.outcomes import Outcome, Result
from tests.drill.trial import MODEL, Drill, Load, Trial
from tests.onnx_models import save, value
from tests.poisoned_task import write_poisoned_model
from tests.server_process import ServerProcess, image_input

TRICKLING = 50
MAX_RECOVERY_S = 5.0
"""Seconds within which others have to be answered after a request has ended its worker."""

BAD_REQUESTS = 5
BAD_TIMEOUT_S = 5.0


def slow_bodies(drill: Drill) -> Result:
    """Send bodies byte by byte beside other clients; they are ended in time and hold up nobody."""
    server = drill.server("slow", "--body-timeout-s", "3")
    trial = Trial(drill, "slow bodies", [server]).start()
    try:
        host, _, port = server.host.partition(":")
        sockets = [socket.create_connection((host, int(port)), 10) for _ in range(TRICKLING)]
        head = "POST /v2/models/shapes-classifier/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\n\r\n{"
        begun_s = time.monotonic()
        for connection in sockets:
            connection.sendall(head.encode())
        open_sockets = list(sockets)
        while open_sockets and time.monotonic() < begun_s + max(drill.seconds, 15):
            for connection in list(open_sockets):
                if not _trickle(connection):
                    open_sockets.remove(connection)
            time.sleep(0.3)
        ended_s = time.monotonic() - begun_s
        for connection in sockets:
            connection.close()
        trial.load.wait_for(10)
        trial.notes.append(f"all were ended after {ended_s:.0f} s")
        left = f"{len(open_sockets)} slow bodies were not ended" if open_sockets else ""
        return trial.finish(f"{TRICKLING} bodies byte by byte", check=lambda _: left)
    except BaseException:
        trial.abandon()
        raise


def _trickle(connection: socket.socket) -> bool:
    """Send one byte more; gives whether the connection is still open."""
    try:
        connection.sendall(b" ")
        connection.setblocking(False)
        try:
            return connection.recv(1000) != b"" and False
        except BlockingIOError:
            return True
        finally:
            connection.setblocking(True)
    except OSError:
        return False


def overload(drill: Drill) -> Result:
    """Send three times as many requests at once as may wait; what is refused gets 503."""
    load = Load(drill.folder / "overload-clients", (("http", 24), ("http", 24)), pause_s=0.0)
    server = drill.server("overload", "--max-queue", "16")
    trial = Trial(drill, "overload", [server], load=load).start()
    try:
        time.sleep(drill.seconds)
        outcomes = load.outcomes()
        busy = sum(outcome.kind == BUSY for outcome in outcomes)
        trial.notes.append(f"{busy:,} refused with 503")
        return trial.finish(f"48 clients for {drill.seconds:g} s where 16 may wait")
    except BaseException:
        trial.abandon()
        raise


def endless_model(drill: Drill) -> Result:
    """Run a model that never ends where a number is above 0.5, beside another."""
    models = _models(drill, "endless")
    count = helper.make_tensor("count", TensorProto.INT64, [], [1 << 62])
    half = helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
    scalar = onnx.helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["condition"], ["again"]),
            helper.make_node("Add", ["sum", "sum"], ["next"]),
        ],
        "body",
        [scalar("number", TensorProto.INT64, []), scalar("condition", TensorProto.BOOL, []),
         value("sum", ["batch", 3])],
        [scalar("again", TensorProto.BOOL, []), value("next", ["batch", 3])],
    )  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["count"], value=count),
        helper.make_node("Constant", [], ["half"], value=half),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "half"], ["condition"]),
        helper.make_node("Loop", ["count", "condition", "x"], ["y"], body=body),
    ]
    _save_rows(models / "bad" / "model.onnx", nodes)
    return _beside_a_bad_model(drill, "endless model", models, _rows([1, 2, 3]))


def eating_model(drill: Drill) -> Result:
    """Run a model that asks for more memory than any machine has, beside another."""
    models = _models(drill, "eating")
    three = helper.make_tensor("three", TensorProto.INT64, [1], [3])
    nodes = [
        helper.make_node("Constant", [], ["three"], value=three),
        helper.make_node("Reshape", ["x", "three"], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["shape"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["shape"], ["many"]),
        helper.make_node("ReduceMax", ["many"], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]
    _save_rows(models / "bad" / "model.onnx", nodes)
    return _beside_a_bad_model(drill, "memory-eating model", models, _rows([1 << 20, 1 << 20, 8]))


def poison_images(drill: Drill) -> Result:
    """Send an image that ends its process by SIGSEGV, again and again, beside others."""
    models, extensions = _models(drill, "poison"), drill.folder / "poison-extensions"
    image = write_poisoned_model(models / "bad", extensions)
    body = json.dumps({"inputs": [image_input(image)]})
    return _beside_a_bad_model(
        drill, "poison images", models, body, "--extensions", str(extensions), cuts_others=True
    )


def _models(drill: Drill, name: str) -> Path:
    """Make a folder with the model of the other clients and an empty folder for a bad one."""
    models = drill.folder / f"{name}-models"
    shutil.copytree(MODEL, models / MODEL.name)
    (models / "bad").mkdir()
    return models


def _save_rows(path: Path, nodes: list[onnx.NodeProto]) -> None:
    save(path, nodes, [value("x", ["batch", 3])], [value("y", ["batch", 3])])


def _rows(numbers: list[float]) -> str:
    tensor = {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": numbers}
    return json.dumps({"inputs": [tensor]})


def _beside_a_bad_model(
    drill: Drill, scene: str, models: Path, body: str, *flags: str, cuts_others: bool = False
) -> Result:
    """Send requests that do harm, one after the other, beside the clients of another model.

    Some end their worker, which cuts the connections of others to it; the other worker and the next one have to answer.
    """
    server = drill.server(
        scene.replace(" ", "-"), "--workers", "2", "--exit-timeout-s", "10", *flags, models=models
    )
    trial = Trial(drill, scene, [server]).start()
    try:
        endings: Counter[str] = Counter()
        recoveries_s = []
        for _ in range(BAD_REQUESTS):
            endings[_send_bad(server, body)] += 1
            begun_s = time.monotonic()
            trial.load.wait_for(3, timeout_s=60)
            recoveries_s.append(time.monotonic() - begun_s)
        trial.notes.append(
            f"the bad requests ended as {dict(endings)}; others were answered at most "
            f"{max(recoveries_s):.1f} s after each"
        )

        def check(outcomes: list[Outcome]) -> str:
            failed = sum(outcome.kind == FAILED for outcome in outcomes)
            if cuts_others:
                recovery_s = max(recoveries_s)
                return "" if recovery_s <= MAX_RECOVERY_S else f"no answer for {recovery_s:.1f} s"
            return f"{failed} requests of others failed" if failed else ""

        return trial.finish(f"{BAD_REQUESTS} bad requests", check=check)
    except BaseException:
        trial.abandon()
        raise


def _send_bad(server: ServerProcess, body: str) -> str:
    """Send a request that does harm; gives its status, or why there was none."""
    connection = HTTPConnection(server.host, timeout=BAD_TIMEOUT_S)
    try:
        connection.request("POST", "/v2/models/bad/infer", body)
        return str(connection.getresponse().status)
    except TimeoutError:
        return f"no answer in {BAD_TIMEOUT_S:g} s"
    except (OSError, HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()
