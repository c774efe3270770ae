"""The weather is a universal tool, available in all modes.

Document: Mode-Based Tool Access Control, Universal Tools.

Differs: The program chooses the weather service and the key. Therefore the tool is one `HTTPTool(name, url)` in
`Modes(universal=[...])`.
"""

from functools import partial

import trio

from actgent import BareAgent, HTTPTool, Modes, ScriptedLLM, ToolCall


async def serve(stream) -> None:
    async with stream:
        request = await stream.receive_some(4096)
        body = b'{"sky": "sunny"}' if b"GET /weather/Turin " in request else b"{}"
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
        await stream.send_all(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)


async def main() -> None:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        weather = HTTPTool(
            "get_weather_information",
            f"http://127.0.0.1:{listener.socket.getsockname()[1]}/weather/{{city}}",
            description="Tell the weather of a city.",
            allow=["127.0.0.1"],
        )
        llm = ScriptedLLM(
            lambda chat: (
                "Sunny."
                if chat.messages[-1].role == "tool"
                else ToolCall("get_weather_information", {"city": "Turin"})
            )
        )
        async with BareAgent("app", llm=llm, modes=Modes(universal=[weather])) as app:
            session = await app.create_session("ada")
            results = []
            session.on_tool_result(lambda result: results.append((session.mode, "sunny" in result.content)))
            for mode in ("plan", "act", "integration", "onboarding"):
                await session.set_mode(mode, by="user")
                await session.chat("How is it in Turin?")
                await session.wait_idle()
        nursery.cancel_scope.cancel()
    assert results == [(mode, True) for mode in ("plan", "act", "integration", "onboarding")], results


trio.run(main)
