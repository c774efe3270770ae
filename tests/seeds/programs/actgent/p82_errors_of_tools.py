"""Tool execution errors have a handler and recovery: the result describes the error. The model reads the result and
continues.

Document: Error Handling; Best Practices, Tool Integration ("Handle errors gracefully. Provide clear feedback").
"""

import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolError, tool


@tool(thread=False)
def temperature(city: str) -> int:
    """Tell the temperature of a city."""
    if city == "Atlantis":
        return 1 // 0
    if city != "Oslo":
        raise ToolError(f"no station in {city}; there is one in Oslo")
    return 4


@tool(timeout=0.01)
async def forecast(city: str) -> int:
    """Tell tomorrow's temperature."""
    await trio.sleep_forever()


async def main() -> None:
    script = [
        ToolCall("temperature", {"city": "Atlantis"}),
        ToolCall("temperature", {"city": "Bergen"}),
        ToolCall("forecast", {"city": "Oslo"}),
        ToolCall("thermometer", {}),
        ToolCall("temperature", {"city": "Oslo"}),
        "4 degrees.",
    ]
    llm, results = ScriptedLLM(script), []
    async with BareAgent("weather", llm=llm, tools=[temperature, forecast]) as agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: results.append((result.status, result.text)))
        assert str(await agent.run("How cold is it?", session=session)) == "4 degrees."
    assert [status for status, _ in results] == ["error"] * 4 + ["success"], results
    for (_, text), part in zip(
        results, ("ZeroDivisionError", "there is one in Oslo", "forecast", "thermometer", "4"), strict=True
    ):
        assert part in text, (part, text)
    for chat, (_, text) in zip(llm.chats[1:], results, strict=True):
        assert chat.messages[-1].parts[0].text == text


trio.run(main)
