"""Migrate a program of TAgent: `run_agent` with tools from `tagent.tools.py`, a custom action, an output model and a replay.

The tools file has the form that TAgent documents. After a failed tool and a loop of equal calls, all results are kept.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import trio
from pydantic import BaseModel

from actgent import CustomAction, GoalAgent, ScriptedLLM, discover, run_agent_sync

TOOLS = '''\
from typing import Any, Dict, Optional, Tuple

DEPTHS = {"Baikal": 1642, "Tanganyika": 1470}


def lookup(state: Dict[str, Any], args: Dict[str, Any]) -> Optional[Tuple[str, Any]]:
    """Look up the depth of a lake in metres. args: name."""
    return (args["name"], DEPTHS[args["name"]])
'''


class Answer(BaseModel):
    """The depth of a lake in metres."""

    lake: str
    depth: int


def note(state: dict[str, Any], params: dict[str, Any]) -> tuple[str, Any]:
    return ("notes", [*state.get("notes", ()), params["text"]])


def act(action: str, **params: Any) -> str:
    return json.dumps({"action": action, "params": params})


def lookup(name: str) -> str:
    return act("execute", tool="lookup", args={"name": name})


NOTE = CustomAction("note", "Remember a text. params: text.", note)
ACHIEVED = act("evaluate", achieved=True, answer="Baikal, 1642 m")
FOUND = [lookup("Baikal"), lookup("Nessie"), act("note", text="deep"), ACHIEVED]
GOAL = "How deep is Lake Baikal?"


async def replay(tools: Any) -> None:
    """Print the state of a finished run after each of its changes."""
    async with GoalAgent("diver", llm=ScriptedLLM(FOUND), tools=tools, actions=[NOTE]) as diver:
        session = await diver.create_session("ada")
        await diver.run_goal(GOAL, session=session)
        for number in range(session.state.number + 1):
            state = session.state.replay(number)
            print(number, {key: value for key, value in state.items() if not key.startswith("_")})


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tagent.tools.py").write_text(TOOLS, encoding="utf-8")
        tools = discover(folder)
    model = ScriptedLLM([*FOUND, '{"lake": "Baikal", "depth": 1642}'])
    result = run_agent_sync(GOAL, model, tools=tools, actions=[NOTE], output=Answer)
    print(result.status, result.data, dict(result.raw_data))
    print([each.text for each in result.tool_results])

    stuck = run_agent_sync(GOAL, ScriptedLLM([lookup("Baikal")], repeat=True), tools=tools)
    print(stuck.status, dict(stuck.raw_data), type(stuck.failure).__name__, stuck.error)
    trio.run(replay, tools)


if __name__ == "__main__":
    main()
