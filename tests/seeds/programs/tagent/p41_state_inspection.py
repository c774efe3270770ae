"""The state of an agent can be examined at any point, also during a run, and earlier states too.

Document: Production Considerations, Monitoring and Debugging (State Inspection).
"""

import json

import trio

from actgent import GoalAgent, ScriptedLLM

snapshots = []


def step(state, args):
    """Take a step."""
    return ("step", state.get("step", 0) + 1)


def act(action: str, **params) -> str:
    return json.dumps({"action": action, "params": params})


async def main() -> None:
    script = [act("execute", tool="step", args={"n": n}) for n in (1, 2, 3)]
    model = ScriptedLLM([*script, act("evaluate", achieved=True, answer="3")])
    async with GoalAgent("guide", llm=model, tools={"step": step}) as agent:
        session = await agent.create_session("ada")
        session.state.subscribe(lambda state: snapshots.append(state.get("step")))
        await agent.run_goal("Take three steps.", session=session)
        assert session.state["step"] == 3
        assert list(dict.fromkeys(each for each in snapshots if each is not None)) == [1, 2, 3]
        past = [session.state.replay(number).get("step") for number in session.state.known]
        assert list(dict.fromkeys(each for each in past if each is not None)) == [1, 2, 3]


trio.run(main)
