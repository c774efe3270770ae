"""Plans of tasks in one decision: references, retries, reasons for the next plan, and crashes."""

import json

from actgent import Limits, ScriptedLLM, ToolCall, run_agent
from actgent.protocols.goal.task_plan import MAX_PLANS


def act(action, **params):
    return json.dumps({"action": action, "params": params, "reasoning": "because"})


def plan(*tasks):
    return act("plan", tasks=list(tasks))


def task(name, *, say="", **args):
    return {"description": say or f"use {name}", "tool": name, "args": args}


ACHIEVED = act("evaluate", achieved=True, answer="done")


def search(state, args):
    """Search."""
    return ("results", [{"url": f"http://{args['query']}", "rank": 1}])


def fetch(state, args):
    """Fetch pages."""
    return ("pages", {"urls": args["urls"], "rank": args.get("rank")})


def flaky(times):
    """Return a tool that fails the given number of times, and its recorded calls."""
    calls = []

    def fails(state, args):
        calls.append(args)
        if len(calls) <= times:
            raise RuntimeError(f"r{len(calls)}")
        return ("ok", len(calls))

    return fails, calls


def told(llm):
    """Return the text at the end of the model's last request."""
    return llm.chats[-1].messages[-1].parts[0].text


async def test_a_plan_of_tasks_runs_without_further_model_calls():
    """One decision starts many calls. Later tasks read typed results of earlier ones."""
    first = plan(
        task("search", query="a"),
        task("search", query="b"),
        task(
            "fetch",
            urls=["{{tasks.0.output.results.0.url}}", "{{task_2.output.results.0.url}}"],
            rank="{{tasks.0.output.results.0.rank}}",
        ),
        task("fetch", urls="{{tasks.0.output.results}}"),
    )
    result = await run_agent("read", ScriptedLLM([first, ACHIEVED]), tools=[search, fetch], tasks=True)
    assert (result.status, result.iterations) == ("completed", 2)
    assert [(each.id, each.status, each.attempts) for each in result.tasks] == [
        (f"task_{n}", "completed", 1) for n in (1, 2, 3, 4)
    ]
    assert result.tasks[2].result == {"pages": {"urls": ["http://a", "http://b"], "rank": 1}}
    assert result.raw_data["pages"]["urls"] == [{"url": "http://a", "rank": 1}]
    assert result.used_tools == ("search", "fetch")
    assert {name: each.calls for name, each in result.metrics.tools.items()} == {"search": 2, "fetch": 2}


async def test_failed_tasks_are_retried_three_times():
    """Case 22: after that the task has failed. The next task starts, and dependent tasks do not."""
    fails, calls = flaky(9)
    soon, later = flaky(2)
    first = plan(
        task("fails"),
        task("soon"),
        task("search", query="{{tasks.0.output.ok}}"),
        {**task("fails", x=1), "max_retries": 0},
        task("nothing"),
        {"description": "think"},
        task("search", query="{{tasks.5.output}}"),
    )
    llm = ScriptedLLM([first, ACHIEVED])
    result = await run_agent("try", llm, tools={"fails": fails, "soon": soon, "search": search}, tasks=True)
    assert [(each.status, each.retry_count, each.failure_reason) for each in result.tasks] == [
        ("failed", 3, "RuntimeError: r4"),
        ("completed", 2, None),
        ("failed", 0, "the task needs the result of task_1, which is failed"),
        ("failed", 0, "RuntimeError: r5"),
        ("failed", 0, "unknown tool 'nothing'"),
        ("pending", 0, "the task has no tool: do it in the next decisions"),
        ("pending", 0, "the task needs the result of task_6, which is pending"),
    ]
    assert (len(calls), len(later)) == (5, 3)
    figures = {name: (each.calls, each.successful_calls) for name, each in result.metrics.tools.items()}
    assert figures == {"fails": (5, 0), "soon": (3, 1)}


async def test_reasons_reach_the_next_plan():
    """Case 22: the next prompt has the failures with their reasons. The next plan refers to the tasks of the first."""
    fails, _ = flaky(4)
    first = plan(task("search", query="a"), task("fails", say="d"))
    second = plan(task("fetch", urls="{{tasks.0.output.results.0.url}}"))
    llm = ScriptedLLM([first, second, ACHIEVED])
    result = await run_agent(
        "read", llm, tools={"search": search, "fetch": fetch, "fails": fails}, tasks=True
    )
    asked = [chat.messages[-1].parts[0].text for chat in llm.chats]
    assert "FAILED TASKS:\n- d: RuntimeError: r4" in asked[1]
    assert "- plan, params" in asked[1]
    assert "FAILED TASKS" not in asked[2]
    assert [(each.id, each.cycle) for each in result.tasks] == [("task_1", 1), ("task_2", 1), ("task_3", 2)]
    assert result.raw_data["pages"]["urls"] == "http://a"


async def test_sixth_plan_is_rejected():
    """Case 22: the model reads the rejection, and other steps continue."""
    plans = [plan(task("search", query=f"q{n}")) for n in range(MAX_PLANS + 1)]
    llm = ScriptedLLM([*plans, ACHIEVED])
    result = await run_agent("read", llm, tools=[search], tasks=True)
    assert (result.status, len(result.tasks)) == ("completed", MAX_PLANS)
    assert any("5 plans of tasks were carried out" in message.text for message in result.history)


async def test_repeated_plan_ends_the_run():
    """A repeated plan counts as a cycle."""
    llm = ScriptedLLM([plan(task("search", query="a"))], repeat=True)
    result = await run_agent("read", llm, tools=[search], tasks=True)
    assert (result.status, result.achieved) == ("incomplete", False)
    assert len(llm.chats) < 20


async def test_tasks_receive_the_goal_and_its_results():
    """Functions of the state read results of earlier tasks as results of calls."""
    seen = []

    def look(state, args):
        return ("found", args["n"])

    def show(state, args):
        seen.append((state["goal"], state["used_tools"], state["results"]))

    script = [plan(task("look", n=7)), act("execute", tool="show"), ACHIEVED]
    await run_agent("read", ScriptedLLM(script), tools=[look, show], tasks=True)
    assert seen == [("read", ["look"], [{"tool": "look", "result": {"found": 7}}])]


async def test_malformed_plans_are_retried():
    """Malformed tasks are reported to the model and never run. A plan of steps is accepted."""
    wrong = act("plan", tasks=[{"tool": "search"}])
    script = [
        wrong,
        act("plan", steps=["look"]),
        act("execute", tool="search", args={"query": "a"}),
        ACHIEVED,
    ]
    result = await run_agent("read", ScriptedLLM(script), tools=[search], tasks=True)
    assert (result.status, result.tasks) == ("completed", ())
    assert any("an object with a description" in message.text for message in result.history)


async def test_models_can_call_run_tasks_natively():
    call = ToolCall("run_tasks", {"tasks": [task("search", query="a")]})
    result = await run_agent("read", ScriptedLLM([call, ACHIEVED]), tools=[search], tasks=True)
    assert [each.status for each in result.tasks] == ["completed"]


async def test_tasks_are_not_offered_by_default():
    """The agent has no tool for tasks and no other form of a plan."""
    llm = ScriptedLLM(
        [act("plan", steps=["look"]), act("execute", tool="search", args={"query": "a"}), ACHIEVED]
    )
    await run_agent("read", llm, tools=[search])
    assert "run_tasks" not in {spec.name for spec in llm.chats[0].tools}
    assert '"tasks"' not in llm.chats[0].messages[-1].parts[0].text


async def test_limits_hold_in_tasks():
    """Calls of tasks count as calls of the turn. At the limit the remaining tasks fail, and the model reads it."""
    first = plan(*(task("search", query=f"q{n}") for n in range(5)))
    unmet = act("evaluate", achieved=False)
    llm = ScriptedLLM([first, *[unmet] * 5])
    result = await run_agent("read", llm, tools=[search], tasks=True, limits=Limits(tool_calls=4))
    assert result.status == "incomplete"
    assert [each.status for each in result.tasks] == ["completed"] * 3 + ["failed"] * 2
    assert "limit of 4 tool calls" in result.tasks[-1].failure_reason


async def test_long_results_are_truncated_only_for_the_model():
    """References contain the whole value."""

    def long(state, args):
        return ("text", "x" * 50_000)

    def measure(state, args):
        return ("length", len(args["text"]))

    script = [plan(task("long"), task("measure", text="{{tasks.0.output.text}}")), ACHIEVED]
    llm = ScriptedLLM(script)
    result = await run_agent("measure", llm, tools=[long, measure], tasks=True)
    assert result.raw_data["length"] == 50_000
    assert len(result.tool_results[0].content) < 6_000
    assert "FAILED" not in told(llm)
