"""Modes: only the tools of a session's current mode may run. Only permitted roles may switch the mode.

The prompt always lists all tools. Therefore the prompt does not change, and the provider can cache it.
"""

import trio

from actgent import (
    BareAgent,
    Mode,
    ModeChangeRejected,
    ModelRequest,
    Modes,
    ScriptedLLM,
    Text,
    ToolCall,
    tool,
)


@tool(effect="pure")
async def look(service: str) -> str:
    """Return the status of a service."""
    return f"{service} is at version 6"


@tool
async def deploy(service: str) -> str:
    """Deploy a service."""
    return f"{service} is at version 7 now"


@tool
async def approve(service: str) -> str:
    """Approve the deployment of a service."""
    return f"{service} is approved"


def answer(chat: ModelRequest) -> str | list[ToolCall]:
    """Answer as a careless model would: call both tools in every mode."""
    last = chat.messages[-1]
    if last.role == "user" and isinstance(last.parts[0], Text) and "shop" in last.parts[0].text:
        return [ToolCall("look", {"service": "shop"}), ToolCall("deploy", {"service": "shop"})]
    return "That is how it stands."


def must_be_ready(_state: object, start: str, end: str) -> str | None:
    """Guard that refuses the switch from the review to the mode `act`."""
    return "look at what was found first" if (start, end) == ("review", "act") else None


async def main() -> None:
    modes = Modes(
        Mode("review", [approve], message="You review now what was done in {{previous}}."),
        universal=[look],
        execution=[deploy],
        initial="plan",
        guard=must_be_ready,
    )
    agent = BareAgent("operator", llm=ScriptedLLM(answer), modes=modes)
    async with agent:
        session = await agent.create_session("ada")
        session.on_tool_result(lambda result: print(f"{session.mode}: {result.text}"))

        for mode in ("plan", "act", "review"):
            await session.set_mode(mode, by="user")
            await session.chat("Bring the shop up to date.")
            await session.wait_idle()
        try:
            await session.set_mode("act", by="user")
        except ModeChangeRejected as refused:
            print(refused)
        await session.set_mode("act", by="admin", force=True)
        print("the conversation was told:")
        for message in session.history:
            if message.sender.kind == "system":
                print("-", message.text)


if __name__ == "__main__":
    trio.run(main)
