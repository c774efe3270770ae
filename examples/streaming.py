"""Streaming: receive an answer with its tool calls as typed events, while the model writes it.

The model is a real OpenAI client, which sends its requests to a provider that `actgent.testing` runs on loopback. Your tests
can also use this provider.
"""

import trio

from actgent import BareAgent, Failure, OpenAI, Reply, Token, ToolCall, ToolResult, tool
from actgent.testing import ProviderRequest, open_provider


@tool(effect="pure")
def depth(lake: str) -> int:
    """Return the depth of a lake in metres."""
    return {"Baikal": 1642, "Tanganyika": 1470}[lake]


def answer(request: ProviderRequest) -> ToolCall | str:
    if not request.tool_results:
        return ToolCall("depth", {"lake": "Baikal"})
    return f"Lake Baikal is {request.tool_results[0].content} metres deep, deeper than all others."


async def show(agent: BareAgent, question: str) -> None:
    async with agent.stream(question) as events:
        async for event in events:
            match event:
                case Token():
                    print(event.text, end="", flush=True)
                case ToolResult():
                    print(f"[{event.tool_name}: {event.text}]")
                case Reply():
                    print(f"\n[{event.usage.output_tokens} tokens]")
                case Failure():
                    print(f"\n[failed: {event.error}]")


async def main() -> None:
    async with open_provider(answer, chunk=8, gap=0.05) as provider:
        model = OpenAI("any-model", base_url=provider.openai_url, api_key="any")
        async with BareAgent("guide", llm=model, tools=[depth]) as agent:
            await show(agent, "How deep is Lake Baikal?")
        await model.aclose()


if __name__ == "__main__":
    trio.run(main)
