"""`actgent eval`: its output, its files and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from actgent import BareAgent, ScriptedLLM, open_runtime
from actgent.cli.main import main
from actgent.definitions.folder_creation import new_folder
from actgent.evaluation import DatasetFolder
from actgent.protocols import PROTOCOLS

ACTGENT = Path(sys.executable).with_name("actgent")
CASES = """
from actgent import *
from actgent.evaluation import Case

cases = [
    Case(name="capital", input="Capital of France?", expected="Paris", tags=["geo"]),
    Case(name="short", input="Hello?", checks=[lambda trial: len(trial.text) < 30]),
]
variants = {
    "good": BareAgent("good", llm=ScriptedLLM(["Paris."], repeat=True)),
    "bad": BareAgent("bad", llm=ScriptedLLM(["London, or perhaps another town."], repeat=True)),
}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, no_keys, capfd):
    """Return `run(*arguments)`, which runs `actgent eval` in a separate folder.

    It returns the exit code and the output.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "cases.py").write_text(CASES, encoding="utf-8")

    def command(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["eval", *map(str, arguments)])
        return ended.value.code, *capfd.readouterr()

    return command


def test_the_history_is_stored_next_to_the_cases(run, tmp_path):
    """Each run adds a report that a `DatasetFolder` lists. Cases in another kind of file have no history."""
    new_folder(tmp_path, "tutor")
    (tmp_path / "greeting.jsonl").write_text('{"input": "Hi", "matches": ["."]}\n', encoding="utf-8")
    for _ in range(2):
        code, out, err = run("greeting.jsonl", "--agent", "tutor", "--offline", "--history")
        assert (code, "greeting.history/" in out) == (0, True), (out, err)
    found = trio.run(DatasetFolder(tmp_path).evaluations, "greeting")
    assert [each["variants"][0]["passed"] for each in found] == [1, 1]
    code, _, err = run("cases.py", "--history")
    assert (code, "suffix .jsonl" in err) == (2, True)


def test_table_html_and_json_reports(run, tmp_path):
    """Both files contain all variants with their failed runs and reasons."""
    code, out, _ = run("cases.py", "--runs", 2, "--html", "report.html", "--json", "report.json")
    assert code == 1
    rows = dict(re.findall(r"^ +(good|bad) +(\d of \d) ", out, re.MULTILINE))
    assert rows == {"good": "4 of 4", "bad": "0 of 4"}
    assert "failed: capital (bad, run 2): contains: missing: Paris" in out
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [each["passed"] for each in found["variants"]] == [4, 0]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("London, or perhaps another town.") == 4


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--threshold", "0"], 0),
        (["--threshold", "0.5"], 1),
        (["--case", "geo"], 1),
        (["--case", "sho", "--threshold", "0"], 0),
    ],
)
def test_exit_code_depends_on_the_threshold(arguments, code, run):
    """The exit code depends on the share of passed runs of each variant."""
    assert run("cases.py", *arguments)[0] == code


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing.jsonl"], "nothing.jsonl"),
        (["cases.py", "--model", "openai:x"], "variants"),
        (["cases.py", "--case", "nonsense"], "nonsense"),
        (["cases.py", "--runs", "0"], "--runs"),
        (["cases.py", "--threshold", "2"], "--threshold"),
        (["cases.py", "--session", "x"], "--from-journal"),
        (["empty.py"], "defines no evaluation cases"),
        (["one.jsonl"], "--agent"),
        (["one.jsonl", "--offline"], "--agent"),
        (["none.jsonl", "--agent", "clerk.py"], "none.jsonl has no evaluation cases"),
        (["none.json", "--agent", "clerk.py"], "none.json has no evaluation cases"),
        (["none.py"], "none.py has no evaluation cases"),
        (
            ["regex.jsonl", "--agent", "clerk.py"],
            "regex.jsonl:1: `matches` is not a valid regular expression: missing )",
        ),
        (["one.jsonl", "--agent", "nobody.py"], "no such file or folder: nobody.py"),
        (["one.jsonl", "--agent", "nobody", "--offline"], "no such file or folder: nobody;"),
        (["judged.jsonl", "--agent", "clerk.py"], "--judge"),
        (["one.jsonl", "--agent", "clerk.py", "--model", "openai:x"], "clerk.py chooses its own"),
        (["one.jsonl", "--agent", "clerk.py", "--html", "no/where.html"], "cannot be written"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(arguments, named, run, tmp_path):
    """The line states the mistake or the remedy."""
    (tmp_path / "empty.py").write_text("x = 1", encoding="utf-8")
    for name, text in {"none.jsonl": "", "none.json": "[]", "none.py": "cases = []"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "regex.jsonl").write_text('{"input": "x", "matches": "("}', encoding="utf-8")
    (tmp_path / "one.jsonl").write_text('{"input": "x", "expected": "x"}', encoding="utf-8")
    (tmp_path / "judged.jsonl").write_text('{"input": "x", "judge": "x"}', encoding="utf-8")
    (tmp_path / "clerk.py").write_text(
        "from actgent import *\nagent = BareAgent('clerk', llm=ScriptedLLM(['x'], repeat=True))",
        encoding="utf-8",
    )
    code, _, err = run(*arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert named in err


def test_models_and_prompts_are_combined(run, tmp_path, no_keys):
    """Each model runs with each prompt.

    With `--offline` a script answers, and the prompt is that of the folder.
    """
    from actgent.testing import open_provider

    tests = tmp_path / "clerk" / "tests"
    tests.mkdir(parents=True)
    (tmp_path / "clerk" / "brain.md").write_text("---\nname: clerk\n---\nBe long.", encoding="utf-8")
    (tests / "hello.md").write_text("---\ncontains: short\n---\nHello", encoding="utf-8")
    (tmp_path / "brief.md").write_text("Be short.", encoding="utf-8")
    (tmp_path / "wordy.md").write_text("Be wordy.", encoding="utf-8")
    code, out, _ = run("clerk", "--offline")
    assert (code, "clerk" in out) == (1, True)

    async def provided():
        async with open_provider(lambda request: request.chat.system, keep=0) as provider:
            no_keys.setenv("LLM_PROVIDER_URL", provider.url_for("openai"))
            no_keys.setenv("LLM_API_KEY", "none")
            arguments = [
                "clerk",
                "--model",
                "openai:a",
                "--model",
                "openai:b",
                "--prompt",
                "brief.md",
                "--prompt",
                "wordy.md",
            ]
            return await trio.to_thread.run_sync(command, arguments)

    def command(arguments):
        return subprocess.run([ACTGENT, "eval", *arguments], capture_output=True, text=True, check=False)

    done = trio.run(provided)
    rows = dict(re.findall(r"^ +(openai:\S+ / \w+) +(\d of \d) ", done.stdout, re.MULTILINE))
    expected = {
        f"openai:{model} / {name}": f"{n} of 1" for model in "ab" for name, n in (("brief", 1), ("wordy", 0))
    }
    assert rows == expected, done
    assert done.returncode == 1


@pytest.mark.parametrize("protocol", sorted(PROTOCOLS.keys() - {"goal"}))
def test_new_folder_passes_its_case_offline(protocol, run, tmp_path):
    """The script repeats each input, so the case of a new folder passes.

    The case of a goal protocol needs a tool call.
    """
    folder = new_folder(tmp_path, "helper", protocol=protocol).path
    two = """{"input": ["I am Ada.", "I am Bob."], "contains": "come to me: 'I am Bob.'"}"""
    (folder / "tests" / "two.jsonl").write_text(two, encoding="utf-8")
    code, out, _ = run("helper", "--offline")
    assert (code, "2 of 2" in out) == (0, True), out


def test_cases_are_made_from_a_journal(run, tmp_path):
    """The cases are written to a new file, which can be run."""

    async def talk():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/agents.db") as runtime:
            clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["It is 3."])))
            await clerk.run("1 + 2?", session=await clerk.create_session("ada"))

    trio.run(talk)
    code, out, _ = run("made.jsonl", "--from-journal", "agents.db", "--agent", "clerk")
    assert (code, "1 case;" in out) == (0, True)
    assert json.loads((tmp_path / "made.jsonl").read_text(encoding="utf-8"))["input"] == ["1 + 2?"]
    assert run("made.jsonl", "--from-journal", "agents.db")[0] == 2
    assert run("other.jsonl", "--from-journal", "agents.db", "--agent", "nobody")[0] == 2


def test_cases_are_made_from_ratings(run, tmp_path):
    """A corrected answer is the expected answer.

    A bad rating without a correction makes no case. The last rating of a reader counts.
    """

    async def talk():
        async with open_runtime(journal=f"sqlite:///{tmp_path}/agents.db") as runtime:
            clerk = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["It is 3."] * 4)))
            for name in ("fine", "wrong", "bad", "unjudged"):
                session = await clerk.create_session("ada", session_id=name)
                await session.chat("1 + 2?", message_id="m1")
                await session.wait_idle()
            await runtime.rate("fine", "m1", score=0, by="bob")
            await runtime.rate("fine", "m1", score=1, by="bob")
            await runtime.rate(
                "wrong", "m1", score=0.2, comment="too short", expected="It is three.", by="bob"
            )
            await runtime.rate("bad", "m1", score=0, by="bob")

    trio.run(talk)
    assert run("made.jsonl", "--from-journal", "agents.db")[0] == 0
    rows = map(json.loads, (tmp_path / "made.jsonl").read_text(encoding="utf-8").splitlines())
    made = {row["name"]: (row["expected"], row.get("tags"), row["judge"]) for row in rows}
    assert made.keys() == {"fine", "wrong", "unjudged"}
    assert made["fine"][:2] == ("It is 3.", ["good"])
    assert made["unjudged"][:2] == ("It is 3.", None)
    assert made["wrong"][:2] == ("It is three.", ["bad"])
    assert made["wrong"][2].endswith("too short")


def test_ctrl_c_reports_finished_runs(tmp_path, process_server, commands):
    """The command prints the number of missing runs and exits with the code of the signal."""
    (tmp_path / "slow.py").write_text(
        """
import trio
from actgent import *
from actgent.evaluation import Case

async def answer(chat):
    if "slow" in str(chat.messages[-1].parts):
        print("waiting", flush=True)
        await trio.sleep_forever()
    return "yes"

cases = [Case(input="quick", expected="yes"), Case(input="slow", expected="yes")]
agent = BareAgent("clerk", llm=ScriptedLLM(answer))
""",
        encoding="utf-8",
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [ACTGENT, "eval", "slow.py", "--concurrency", "1"]
    with commands.popen(command, cwd=tmp_path, env={**os.environ, "COLUMNS": "200"}, **pipes) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert re.search(r"clerk +1 of 1 ", out)
    assert "1 of 2 runs have ended" in err
    assert "Traceback" not in err
