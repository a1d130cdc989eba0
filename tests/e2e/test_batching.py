"""A thousand clients at once over HTTP, whose requests share runs: every answer and every record is its own."""

import asyncio
import json
import re

from tests.onnx_models import marking, number_image
from tests.server_process import ServerProcess, image_input

CLIENTS = 1000


async def ask(host, number, is_open):
    """Ask on a connection of its own about an image; return status and answer. All are sent once all are open."""
    address, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(address, int(port))
    await is_open.wait()
    image = image_input(number_image(number), metadata=json.dumps({"number": number}))
    body = json.dumps({"inputs": [image]}).encode()
    head = f"POST /v2/models/marks/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    head = await reader.readuntil(b"\r\n\r\n")
    answer = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head.lower())[1]))
    writer.close()
    return int(head.split()[1]), json.loads(answer)


async def ask_all(host):
    is_open = asyncio.Barrier(CLIENTS)
    return await asyncio.gather(*(ask(host, number, is_open) for number in range(CLIENTS)))


def test_each_of_a_thousand_clients_gets_and_keeps_its_own_answer(tmp_path):
    marking(
        tmp_path / "models" / "marks", CLIENTS, "[runtime]\nbatching = {max = 16, delay_ms = 1}\n"
    )
    flags = ("--max-connections", "1100", "--max-queue", "1000", "--max-wait-s", "100")
    with ServerProcess(tmp_path / "data", tmp_path / "models", *flags) as server:
        for number, (status, answer) in enumerate(asyncio.run(ask_all(server.host))):
            assert status == 200, answer
            ((prediction,),) = answer["outputs"][0]["data"]
            assert prediction["label"] == f"number {number}"
        stored = server.query({})
        assert len(stored) == CLIENTS
        for inference in stored:
            (prediction,) = inference["predictions"]
            assert prediction["label"] == f"number {inference['metadata']['number']}"
        statistics = server.call("GET", "/v2/models/marks/stats")[1]["model_stats"][0]
        assert statistics["inference_count"] == CLIENTS
        assert statistics["execution_count"] < CLIENTS / 2
        assert (
            sum(size["compute_infer"]["count"] for size in statistics["batch_stats"])
            == statistics["execution_count"]
        )
        metrics = server.request("GET", "/metrics")[2].decode()
        count = f'quadriga_batch_size_count{{model="marks",version="1"}} {float(statistics["execution_count"])}'
        assert count in metrics
