"""Large intermediate results do not fill the prompt and the state: a reference replaces them, and tools and the model can read them.

Document: Production Considerations, Performance Optimization (Memory Management).
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM

LONG = "word " * 20_000
seen = []


def fetch(state, args):
    """Fetch a long page."""
    return ("page", LONG)


def count(state, args):
    """Count the words of the page."""
    seen.append(len(state["page"]))
    return ("words", len(state["page"].split()))


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


async def main() -> None:
    model = ScriptedLLM(
        [
            act("execute", tool="fetch", args={}),
            act("execute", tool="count", args={}),
            act("evaluate", achieved=True, answer="20000"),
        ]
    )
    tools = {"fetch": fetch, "count": count}
    async with GoalAgent("guide", llm=model, tools=tools, state_characters=5_000) as agent:
        session = await agent.create_session("ada")
        result = await agent.run_goal("How many words?", session=session)
        assert len(str(session.state["page"])) < 1_000
    assert result.achieved
    assert seen == [len(LONG)]
    assert result.raw_data["words"] == 20_000
    assert all(len(str(chat.messages)) < len(LONG) for chat in model.chats)


trio.run(main)
