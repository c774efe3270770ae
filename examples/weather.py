"""HTTP tool: the model calls a weather API, and passes the city in the query.

The example starts the server on loopback, so it needs no API key. For a real server, pass its URL, and the key as
`auth=APIKey(key, query="appid")`. Loopback is not a public address, so `allow=` must permit it.
"""

import json
from functools import partial

import trio

from actgent import BareAgent, HTTPTool, Modes, ScriptedLLM, Tool, ToolCall

STATIONS = {"Turin": {"sky": "sunny", "celsius": 21.5}, "Oslo": {"sky": "snow", "celsius": -4}}


async def answer(stream: trio.SocketStream) -> None:
    """Answer one request of a connection: GET /weather?city=NAME."""
    async with stream:
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some(4096)
        city = request.split(b" ", 2)[1].partition(b"city=")[2].decode()
        found = STATIONS.get(city)
        body = json.dumps(found or {"error": f"there is no station in {city}"}).encode()
        status = b"200 OK" if found else b"404 Not Found"
        head = b"Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close" % len(body)
        await stream.send_all(b"HTTP/1.1 " + status + b"\r\n" + head + b"\r\n\r\n" + body)


def weather_tool(address: str) -> Tool:
    """Return the tool. The model sets only the parameters of the query; the rest of the request is fixed."""
    return HTTPTool(
        "get_weather_information",
        f"{address}/weather",
        description="Tells the weather of a city now.",
        query={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        retries=0,
        allow=["127.0.0.1"],
    )


async def main() -> None:
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        llm = ScriptedLLM(
            [
                [
                    ToolCall("get_weather_information", {"city": city})
                    for city in ("Turin", "Oslo", "Atlantis")
                ],
                "Turin is sunny, Oslo has snow, and nobody measures in Atlantis.",
            ]
        )
        modes = Modes(universal=["get_weather_information"])
        guide = BareAgent("guide", llm=llm, tools=[weather_tool(f"http://127.0.0.1:{port}")], modes=modes)
        async with guide:
            session = await guide.create_session("ada", "Where is it warm?")
            session.on_tool_result(lambda result: print(result.status, result.text.replace("\n", " ")))
            session.on_conversation(lambda reply: print("guide:", reply))
            await session.wait_idle()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
