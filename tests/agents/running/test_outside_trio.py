"""Calls from outside of the agent's trio run are rejected with the list of supported alternatives."""

import asyncio

import pytest
import trio

from actgent import (
    Approve,
    BareAgent,
    OutsideTrio,
    PlanAgent,
    ScriptedLLM,
    StepsAgent,
    open_runtime,
    run_agent,
)

WAYS = [
    "trio.run(main)",
    "open_portal()",
    "hypercorn with --worker-class trio",
    "anyio.run(main, backend='trio')",
]


def clerk():
    return BareAgent("clerk", llm=ScriptedLLM(["Yes."], repeat=True))


async def open_agent():
    async with clerk():
        pass


async def open_block():
    async with open_runtime():
        pass


async def say_with_timeout():
    await clerk().run("Hello", timeout=3)


async def read_along():
    async with clerk().stream("Hello"):
        pass


async def read_steps():
    async with StepsAgent("walker", llm=ScriptedLLM([])).stream("Hello"):
        pass


ENTRIES = {
    "async with agent": open_agent,
    "open_runtime": open_block,
    "run": lambda: clerk().run("Hello"),
    "run(timeout=)": say_with_timeout,
    "stream": read_along,
    "steps": read_steps,
    "create_session": lambda: clerk().create_session("ada", "Hello"),
    "open_session": lambda: clerk().open_session("ada"),
    "ensure_session": lambda: clerk().ensure_session("ada", "ada"),
    "resume": lambda: clerk().resume({"a.s": Approve()}),
    "approvals": lambda: clerk().approvals(),
    "ref.tell": lambda: clerk().ref.tell("Hello"),
    "ref.ask": lambda: clerk().ref.ask("Hello"),
    "process": lambda: PlanAgent("planner", llm=ScriptedLLM([])).process("Hello"),
    "run_agent": lambda: run_agent("Hello", ScriptedLLM([])),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_asyncio_callers_get_an_error_with_the_alternatives(entry):
    """Each entry point raises the same error in asyncio, which lists the supported alternatives."""

    async def main():
        await ENTRIES[entry]()

    with pytest.raises(OutsideTrio, match="asyncio runs this code") as caught:
        asyncio.run(main())
    assert [way for way in WAYS if way not in str(caught.value)] == []


def test_missing_event_loop_is_reported():
    """A coroutine that is driven manually does not run in trio either."""
    work = clerk().run("Hello")
    with pytest.raises(OutsideTrio, match="no trio runs here"):
        work.send(None)


async def test_calls_from_other_threads_are_rejected():
    """The caller runs asyncio or another trio in its thread. The running work is not affected."""
    agent = clerk()
    async with agent:
        session = await agent.create_session("ada")
        calls = {
            "run": lambda: agent.run("Hello"),
            "chat": lambda: session.chat("Hello"),
            "wait_idle": session.wait_idle,
            "interrupt": session.interrupt,
            "schedule": lambda: session.schedule("Hello", after=1),
            "delegate": lambda: session.delegate("other", "Hello"),
            "close": session.aclose,
        }

        def try_all(run):
            received = {}
            for name, call in calls.items():
                with pytest.raises(OutsideTrio) as caught:
                    run(call)
                received[name] = str(caught.value)
            return received

        in_asyncio = await trio.to_thread.run_sync(
            try_all, lambda call: asyncio.run(asyncio.wait_for(call(), 5))
        )
        in_trio = await trio.to_thread.run_sync(try_all, trio.run)
        assert all("asyncio runs this code" in text for text in in_asyncio.values())
        assert all("the trio of another thread" in text for text in in_trio.values())
        assert session.history == ()
        assert session.status == "idle"
        assert (await agent.run("Hello")).text == "Yes."


async def test_tool_in_a_thread_may_call_by_trio_from_thread():
    """The call runs in the agent's own trio."""
    agent = clerk()
    async with agent:
        reply = await trio.to_thread.run_sync(lambda: trio.from_thread.run(agent.run, "Hello"))
    assert reply.text == "Yes."
