"""Reports about the work on a goal: metrics and progress."""

import json

import pytest

from actgent import GoalAgent, Limits, ScriptedLLM, ToolCall, Usage, run_agent, tool
from actgent.llm.model_interface import ModelResponse
from actgent.messages import Text


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because\x1b[2J"})


def use(name, **args):
    return act("execute", tool=name, args=args)


ACHIEVED = act("evaluate", achieved=True, answer="done")


def ok(state, args):
    """Return one, or n."""
    return ("v", args.get("n", 1))


@tool
def broken() -> str:
    """Break."""
    raise RuntimeError("no")


def paid(text, cost=0.25):
    usage = Usage(input_tokens=100, output_tokens=10, cost=cost)
    return ModelResponse(parts=(text if isinstance(text, ToolCall) else Text(text),), usage=usage)


async def test_metrics_of_a_run():
    """The metrics are seconds, calls, successes by tool, tokens and cost, for native calls and calls in text."""
    script = [use("ok"), use("broken"), ToolCall("ok", {"n": 2}), ToolCall("broken", {}), ACHIEVED]
    result = await run_agent("find v", ScriptedLLM(list(map(paid, script))), tools=[ok, broken])
    metrics = result.metrics
    assert (metrics.model_calls, metrics.tool_calls, metrics.tokens, metrics.cost) == (5, 4, 550, 1.25)
    assert 0 < metrics.seconds < 60
    assert {
        name: (each.calls, each.successful_calls, each.failed_calls) for name, each in metrics.tools.items()
    } == {"ok": (2, 2, 0), "broken": (2, 0, 2)}
    assert (metrics.tools["ok"].success_rate, metrics.tools["broken"].success_rate) == (1.0, 0.0)
    assert metrics.success_rate == 0.5


async def test_metrics_without_tools_or_prices():
    """Unknown metrics are None, and no division by zero happens."""
    script = [act("summarize", summary="so"), ACHIEVED]
    result = await run_agent("know", ScriptedLLM([paid(text, cost=None) for text in script]))
    assert (result.metrics.success_rate, result.metrics.cost, result.metrics.tool_calls) == (None, None, 0)


async def test_metrics_at_a_limit():
    """A run that ends at a limit has metrics of all calls, also of calls with unreadable answers."""
    llm = ScriptedLLM([paid(use("ok")), *[paid("hm")] * 5])
    result = await run_agent("find v", llm, tools=[ok], limits=Limits(output_retries=5), max_iterations=4)
    assert (result.status, result.metrics.model_calls, result.metrics.tokens) == ("incomplete", 4, 440)


async def test_verbose_prints_all_events_in_order():
    """The narration has decisions with reasons, calls, results, state changes and the end."""
    lines = []
    llm = ScriptedLLM([act("plan", steps=["use ok"]), use("ok"), ToolCall("broken", {}), "hm", ACHIEVED])
    await run_agent("find\nv", llm, tools=[ok, broken], verbose=lines.append)
    received = [line.partition("] ")[2] for line in lines]
    assert received == [
        "goal: find\\nv",
        'decides: plan {"steps": ["use ok"]} because: because\\x1b[2J',
        'decides: execute {"tool": "ok", "args": {}} because: because\\x1b[2J',
        "  state: v = 1",
        '  ok: {"v": 1}',
        "calls broken {}",
        "  broken: failed: RuntimeError: no",
        "says: hm",
        'decides: evaluate {"achieved": true, "answer": "done"} because: because\\x1b[2J',
        "ended: completed after 5 model calls",
    ]


async def test_verbose_at_a_limit():
    """A run that ends at a limit reports it at its end."""
    lines = []
    llm = ScriptedLLM([ToolCall("ok", {"n": n}) for n in range(9)])
    await run_agent("find v", llm, tools=[ok], verbose=lines.append, max_iterations=2)
    assert "ended: incomplete (the turn reached its limit of 2 model calls" in lines[-1]


async def test_verbose_on_standard_error(capsys):
    """`verbose=True` prints for a person. An agent reports all its sessions; without it nothing is printed."""
    for verbose, times in ((True, 2), (False, 0)):
        async with GoalAgent(
            "worker", llm=ScriptedLLM([use("ok"), ACHIEVED] * 2), tools=[ok], verbose=verbose
        ) as agent:
            for owner in ("ada", "bob"):
                session = await agent.create_session(owner)
                await agent.run("find v", session=session)
        captured = capsys.readouterr()
        assert captured.err.count("state: v = 1") == times
        assert captured.out == ""


@pytest.mark.parametrize("size", [10_000])
async def test_long_values_are_truncated_to_one_line(size):
    def long(state, args):
        return ("text", "x\n" * size)

    lines = []
    await run_agent("find", ScriptedLLM([use("long"), ACHIEVED]), tools=[long], verbose=lines.append)
    assert max(map(len, lines)) < 500
    assert not any("\n" in line for line in lines)
