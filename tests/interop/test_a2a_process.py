"""A2A tasks of `actgent serve` when the process is killed: in a tool, in a text, and during an open approval."""

import re
import subprocess
import time

import httpx2
import pytest

from .sse import events_of
from .test_a2a import decide, fold, message, state_of, text_of

AGENT = """
import trio
from pathlib import Path
from actgent import ApprovalRequest, BareAgent, ScriptedLLM, Text, ToolCall, ToolResult, tool
from actgent.llm.model_interface import ModelResponse


def note(name):
    with open(name, "a") as file:
        file.write("x")


def answer(chat):
    note("calls")
    last = chat.messages[-1]
    words = "".join(part.text for part in last.parts if isinstance(part, Text))
    if any(isinstance(part, ToolResult) for part in last.parts):
        return "The result is in."
    name = next((word for word in ("pay", "wait") if word in words), "")
    return ModelResponse(parts=(ToolCall(name, {}),), stop="tool_calls") if name else "a long text " * 5


@tool(approval=ApprovalRequest("Really pay?", timeout=3600))
def pay() -> str:
    '''Pay.'''
    note("paid")
    return "paid"


@tool(effect="pure")
async def wait() -> str:
    '''Wait until there is a file.'''
    note("begun")
    while not await trio.Path("release").exists():
        await trio.sleep(0.05)
    return "waited"


clerk = BareAgent("clerk", llm=ScriptedLLM(answer, chunk=5, chunk_delay=0.1), tools=[pay, wait])
"""


@pytest.fixture
def served(tmp_path, commands, no_keys):
    """Return a function that kills the running server and starts a new one with the same journal."""
    (tmp_path / "team.py").write_text(AGENT, encoding="utf-8")
    running, errors = [], (tmp_path / "errors.txt").open("ab")

    def kill():
        for process in running:
            process.kill()
            process.wait()
            process.stdout.close()
        running.clear()

    def start():
        kill()
        command = ["actgent", "serve", "team.py", "--bind", "127.0.0.1:0", "--journal", "agents.db"]
        process = commands.popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=tmp_path)
        running.append(process)
        text, found = "", {}
        while "token" not in found:
            line = process.stdout.readline().decode()
            assert line, text
            text += line
            for name, pattern in (("url", r"at (http\S+)/v1"), ("token", r"(act_\S+)")):
                if match := re.search(pattern, line):
                    found[name] = match[1]
        headers = {"authorization": f"Bearer {found['token']}", "a2a-version": "1.0"}
        return httpx2.Client(base_url=f"{found['url']}/a2a/clerk", headers=headers, timeout=60)

    yield start
    kill()
    errors.close()


def call(client, method, params):
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return client.post("", json=body).json()["result"]


def wait_for(path):
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def subscribe(client, task):
    """Return the task after the last event of its stream."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}}
    answer = client.post("", json=body)
    if answer.headers["content-type"].startswith("application/json"):  # the task has ended
        return call(client, "GetTask", {"id": task["id"]})
    events = [each["result"] for each in events_of(answer.text)]
    ends = [each for each in events if state_of_update(each) == "COMPLETED"]
    assert ends == events[-1:]
    return fold(events)


def state_of_update(event):
    return state_of(event["statusUpdate"]) if "statusUpdate" in event else ""


def begin_text(client, sent):
    """Read the stream of a task up to its first text, and return the task."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": sent}
    found = []
    with client.stream("POST", "", json=body) as stream:
        for line in stream.iter_lines():
            found += events_of(line + "\n\n") if line.startswith("data:") else []
            if found and "artifactUpdate" in found[-1]["result"]:
                return found[0]["result"]["task"]
    raise AssertionError(found)


@pytest.mark.parametrize(
    ("expected", "text"), [("wait", "The result is in."), ("write", "a long text " * 5)], ids=["tool", "text"]
)
def test_running_task_survives_kill_and_ends_once(served, tmp_path, expected, text):
    """The task continues without a request. A repeated message returns the same task with the same answer."""
    sent = message(f"please {expected}", contextId="c")
    with served() as client:
        if expected == "write":
            task = begin_text(client, sent)
        else:
            task = call(client, "SendMessage", {**sent, "configuration": {"returnImmediately": True}})["task"]
            wait_for(tmp_path / "begun")
    (tmp_path / "release").touch()
    with served() as client:
        seen = subscribe(client, task)
        assert (seen["id"], state_of(seen), text_of(seen)) == (task["id"], "COMPLETED", text)
        again = call(client, "SendMessage", sent)["task"]
        listed = call(client, "ListTasks", {"includeArtifacts": True})["tasks"]
    with served() as client:
        assert call(client, "GetTask", {"id": task["id"]}) == again
    assert (again["id"], text_of(again)) == (task["id"], text)
    assert [(each["id"], text_of(each)) for each in listed] == [(task["id"], text)]
    # The answer that called the tool was recorded; an interrupted answer is requested again.
    assert (tmp_path / "calls").read_text() == "xx"


def test_open_approval_survives_kill_and_is_decided_once(served, tmp_path):
    with served() as client:
        task = call(client, "SendMessage", message("please pay", contextId="c"))["task"]
        assert state_of(task) == "INPUT_REQUIRED"
    with served() as client:
        assert call(client, "GetTask", {"id": task["id"]}) == task
        (asked,) = task["status"]["message"]["parts"][1]["data"]["approvals"]
        decision = decide(task, {asked["id"]: {"approve": True}})
        done = call(client, "SendMessage", decision)["task"]
        assert (state_of(done), text_of(done)) == ("COMPLETED", "The result is in.")
    with served() as client:
        again = call(client, "SendMessage", decision)["task"]
        assert (again["id"], again["artifacts"]) == (task["id"], done["artifacts"])
    assert (tmp_path / "paid").read_text() == "x"
