"""Web browsing is a universal tool, available in all modes.

Document: Mode-Based Tool Access Control, Universal Tools.
"""

from functools import partial

import trio

from actgent import BareAgent, Modes, ScriptedLLM, ToolCall
from actgent.toolsets.builtin import page_tool

PAGE = b"<html><body><h1>Release notes</h1><p>Version 7 is out.</p></body></html>"


async def serve(stream) -> None:
    async with stream:
        while b"\r\n\r\n" not in await stream.receive_some(4096):
            pass
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
        await stream.send_all(head + b"Content-Length: %d\r\n\r\n" % len(PAGE) + PAGE)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        address = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/notes"
        llm = ScriptedLLM(
            lambda chat: (
                "Read." if chat.messages[-1].role == "tool" else ToolCall("fetch_page", {"url": address})
            )
        )
        modes = Modes(universal=[page_tool(allow=["127.0.0.1"])])
        async with BareAgent("app", llm=llm, modes=modes) as app:
            session = await app.create_session("ada")
            results = []
            session.on_tool_result(lambda result: results.append(result.content))
            for mode in ("plan", "act"):
                await session.set_mode(mode, by="user")
                await session.chat("Read the notes.")
                await session.wait_idle()
        nursery.cancel_scope.cancel()
    assert len(results) == 2 and all("Version 7 is out." in text for text in results), results


trio.run(main)
