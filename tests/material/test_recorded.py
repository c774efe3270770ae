"""The benchmark with recorded runs, on small runs in the same formats."""

import json

import pytest

from actgent import ModelRequest, ShortTermMemory
from actgent.messages import ChatMessage, Text, ToolCall, ToolResult

from . import recorded
from .test_bfcl import run_command

TASK = "Find the fault in the parser. " * 20


def trajectory(steps, size=400):
    """Return a run of mini-swe-agent: two messages, then an answer with a command and its output for each step."""
    messages = [{"role": "system", "content": "You use a shell."}, {"role": "user", "content": TASK}]
    for number in range(steps):
        usage = {"prompt_tokens": 200 + number * (size // 4 + 30), "completion_tokens": 25}
        answer = f"THOUGHT: step {number}.\n\n```bash\ncat file{number}\n```"
        messages.append({"role": "assistant", "content": answer, "extra": {"response": {"usage": usage}}})
        messages.append({"role": "user", "content": f"{number} " + "line of output " * (size // 15)})
    return {"messages": messages}


@pytest.fixture
def material(tmp_path):
    """Return a folder with the files of the benchmark."""
    call = {"id": "c", "function": {"name": "read", "arguments": "{}"}}
    turn = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "name": "read", "content": "It is empty."},
        {"role": "assistant", "content": "Empty."},
    ]
    runs = "mini-swe-agent/swebench_results/one/trajs"
    files = {
        f"{runs}/short/short.traj.json": trajectory(5),
        f"{runs}/long/long.traj.json": trajectory(60, size=4_000),
        "swe-agent/trajectories/demonstrations/one/a.traj": {"history": turn},
        "tau-bench/historical_trajectories/a.json": [{"traj": turn}],
    }
    for name, value in files.items():
        path = tmp_path / "recorded" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value), encoding="utf-8")
    return tmp_path


def test_the_command_prints_three_tables(material):
    """The output has the tables of runs, counts and histories."""
    code, output = run_command(material, "--only", "recorded")
    assert code in {0, 1}
    for title in ("Runs of mini-swe-agent", "Estimated tokens of a request", "Recordings as `history=`"):
        assert title in output


def test_a_run_is_read_with_the_counts_of_its_provider(material):
    """Each step has the answer, the output and the tokens of its request."""
    long, short = recorded.read_runs(material / "recorded")
    assert (len(long.steps), len(short.steps)) == (60, 5)
    assert short.task == TASK
    assert short.steps[1].counted == 330
    assert recorded.command_of(short.steps[1].answer) == "cat file1"
    assert short.rates[0] == pytest.approx(130 / (len(short.steps[0].answer) + len(short.steps[0].output)))


async def test_a_replay_without_a_window_shows_all(material):
    """Without a window, each request has the task and all results, and the token count of the provider."""
    [_, short] = recorded.read_runs(material / "recorded")
    found = await recorded.replay_all([short], None, None, lambda _: None)
    assert (found.runs, found.requests, found.failed.total()) == (1, 5, 0)
    assert (found.without_task, found.without_last, found.shortened_last, found.unpaired) == (0, 0, 0, 0)
    assert found.cuts == []


async def test_a_replay_counts_requests_that_a_memory_cut(material):
    """No request exceeds a small window. A cut is recorded with its share of the available tokens."""
    [long, _] = recorded.read_runs(material / "recorded")
    found = await recorded.replay_all([long], 16_000, ShortTermMemory, lambda _: None)
    assert (found.requests, found.over, found.unpaired) == (60, 0, 0)
    assert found.cuts
    assert all(0 < share < 1 for share in found.cuts)


def test_a_request_without_the_task_is_counted():
    """The statistics count cut requests without the task, and without one of the last results."""
    run = recorded.Run("r", "s", TASK, (recorded.Step("a", "out", 100, 1), recorded.Step("b", "", 120, 1)))
    found = recorded.Replayed()
    model = recorded.Replay(run, found, 1_000)
    call, result = (
        ToolCall("bash", {"command": ""}, id="c0"),
        ToolResult(call_id="c0", tool_name="bash", content="out"),
    )
    whole = (
        ChatMessage("user", (Text(TASK),)),
        ChatMessage("assistant", (call,)),
        ChatMessage("tool", (result,)),
    )
    model.answer(ModelRequest(messages=whole[:1]))
    model.answer(ModelRequest(messages=whole[1:]))
    assert (found.requests, found.without_task, found.runs_without_task, found.without_last) == (2, 1, 1, 0)
    model = recorded.Replay(run, found := recorded.Replayed(), 1_000)
    model.answer(ModelRequest(messages=whole[:1]))
    model.answer(ModelRequest(messages=whole[:1]))
    assert (found.without_task, found.without_last) == (0, 1)


def test_a_call_whose_arguments_were_shortened_is_counted():
    """A memory replaces a long command with a note of its length. The scripted model still answers."""
    run = recorded.Run("r", "s", TASK, (recorded.Step("a", "out", 100, 1), recorded.Step("b", "", 120, 1)))
    found = recorded.Replayed()
    model = recorded.Replay(run, found, None)
    model.answer(ModelRequest(messages=(ChatMessage("user", (Text(TASK),)),)))
    call = ToolCall("bash", {"not_shown": "60,000 characters"}, id="c0")
    result = ToolResult(call_id="c0", tool_name="bash", content="out")
    chat = (
        ChatMessage("user", (Text(TASK),)),
        ChatMessage("assistant", (call,)),
        ChatMessage("tool", (result,)),
    )
    model.answer(ModelRequest(messages=chat))
    assert (found.requests, found.without_task, found.without_last, found.unpaired) == (2, 0, 0, 0)


def test_a_cut_is_judged_only_if_its_task_and_last_results_leave_room():
    """A cut that keeps a long task cannot reduce the request to half of the available tokens."""
    steps = tuple(recorded.Step("a", "out", tokens, 1) for tokens in (800, 900, 1_000))
    model = recorded.Replay(recorded.Run("r", "s", "task", steps), found := recorded.Replayed(), 1_000)
    for text in ("task" * 50, "task"):
        model.answer(ModelRequest(messages=(ChatMessage("user", (Text(text),)),)))
    assert (found.cramped, found.cuts, found.without_last, found.long_task) == (1, [], 1, 1)
    assert recorded.count_outside([0.44, 0.5, 0.56]) == 2


def test_bounds_below_the_count_of_the_provider_are_counted():
    """A request with many more tokens than its text suggests exceeds its upper bound."""
    steps = (recorded.Step("a", "out", 50, 1), recorded.Step("b", "out", 10_000, 1))
    counts = recorded.compare_counts([recorded.Run("r", "s", "task", steps)], lambda _: None)
    assert (counts.requests, counts.short) == (2, 1)
