"""Use agents in FastAPI under uvicorn, on asyncio. The agents run on trio in a background thread, behind a portal.

`uvicorn fastapi_service:app` starts the service. As a script, the program also sends requests to the service. If a client
disconnects, its turn is cancelled.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from urllib.request import urlopen

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from actgent import BareAgent, Reply, ScriptedLLM, Token, open_portal

agent = BareAgent("clerk", llm=ScriptedLLM(["Good morning, how can I help?"], repeat=True, chunk=8))


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with open_portal() as portal:
        app.state.clerk = await portal.start(agent)
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/ask")
async def ask(question: str, request: Request) -> str:
    return str(await run_until_disconnect(request, app.state.clerk.run(question)))


@app.get("/stream")
async def stream(question: str) -> StreamingResponse:
    async def pieces() -> AsyncGenerator[str, None]:
        async with app.state.clerk.stream(question) as events:
            async for event in events:
                if isinstance(event, Token):
                    yield event.text

    return StreamingResponse(pieces(), media_type="text/plain")


async def run_until_disconnect(request: Request, work: Coroutine[Any, Any, Reply]) -> Reply:
    """Wait for an answer, and cancel the turn if the client disconnects."""
    answering, leaving = asyncio.create_task(work), asyncio.create_task(wait_gone(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise HTTPException(499, "the client has gone")
        return answering.result()
    finally:
        leaving.cancel()
        answering.cancel()  # has no effect if the task is done


async def wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        for path in ("ask", "stream"):
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/{path}?question=Hello"
            answer = await asyncio.to_thread(urlopen, url)
            print(f"{path}: {(await asyncio.to_thread(answer.read)).decode()}")
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
