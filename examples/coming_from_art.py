"""Migrate a program of ART: a thread with its configuration, `process`, and observations during the turn.

The model plans three tool calls: one succeeds, one fails, and one tool is not enabled for the thread. The result has the
status `partial`, and the answer names this status. Then the model fails, and `process` returns a result with the status `error`.
"""

import json
from typing import Any

import trio

from actgent import ModelError, PlanAgent, ScriptedLLM, Session, open_runtime, tool


@tool(effect="pure")
async def depth(lake: str) -> int:
    """Return the depth of a lake in metres."""
    return {"Baikal": 1642, "Geneva": 310}[lake]


@tool(effect="pure")
async def weather(city: str) -> str:
    """Return the weather of a city."""
    raise ConnectionError(f"no weather for {city} today")


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}: {text}"


CALLS = [
    {"toolName": "depth", "arguments": {"lake": "Baikal"}},
    {"toolName": "weather", "arguments": {"city": "Irkutsk"}},
    {"toolName": "send_mail", "arguments": {"to": "ada", "text": "1642 m"}},
]
SCRIPT: list[Any] = [
    json.dumps({"thoughts": "Both.", "intent": "plan a trip", "plan": "look up both", "toolCalls": CALLS}),
    "Lake Baikal is 1642 m deep. I know nothing of the weather, and sent no mail.",
    ModelError("the provider does not answer"),
]


async def watch(session: Session, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Print the observations of a session until the task is cancelled."""
    async with session.observe(
        types=["THOUGHTS", "INTENT", "PLAN", "TOOL_EXECUTION", "ERROR"]
    ) as observations:
        task_status.started()
        async for each in observations:
            print(f"  {each.type}, {each.title}: {each.content or each.metadata['error']}")


async def main() -> None:
    art = PlanAgent("guide", role="a guide", llm=ScriptedLLM(SCRIPT), tools=[depth, weather, send_mail])
    async with (
        open_runtime() as runtime,
        trio.open_nursery() as nursery,
    ):  # journal="sqlite:///..." keeps the threads
        await runtime.start(art)
        session = await art.ensure_session("ada", "t1", prompt="Answer in two sentences.")
        art.configure(session, tools=["depth", "weather"], history=20)
        session.state.dispatch(("language", "en"))
        await nursery.start(watch, session)
        for query in ("Lake Baikal and its weather, please.", "And tomorrow?"):
            result = await art.process(query, session=session, metadata={"tab": "1"})
            print(f"{result.status} after {result.model_calls} model calls: {result.text}")
            for each in result.tool_results:
                print(f"  {each.name}: {each.status} {each.content or each.error}")
        page = await session.messages(roles=["user", "assistant"])
        print([message.text for message in page], session.state["language"])
        final = next(message for message in page if message.sender.kind == "assistant")
        print([call.name for call in (await session.message_trace(final)).calls])
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
