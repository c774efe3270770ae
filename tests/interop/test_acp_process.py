"""`actgent acp` as an editor starts it: standard streams, the journal, and killed processes."""

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from .acp_client import Client, selecting

ACTGENT = str(Path(sys.executable).with_name("actgent"))
AGENT = """
import trio
from actgent import ApprovalRequest, BareAgent, ScriptedLLM, Text, ToolCall, ToolResult, tool
from actgent.llm.model_interface import ModelResponse

print("noise of an import")


def answer(chat):
    last = chat.messages[-1]
    words = "".join(part.text for part in last.parts if isinstance(part, Text))
    if any(isinstance(part, ToolResult) for part in last.parts):
        return "The result is in."
    name = next((word for word in ("pay", "wait") if word in words), "")
    return ModelResponse(parts=(ToolCall(name, {}),), stop="tool_calls") if name else f"you said: {words}"


@tool(approval=ApprovalRequest("Really pay?", timeout=3600))
def pay() -> str:
    '''Pay.'''
    print("noise of a tool")
    with open("paid", "a") as file:
        file.write("x")
    return "paid"


@tool(effect="pure")
async def wait() -> str:
    '''Wait until there is a file.'''
    while not await trio.Path("release").exists():
        await trio.sleep(0.05)
    return "waited"


agent = BareAgent("clerk", llm=ScriptedLLM(answer), tools=[pay, wait])
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "clerk.py").write_text(AGENT, encoding="utf-8")
    return tmp_path


@pytest.fixture
def started(folder, commands):
    """Start the command in the folder.

    Yield a client after `initialize`. The command ends after the client closes its stream.
    """

    @asynccontextmanager
    async def start(*options, target="clerk.py", **client_options):
        life = commands.popen(
            [ACTGENT, "acp", target, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "XDG_DATA_HOME": str(folder / "data")},
        )
        to_agent, from_agent = (
            trio.lowlevel.FdStream(os.dup(each.fileno())) for each in (life.stdin, life.stdout)
        )
        life.stdin.close()
        life.stdout.close()
        try:
            async with to_agent, from_agent, trio.open_nursery() as nursery:
                client = Client(to_agent, from_agent, nursery=nursery, **client_options)
                nursery.start_soon(client.read)
                await client.ask("initialize", protocolVersion=1)
                yield client, life
                await to_agent.aclose()
                await trio.to_thread.run_sync(life.wait, 30)
                nursery.cancel_scope.cancel()
        finally:
            life.kill()
            life.wait()

    return start


async def test_prints_do_not_mix_with_the_protocol_and_sessions_are_kept(folder, started):
    async with started(decide=selecting("allow")) as (client, life):
        session_id = await client.new()
        assert (await client.prompt(session_id, "please pay"))["stopReason"] == "end_turn"
    assert life.returncode == 0
    assert (folder / "paid").read_text() == "x"
    (journal,) = (folder / "data" / "actgent" / "acp").glob("clerk-*.db")
    assert journal.parent.stat().st_mode & 0o077 == 0
    async with started() as (client, _):
        (listed,) = (await client.ask("session/list"))["sessions"]
        assert (listed["sessionId"], listed["title"]) == (session_id, "please pay")
        await client.load(session_id)
        assert client.text() == "The result is in."


async def test_agent_of_a_folder_is_served(folder, started, commands):
    made = await trio.to_thread.run_sync(partial(commands.run, [ACTGENT, "new", "support"], cwd=folder))
    assert made.returncode == 0
    async with started("--offline", target="support") as (client, _):
        await client.prompt(await client.new(), "hello")
        assert client.text()


async def test_killed_agent_asks_again_for_the_permission(folder, started):
    async with started() as (client, life):
        session_id = await client.new()
        await client.start_prompt(session_id, "please pay")
        await client.permission()
        life.kill()
    assert life.returncode == -signal.SIGKILL
    async with started(decide=selecting("allow")) as (client, _):
        await client.load(session_id)
        await client.until(lambda _: client.text() == "The result is in.")
        assert client.text("user_message_chunk") == "please pay"
    assert (folder / "paid").read_text() == "x"


@pytest.mark.parametrize("ending", ["closed", "terminated", "killed"])
async def test_turn_that_was_running_resumes_when_its_session_is_loaded(folder, started, ending):
    async with started() as (client, life):
        session_id = await client.new()
        await client.start_prompt(session_id, "please wait")
        await client.until(lambda _: client.updates("tool_call"))
        if ending != "closed":
            life.send_signal(signal.SIGTERM if ending == "terminated" else signal.SIGKILL)
    assert life.returncode == {"closed": 0, "terminated": 143, "killed": -signal.SIGKILL}[ending]
    async with started() as (client, _):
        (folder / "release").touch()
        await client.load(session_id)
        await client.until(lambda _: client.text() == "The result is in.")
        results = [each["status"] for each in client.updates("tool_call_update")]
        assert results == ["completed"]
        assert (await client.prompt(session_id, "hello"))["stopReason"] == "end_turn"


async def test_killed_editor_leaves_no_process(folder):
    """The editor is a process that starts the agent and holds its streams."""
    program = (
        "import subprocess, sys, time\n"
        "agent = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        'agent.stdin.write(b\'{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}\\n\')\n'
        "agent.stdin.flush()\n"
        "agent.stdout.readline()\n"
        "print(agent.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, ACTGENT, "acp", "clerk.py", "--journal", "memory:"]
    editor = await trio.lowlevel.open_process(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        with trio.fail_after(60):
            pid = int(await editor.stdout.receive_some())
        descriptor = os.pidfd_open(pid)
        editor.kill()
        with trio.fail_after(30):
            await trio.lowlevel.wait_readable(descriptor)  # readable after the process has ended
        os.close(descriptor)
    finally:
        editor.kill()
        with trio.CancelScope(shield=True):
            await editor.wait()
        await editor.stdout.aclose()


async def test_second_process_uses_a_separate_journal(folder, started, commands):
    async with started() as (client, _):
        await client.prompt(await client.new(), "hello")
        async with started() as (second, _):
            await second.prompt(await second.new(), "again")
            assert [each["title"] for each in (await second.ask("session/list"))["sessions"]] == ["again"]
        journal = min((folder / "data").rglob("*.db"), key=len_of_name)
        run = partial(commands.run, capture_output=True, stdin=subprocess.DEVNULL, cwd=folder)
        done = await trio.to_thread.run_sync(run, [ACTGENT, "acp", "clerk.py", "--journal", journal])
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"is owned by process" in done.stderr


def len_of_name(path):
    return len(path.name)


async def test_folder_with_several_agents_is_rejected(folder, commands):
    (folder / "two.py").write_text(
        "from actgent import BareAgent, ScriptedLLM\n"
        "one, two = (BareAgent(name, llm=ScriptedLLM([])) for name in ('one', 'two'))\n"
    )
    run = partial(commands.run, capture_output=True, stdin=subprocess.DEVNULL, cwd=folder)
    done = await trio.to_thread.run_sync(run, [ACTGENT, "acp", "two.py"])
    assert done.returncode == 2
    assert b"several agents (one, two)" in done.stderr
