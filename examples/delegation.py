"""Delegation: the agent `lead` finds agents by their capabilities, and delegates a part of the work to each.

The lead does not wait. The result or failure of a task arrives as a message in the session of the lead.
"""

import re

import trio

from actgent import (
    BareAgent,
    ModelRequest,
    Reply,
    ScriptedLLM,
    Text,
    ToolCall,
    ToolResult,
    delegation_tools,
    open_runtime,
)

PARTS = {"depth": "sounding lakes", "name": "explaining names", "weather": "forecasting weather"}


WORKERS = {
    "hydrologist": ("sounding lakes and rivers", ScriptedLLM(["1,642 m."], delay=0.05)),
    "linguist": ("explaining names", ScriptedLLM(["Turkic: rich lake."], delay=0.5)),
    "meteorologist": ("forecasting weather", ScriptedLLM([ConnectionError("no station")])),
    "accountant": ("adding up bills", ScriptedLLM(["0.00"])),
}


def lead(chat: ModelRequest) -> list[ToolCall] | str:
    """Answer as a model would: find agents, delegate tasks, and collect the results."""
    last = chat.messages[-1]
    told = [part.text for part in last.parts if isinstance(part, Text | ToolResult)]
    if last.role == "user" and "Task" not in told[0]:
        return [ToolCall("find_agents", {"capability": wanted}) for wanted in PARTS.values()]
    if last.role == "tool" and "agents" in told[0]:
        found = [re.findall(r'"name": ?"(\w+)"', text)[0] for text in told]
        return [
            ToolCall("delegate_to_agent", {"agent": name, "task": f"Baikal: {part}", "wait": False})
            for name, part in zip(found, PARTS, strict=True)
        ]
    if last.role == "tool":
        return "I have asked three colleagues."
    return "\n".join(re.sub(r"Task \S+?,? (was )?", "", text) for text in told)


async def main() -> None:
    tools = delegation_tools(allowed=["hydrologist", "linguist", "meteorologist"])
    boss = BareAgent("lead", llm=ScriptedLLM(lead), tools=tools)
    async with open_runtime() as runtime:
        await runtime.start(boss)
        for name, (capabilities, llm) in WORKERS.items():
            await runtime.start(BareAgent(name, capabilities=capabilities, llm=llm))
        print("can forecast:", *(card.name for card in runtime.agents.find("forecasting")))
        session = await boss.create_session("ada", "Tell me about Lake Baikal.")
        all_told = trio.Event()

        @session.on_conversation
        def show(reply: Reply) -> None:
            print("lead:", reply)
            if not session.children:  # each task is a child session until its result arrives
                all_told.set()

        with trio.fail_after(10):
            await all_told.wait()


if __name__ == "__main__":
    trio.run(main)
