"""`actgent check --journal`: the report about a journal before a deployment."""

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.cli.journals import resume_after_upgrade_check
from actgent.cli.main import main

NEW = '''
from actgent import BareAgent, ScriptedLLM, tool

@tool
async def other() -> str:
    """Do something else."""
    return "done"

shop = BareAgent("shop", llm=ScriptedLLM(["done"]), tools=[other])
others = [BareAgent("idle", llm=ScriptedLLM(["done"]))]
'''


async def leave(path, *, calls, waiting=1, name="shop"):
    """Run a process that ends in the middle of sessions. In `calls` of these sessions a tool call had started."""
    started = []

    @tool(effect="idempotent")
    async def put() -> str:
        """Put something away, for ever."""
        started.append(1)
        await trio.sleep_forever()

    async def answer(chat):
        if chat.messages[-1].parts[0].text == "call":
            return [ToolCall("put", {})]
        started.append(1)
        return await trio.sleep_forever()

    with trio.CancelScope() as scope:
        async with open_runtime(journal=f"sqlite:///{path}") as runtime:
            agent = await runtime.start(
                BareAgent(name, llm=ScriptedLLM(answer), tools=[put], max_concurrent_sessions=1000)
            )
            for number in range(calls):
                await agent.create_session("ada", "call", session_id=f"c{number}")
            for number in range(waiting):
                await agent.create_session("ada", "wait", session_id=f"w{number}")
            while len(started) < calls + waiting:  # noqa: ASYNC110 - the tools tell nobody
                await trio.sleep(0.01)
            scope.cancel()
            await trio.sleep_forever()


def check(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["check", *map(str, arguments)])
    return ended.value.code


@pytest.fixture
def new(tmp_path):
    path = tmp_path / "new.py"
    path.write_text(NEW)
    return path


def test_affected_sessions_are_named(tmp_path, new, capsys):
    """The report has the effect and the number of sessions, and sets the exit code. The journal does not change."""
    path = tmp_path / "agents.db"
    trio.run(lambda: leave(path, calls=1))
    before = path.read_bytes()
    assert check(new, "--journal", path) == 1
    out = capsys.readouterr().out
    assert "! shop c0: tool 'put': outcome unknown, as its tool is gone" in out
    assert "  shop w0: the model is asked" in out
    assert "2 sessions in the middle: 1 resumes, 1 changes; 0 wait for other agents" in out
    assert path.read_bytes() == before


def test_unaffected_sessions_exit_with_0(tmp_path, new, capsys):
    """Unaffected sessions resume unchanged or have no unfinished work."""
    path = tmp_path / "agents.db"
    trio.run(lambda: leave(path, calls=0, waiting=2))
    assert check(new, "--journal", f"sqlite:///{path}") == 0
    assert "2 sessions in the middle: 2 resume, 0 change" in capsys.readouterr().out


def test_sessions_of_other_agents_are_counted(tmp_path, new, capsys):
    """Sessions of agents that are not started would wait, so the report counts them."""
    path = tmp_path / "agents.db"
    trio.run(lambda: leave(path, calls=0, waiting=3, name="former"))
    assert check(new, "--journal", path) == 1
    assert "agent former is not among these: 3 unfinished sessions wait for it" in capsys.readouterr().out


def test_report_is_bounded(tmp_path, new, capsys, monkeypatch):
    """The first affected sessions are named, and all are counted."""
    monkeypatch.setattr(resume_after_upgrade_check, "MAX_SHOWN", 5)
    monkeypatch.setattr(resume_after_upgrade_check, "PROGRESS_INTERVAL", 10)
    path = tmp_path / "agents.db"
    trio.run(lambda: leave(path, calls=20, waiting=20))
    assert check(new, "--journal", path) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) <= 5 + 5 + 3
    assert "40 sessions in the middle: 20 resume, 20 change" in out
    assert "40 sessions looked at" in err


def test_usage_errors(tmp_path, new, capsys):
    """Cases: no journal, and no agents."""
    assert check(new, "--journal", tmp_path / "none.db") == 2
    path = tmp_path / "agents.db"
    trio.run(lambda: leave(path, calls=0))
    (tmp_path / "empty.py").write_text("x = 1")
    assert check(tmp_path / "empty.py", "--journal", path) == 2
    assert check(tmp_path, "--journal", path) == 2
    assert "defines no agent" in capsys.readouterr().err
