"""Use the service as a client does: send a message, restart the service, decide an approval, and read the events."""

import asyncio
import json
import socket
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import uvicorn
from service import make_app, script  # type: ignore[import-not-found]

from actgent import ScriptedLLM


@asynccontextmanager
async def serving(journal: str, user: str) -> AsyncGenerator[httpx2.AsyncClient, None]:
    """Start and stop the service once, with a client of one user."""
    app = make_app(ScriptedLLM(script), journal)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server.serve(sockets=[listening]))
        headers = {"authorization": f"Bearer token-of-{user}"}
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with httpx2.AsyncClient(base_url=url, headers=headers) as client:
            yield client
        server.should_exit = True
        await running


async def read_events(client: httpx2.AsyncClient, until: str, last: int = 0) -> int:
    """Print the events of ada's session up to one of a type, and return its number."""
    headers = {"last-event-id": str(last), "authorization": "Bearer token-of-ada"}
    async with client.stream("GET", "/sessions/ada-1/events", headers=headers) as response:
        name = ""
        async for line in response.aiter_lines():
            key, _, value = line.partition(": ")
            if key == "id":
                last = int(value)
            elif key == "event":
                name = value
            elif key == "data":
                print(f"  {name}: {json.loads(value)['content']}")
                if name == until:
                    break
    return last


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = f"sqlite:///{Path(folder) / 'desk.db'}"
        message = {"id": "m1", "text": "I want my money back for order 7."}
        async with serving(journal, "ada") as ada:
            print("send:", (await ada.post("/sessions/ada-1/messages", json=message)).status_code)
            seen = await read_events(ada, until="agent_suspended")
            print("ada decides:", (await ada.get("/approvals")).status_code)
        print("restart")
        async with serving(journal, "eve") as eve:
            taken = await eve.post("/sessions/ada-1/messages", json=message)
            print("a session of ada:", taken.status_code, taken.json()["error"])
            [approval] = (await eve.get("/approvals")).json()
            print("approval:", approval["owner"], approval["tool"], approval["arguments"])
            address = f"/approvals/{approval['id']}"
            print("eve decides:", (await eve.post(address, json={"approve": True})).status_code)
            await read_events(eve, until="final_response", last=seen)
            print("again:", (await eve.post(address, json={"approve": False})).status_code)


asyncio.run(main())
