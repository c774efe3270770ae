"""`actgent new`, `check` and `run` for folders of agents, as a user types them."""

import os
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from actgent.testing import open_provider

ACTGENT = str(Path(sys.executable).with_name("actgent"))
SCRIPTS = {
    "steps": [
        '{"plan": "add"}',
        '{"tool_calls": [{"tool_name": "add", "parameters": {"a": 1, "b": 2}}]}',
        '{"final_answer": "It is 3."}',
    ],
    "plan": [
        '{"intent": "sum", "plan": "add", "todoList": [{"id": "a", "description": "add"}]}',
        '{"toolCalls": [{"toolName": "add", "arguments": {"a": 1, "b": 2}}]}',
        '{"content": "3"}',
        "It is 3.",
    ],
    "goal": [
        '{"action": "plan", "params": {"steps": ["add"]}}',
        '{"action": "execute", "params": {"tool": "add", "args": {"a": 1, "b": 2}}}',
        '{"action": "summarize", "params": {"summary": "It is 3."}}',
        '{"action": "evaluate", "params": {"achieved": true}}',
    ],
}


@pytest.mark.parametrize("protocol", SCRIPTS)
async def test_new_check_and_run(protocol, tmp_path, no_keys, commands):
    """`check` accepts the folder that `new` creates, and `run` answers with a tool of this folder."""

    async def actgent(*arguments):
        with trio.fail_after(60):
            done = await trio.to_thread.run_sync(
                lambda: commands.run([ACTGENT, *arguments], cwd=tmp_path, capture_output=True)
            )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    no_keys.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert "created helper" in await actgent("new", "helper", "--protocol", protocol)
    assert "agent 'helper' is fine" in (checked := await actgent("check", "helper"))
    assert "cases: 1" in checked
    async with open_provider(SCRIPTS[protocol]) as provider:
        output = await actgent(
            "run", "helper", "1 + 2?", "--model", "openai:any", "--base-url", provider.openai_url
        )
    assert output.splitlines()[-1] == "It is 3."
    assert [line.startswith("tool: add(") and "= 3" in line for line in output.splitlines()].count(True) == 1


async def test_nested_folders_are_created_and_checked(tmp_path, commands):
    """`new` accepts a nested path, as in the deployment guide. `check` names the mistakes of each of several folders."""
    team = tmp_path / "team"

    async def actgent(*arguments):
        line = [ACTGENT, *map(str, arguments)]
        done = await trio.to_thread.run_sync(lambda: commands.run(line, cwd=tmp_path, capture_output=True))
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    code, _, complained = await actgent("new", team / "helper")
    assert (code, f"the folder {team} does not exist: create it first" in complained) == (2, True)
    team.mkdir()
    for name in ("helper", "clerk"):
        assert (await actgent("new", team / name))[0] == 0
    code, output, _ = await actgent("check", team)
    assert code == 0
    assert [line.partition(": agent")[0] for line in output.splitlines()] == [
        f"{team}/clerk",
        f"{team}/helper",
    ]
    for name in ("helper", "clerk"):
        (team / name / "tools.py").write_text("def\n")
    code, _, complained = await actgent("check", team)
    assert code == 2
    assert [line.partition(": ")[2].partition(":1")[0] for line in complained.splitlines()] == [
        f"{team}/clerk/tools.py",
        f"{team}/helper/tools.py",
    ]


def test_check_of_a_missing_folder_names_what_is_expected(tmp_path, commands):
    done = commands.run([ACTGENT, "check", "nothing"], cwd=tmp_path, capture_output=True)
    text = b"actgent: nothing:1: No such file or directory; the path must be that of a folder\n"
    assert (done.returncode, done.stderr) == (2, text)


async def test_folder_path_may_contain_a_colon(tmp_path, no_keys, commands):
    """In a file path, a colon separates the name of the agent. A folder has one agent, so its path is not split."""
    no_keys.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    (tmp_path / "at:9").mkdir()
    for path, command in (
        (tmp_path / "at:9", ["new", "helper"]),
        (tmp_path, ["chat", "at:9/helper", "--offline", "-m", "hi"]),
    ):
        with trio.fail_after(60):
            done = await trio.to_thread.run_sync(
                partial(commands.run, [ACTGENT, *command], cwd=path, capture_output=True)
            )
        assert done.returncode == 0, done.stderr.decode()


async def test_unknown_provider_is_reported(tmp_path, no_keys, commands):
    """`check` and `run` name the known providers and the nearest one. The error for a misspelt name has its line."""
    for model, says in (("foo:bar", "choose one of openai"), ("opnai:gpt-5.2", "did you mean 'openai'")):
        folder = tmp_path / model.partition(":")[0]
        folder.mkdir()
        (folder / "brain.md").write_text(f"---\nname: x\nllm: {model}\n---\n", encoding="utf-8")
        for command in ("check", "run"):
            with trio.fail_after(60):
                line = [ACTGENT, command, str(folder)]
                done = await trio.to_thread.run_sync(partial(commands.run, line, capture_output=True))
            assert done.returncode != 0
            assert says in " ".join(done.stderr.decode().split())
            assert ("brain.md:3" in done.stderr.decode()) == (model == "opnai:gpt-5.2")


async def test_invalid_case_is_reported(tmp_path, commands):
    """`check` names the file and the mistake. Other files are ignored."""
    tests = tmp_path / "clerk" / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "clerk" / "brain.md").write_text("---\nname: x\nllm: openai:gpt-5.2\n---\n", encoding="utf-8")
    (tests / "test_clerk.py").write_text("", encoding="utf-8")
    for text, code, said in ((None, 0, "cases: 0"), ("---\nexpects: x\n---\nHi", 2, "unknown key 'expects'")):
        if text is not None:
            (tests / "hi.md").write_text(text, encoding="utf-8")
        line = [ACTGENT, "check", str(tmp_path / "clerk")]
        done = await trio.to_thread.run_sync(partial(commands.run, line, capture_output=True))
        assert (done.returncode, said in (done.stdout + done.stderr).decode()) == (code, True)
