"""The store has the registry of tools, `register_tool(name, func)`, and the history of the conversation.

Document: Component Architecture, State Management (Store.tools, Store.conversation_history).

Differs: The store has only the state, so that the state can be replayed. Tools are `tools={name: func}` and
`agent.tools.add(func)`. The conversation is `session.history` and `result.history`.
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM, tool


@tool(effect="pure")
async def later() -> int:
    """Be registered later."""
    return 1


def lookup(state, args):
    """Look up the depth of a lake in metres."""
    return ("depth", 1642)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


async def main() -> None:
    script = [act("execute", tool="later", args={}), act("evaluate", achieved=True, answer="1")]
    async with GoalAgent("guide", llm=ScriptedLLM(script), tools={"lookup": lookup}) as agent:
        agent.tools.add(later)
        names = [each.name for each in agent.tools.list()]
        assert "lookup" in names
        assert "later" in names
        session = await agent.create_session("ada")
        result = await agent.run_goal("Be one.", session=session)
        assert result.achieved
        assert [message.sender.kind for message in session.history][:2] == ["user", "assistant"]
    assert next(message.text for message in result.history) == "Be one."


trio.run(main)
