"""`actgent ci`: its output, its files and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, ToolCall, open_runtime, tool
from actgent.cli.main import main
from actgent.testing import open_provider

ACTGENT = Path(sys.executable).with_name("actgent")
CODE = """
from actgent import *

@tool(effect="once")
async def refund(euros: int) -> str:
    "Refund."
    raise SystemExit("a tool ran")

clerk = BareAgent("clerk", llm=ScriptedLLM({script}, repeat=True), tools=[refund])
"""
SAME = """lambda chat: "Done." if len(chat.messages) > 1 else ToolCall("refund", {"euros": 8})"""
OTHER = """lambda chat: "Paid." if len(chat.messages) > 1 else ToolCall("refund", {"euros": 80})"""


@tool(effect="once")
async def refund(euros: int) -> str:
    """Refund."""
    return "refunded"


def clerk() -> BareAgent:
    script = [ToolCall("refund", {"euros": 8}), "Done."]
    return BareAgent("clerk", llm=ScriptedLLM(script * 9), tools=[refund])


async def record(path: Path, sessions: int = 2) -> None:
    """Write a journal with sessions of the agent `clerk`."""
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        agent = await runtime.start(clerk())
        for number in range(sessions):
            session = await agent.create_session("ada", "Refund!", session_id=f"s{number}")
            await session.wait_idle()


@pytest.fixture
def run(tmp_path, monkeypatch, no_keys, capfd):
    """Return `run(*arguments)`, which runs `actgent ci` in a folder with a journal.

    It returns the exit code and the output.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    trio.run(record, tmp_path / "agents.db")
    for name, script in {"same.py": SAME, "other.py": OTHER}.items():
        (tmp_path / name).write_text(CODE.replace("{script}", script), encoding="utf-8")

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["ci", *map(str, arguments)])
        return ended.value.code, *capfd.readouterr()

    return command


@pytest.fixture
def ask(no_keys):
    """Return `ask(choose, *arguments)`, which runs `actgent ci` in a process.

    Its models are a scripted provider on loopback.
    """

    def command(choose, *arguments):
        async def provided():
            async with open_provider(choose, keep=0) as provider:
                no_keys.setenv("LLM_PROVIDER_URL", provider.url_for("openai"))
                no_keys.setenv("LLM_API_KEY", "none")
                return await trio.to_thread.run_sync(execute, *arguments)

        return trio.run(provided)

    return command


def execute(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ACTGENT, "ci", *arguments], capture_output=True, text=True, check=False)


def figures(out: str) -> dict[str, list[str]]:
    """Return the figures of the printed table by name, without empty ones."""
    rows = (line.strip() for line in out.splitlines() if line.startswith("  "))
    return {
        name: rest.split()
        for name, rest in (re.split(r" {2,}", row, maxsplit=1) for row in rows if "  " in row)
    }


def test_table_and_exit_code(run):
    """Equal decisions exit with 0. A different call exits with 1, unless the threshold allows it."""
    code, out, err = run("agents.db", "--code", "same.py")
    assert (code, err) == (0, "")
    found = figures(out)
    assert found["decisions"] == ["4", "4"]
    assert (found["same"], found["other calls"], found["model calls"]) == (["4"], ["0"], ["4"])
    assert "2 sessions compared; no tool ran" in out
    code, out, _ = run("agents.db", "--code", "other.py", "--threshold", "0.6")
    assert (code, figures(out)["other calls"], figures(out)["other words"]) == (1, ["2"], ["2"])
    assert (
        "calls: s1 record 4 (the agent's model): refund(euros=80) instead of refund(euros=8); refund(euros=80) has no "
        "recorded result, and did not run"
    ) in out
    assert run("agents.db", "--code", "other.py", "--threshold", "0.5")[0] == 0


def test_reports_as_files(run, tmp_path):
    """Both reports contain all differences."""
    code, out, _ = run(
        "agents.db", "--code", "other.py", "--html", "r.html", "--json", "r.json", "--session", "s0"
    )
    assert (code, "r.html: all differences" in out) == (1, True)
    assert "refund(euros=80)" in (tmp_path / "r.html").read_text(encoding="utf-8")
    found = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (found["sessions"], [each["difference"] for each in found["decisions"]]) == (1, ["calls", "words"])


def test_journal_of_a_running_process(run, tmp_path):
    """The command only reads the journal while another process writes to it."""

    async def compare():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/agents.db") as runtime:
            agent = await runtime.start(clerk())
            session = await agent.create_session("ada", "Refund!", session_id="live")
            await session.wait_idle()
            done = await trio.to_thread.run_sync(execute, "agents.db", "--code", "same.py")
            await session.chat("Again!")
            await session.wait_idle()
            return done, len(session.history)

    done, messages = trio.run(compare)
    assert (done.returncode, "3 sessions compared" in done.stdout) == (0, True), done
    assert messages == 8


def test_models_and_prompts_are_combined(run, ask, tmp_path):
    """Each model runs with each prompt over HTTP. The scripted model of the agent is not called."""
    (tmp_path / "brief.md").write_text("Be brief.", encoding="utf-8")
    (tmp_path / "wordy.md").write_text("Be wordy.", encoding="utf-8")
    seen = set()

    def choose(request):
        seen.add((request.chat.system, request.model))
        if len(request.chat.messages) > 1:
            return "Done." if "brief" in request.chat.system else "It is all done."
        return ToolCall("refund", {"euros": 8})

    options = ["--model", "openai:a", "--model", "openai:b", "--prompt", "brief.md", "--prompt", "wordy.md"]
    done = ask(choose, "agents.db", "--code", "other.py", *options)
    assert done.returncode == 0, done
    found = figures(done.stdout)
    assert (found["same"], found["other words"]) == (["4", "2", "4", "2"], ["0", "2", "0", "2"])
    assert seen == {(f"Be {how}.", model) for how in ("brief", "wordy") for model in ("a", "b")}


def test_prompt_of_a_folder_replaces_the_text_of_brain_md(run, ask, tmp_path):
    """The other parts of the folder's prompt stay."""
    (tmp_path / "clerk").mkdir()
    (tmp_path / "clerk" / "brain.md").write_text(
        "---\nname: clerk\nrole: a cashier\nllm: openai:a\n---\nBe long.", encoding="utf-8"
    )
    (tmp_path / "brief.md").write_text("Be brief.", encoding="utf-8")
    systems = set()

    def choose(request):
        systems.add(request.chat.system)
        return "Done."

    done = ask(choose, "agents.db", "--code", "clerk", "--prompt", "brief.md")
    assert done.returncode == 1, done
    (system,) = systems
    assert "a cashier" in system
    assert system.endswith("Be brief.")


def test_offline_checks_only_the_code(run, tmp_path):
    """The command needs no key and calls no model.

    Code without the tool has the same result, as its results are recorded.
    """
    code, out, _ = run("agents.db", "--code", "other.py", "--offline")
    assert (code, figures(out)["model calls"], figures(out)["same"]) == (0, ["0"], ["4"])
    text = (
        "from actgent import *\nclerk = BareAgent('clerk', llm=ScriptedLLM([]), limits=Limits(model_calls=1))"
    )
    (tmp_path / "limited.py").write_text(text, encoding="utf-8")
    code, out, _ = run("agents.db", "--code", "limited.py", "--offline")
    assert (code, figures(out)["not reached"]) == (1, ["2"])
    assert "not reached: s1 (recorded answers): 1 decision: record" in out


def test_plain_agent_of_chat_needs_no_code(run, ask, tmp_path):
    """Sessions of `actgent chat` are compared without --code."""

    async def talk():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/chat.db") as runtime:
            agent = await runtime.start(BareAgent("assistant", llm=ScriptedLLM(["Hello."])))
            session = await agent.create_session("user", "Hi")
            await session.wait_idle()

    trio.run(talk)
    done = ask(lambda _: "Hello.", "chat.db", "--model", "openai:a")
    assert (done.returncode, figures(done.stdout)["same"]) == (0, ["1"]), done


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing.db", "--code", "same.py"], "nothing.db"),
        (["agents.db"], "but of clerk: name their code with --code"),
        (["agents.db", "--code", "nothing.py"], "nothing.py"),
        (["agents.db", "--code", "same.py", "--agent", "x"], "has no agent 'x': choose one of clerk"),
        (["agents.db", "--code", "same.py", "--session", "x"], "no session 'x'"),
        (["agents.db", "--code", "same.py", "--offline", "--model", "openai:x"], "--offline calls no model"),
        (["agents.db", "--code", "same.py", "--html", "no/where.html"], "cannot be written"),
        (["agents.db", "--code", "same.py", "--prompt", "x.md"], "x.md cannot be read"),
        (["agents.db", "--code", "same.py", "--threshold", "2"], "--threshold"),
        (["agents.db", "--code", "same.py", "--model", "x"], "x"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(arguments, named, run):
    """The line states the mistake or the remedy."""
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1), err
    assert named in err


def test_interrupted_run_reports_the_finished_sessions(run, tmp_path, commands):
    """Ctrl-C ends the comparison with exit code 130."""
    text = """
import trio
from actgent import *

count = 0
async def answer(chat):
    global count
    count += 1
    if count == 3:
        print("waiting", flush=True)
        await trio.sleep_forever()
    return "Done." if len(chat.messages) > 1 else ToolCall("refund", {"euros": 8})

clerk = BareAgent("clerk", llm=ScriptedLLM(answer))
"""
    (tmp_path / "slow.py").write_text(text, encoding="utf-8")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [ACTGENT, "ci", "agents.db", "--code", "slow.py", "--concurrency", "1"]
    with commands.popen(command, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"}, **pipes) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert figures(out)["same"] == ["2"]
    assert "1 of 2 sessions have ended" in err
    assert "Traceback" not in err
