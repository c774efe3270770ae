"""FastAPI under uvicorn with a portal in its lifespan: many concurrent requests, and disconnected clients."""

import asyncio
import json
import runpy
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from actgent import LLM, ModelResponse, Text

fastapi = pytest.importorskip("fastapi", reason="fastapi is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi_service.py"
CROWD = 500


class Echo(LLM):
    """A model that returns the reversed message, and never answers a message that begins with `wait`."""

    name = "test:echo"

    def __init__(self):
        self.begun = self.cancelled = 0

    async def complete(self, chat, *, on_text=None):
        text = chat.messages[-1].parts[0].text
        if not text.startswith("wait"):
            await trio.sleep(0.05)
            return ModelResponse(parts=(Text(text[::-1]),))
        self.begun += 1
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled += 1


@contextmanager
def serving(model):
    """Serve the application of the example with another model. Yield its port."""
    names = runpy.run_path(str(EXAMPLE))
    names["agent"]._models.clients = {"default": model}
    with socket.create_server(("127.0.0.1", 0), backlog=CROWD) as listening:
        server = uvicorn.Server(uvicorn.Config(names["app"], log_level="warning"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(30)


async def ask(port, path):
    """Send a request, and return the status line and the body of the response."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join([piece async for piece in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0].decode(), body.decode()


async def until(condition):
    """Wait until a condition that depends on other threads is true."""
    with trio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - another thread changes this state
            await trio.sleep(0.01)


async def test_five_hundred_concurrent_requests_get_their_answers():
    answers = {}

    async def one(number):
        answers[number] = await ask(port, f"/ask?question=number-{number:04}")

    with serving(Echo()) as port, trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for number in range(CROWD):
                nursery.start_soon(one, number)
    assert {status for status, _ in answers.values()} == {"HTTP/1.1 200 OK"}
    assert {number: json.loads(body) for number, (_, body) in answers.items()} == {
        number: f"number-{number:04}"[::-1] for number in range(CROWD)
    }


@pytest.mark.parametrize("path", ["/ask", "/stream"])
async def test_disconnected_clients_stop_their_turns(path):
    """The turns of fifty disconnected clients stop, and the other turns continue."""
    model = Echo()
    with serving(model) as port:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(ask, port, f"{path}?question=wait-{number}")
            await until(lambda: model.begun == 50)
            nursery.cancel_scope.cancel()
        await until(lambda: model.cancelled == 50)
        status, body = await ask(port, "/ask?question=after")
    assert (status, json.loads(body)) == ("HTTP/1.1 200 OK", "retfa")
