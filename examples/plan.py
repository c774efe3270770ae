"""Plan for a research task: some tools fail, and the answer names the failures.

The model plans three items. The archive is closed, so the item that requires the archive fails. The items that depend on
it are cancelled, and the result is `partial`. Then a follow-up message refines the plan, and completed items stay done.
"""

import json
from collections.abc import Mapping
from typing import Any

import trio

from actgent import Event, PlanAgent, ScriptedLLM, Session, ToolCall, tool
from actgent.protocols.plan import Plan, plan_of, todo_text


@tool(effect="pure")
def search(topic: str) -> str:
    """Search the library."""
    return f"{topic}: 1642 m at the deepest place"


@tool(effect="pure")
def archive(topic: str) -> str:
    """Search the archive."""
    raise ConnectionError(f"the archive is closed today, also for {topic}")


def plan(*items: Mapping[str, Any]) -> str:
    return json.dumps({"intent": "a report on Lake Baikal", "plan": "search, compare", "todoList": items})


def content(words: str) -> str:
    return json.dumps({"content": words})


DEPTH: dict[str, Any] = {"id": "depth", "description": "find the depth", "requiredTools": ["search"]}
PAST = {"id": "past", "description": "find older measures", "requiredTools": ["archive"]}
COMPARE = {"id": "compare", "description": "compare both", "dependencies": ["depth", "past"]}
REFUSED = content("I could not look into the archive.")
SCRIPT: list[Any] = [
    plan(DEPTH, PAST, COMPARE),
    ToolCall("search", {"topic": "Lake Baikal"}),
    content("1642 m"),
    ToolCall("archive", {"topic": "Lake Baikal"}),
    *[REFUSED] * 3,  # the model is reminded twice
    "Lake Baikal is 1642 m deep. The archive is closed, so I could not compare.",
    plan(DEPTH | {"status": "completed"}, {"id": "round", "description": "round it"}),
    content("about 1.6 km"),
    "Lake Baikal is about 1.6 km deep.",
]


async def main() -> None:
    agent = PlanAgent("researcher", llm=ScriptedLLM(SCRIPT), tools=[search, archive])
    async with agent:
        session = await agent.create_session("ada")
        session.on_event(show)
        await ask(agent, session, "Write about the depth of Lake Baikal, then and now.")
        await ask(agent, session, "Then just round it.")


def show(event: Event) -> None:
    if event.name == "item":
        print(f"  {event.data['id']}: {event.data['status']}")


async def ask(agent: PlanAgent, session: Session, question: str) -> None:
    result = await agent.process(question, session=session)
    print(f"{result.status} after {result.model_calls} model calls: {result}")
    print(todo_text(plan_of(session.state) or Plan()))


if __name__ == "__main__":
    trio.run(main)
