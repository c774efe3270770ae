"""`actgent pipeline`, run in this process with real files."""

import json
import signal
import subprocess
import sys

import pytest

from actgent.cli.main import main

PROGRAM = """
import json
from pathlib import Path

import trio
from actgent import BareAgent, Pipeline, PipelineStep, ScriptedLLM, When

HERE = Path(__file__).parent


async def answer(chat):
    said = chat.messages[0].parts[0].text
    with (HERE / "calls").open("a") as file:
        file.write(said + "\\n")
    if (HERE / "hang").exists() and said.startswith("write"):
        (HERE / "hangs").touch()
        await trio.sleep_forever()
    if (HERE / "broken").exists() and said.startswith("write"):
        raise ConnectionError("no")
    return f"<{said}>"


clerk = BareAgent("clerk", llm=ScriptedLLM(answer))
pipeline = Pipeline(
    "report",
    steps=[
        PipelineStep("find", agent=clerk, message="find {topic} {n?}"),
        PipelineStep("write", agent=clerk, message="write {find}"),
        PipelineStep("never", agent=clerk, message="x", when=When.empty("find")),
    ],
    answer="write",
    grace=0,
)
"""


@pytest.fixture
def place(tmp_path):
    """A folder with a program, a file of the same pipeline, and the requests that its agent got."""
    (tmp_path / "team.py").write_text(PROGRAM)
    steps = {
        "find": {"agent": "clerk", "message": "find {topic} {n?}"},
        "write": {"agent": "clerk", "message": "write {find}"},
        "never": {"agent": "clerk", "message": "x", "when": {"empty": "find"}},
    }
    (tmp_path / "report.json").write_text(
        json.dumps({"pipeline": "report", "answer": "write", "steps": steps})
    )
    return tmp_path


def run(capsys, *texts):
    with pytest.raises(SystemExit) as ended:
        main(["pipeline", *map(str, texts)])
    out = capsys.readouterr()
    return ended.value.code, out.out, out.err


def calls(place):
    return (place / "calls").read_text().splitlines()


def test_pipeline_of_a_program_or_a_file_runs(place, capsys):
    """The file gets the agents of the program. Inputs are texts, or JSON with their types."""
    code, out, _ = run(capsys, "run", place / "team.py", "--input", "topic=tea")
    assert code == 0
    assert out.splitlines()[0] == "  1 ─ ✓ find   clerk"
    assert out.splitlines()[-1] == "success: <write <find tea >>"
    more = ["--agents", place / "team.py", "--inputs", '{"topic": "tea", "n": 3}', "--json"]
    code, out, _ = run(capsys, "run", place / "report.json", *more)
    report = json.loads(out)
    assert (code, report["status"], report["data"]) == (0, "success", "<write <find tea 3>>")
    assert report["steps"]["never"]["status"] == "skipped"


def test_run_is_stored_shown_and_resumed(place, capsys):
    """Failed or named steps run again. The exit code states whether the run succeeded."""
    journal = ["--journal", place / "runs.db"]
    (place / "broken").touch()
    code, out, err = run(capsys, "run", place / "team.py", "--input", "topic=tea", *journal, "--run", "r1")
    assert (code, "run r1" in err) == (1, True)
    assert "✗ write" in out
    code, out, _ = run(capsys, "show", place / "report.json", "r1", *journal)
    assert (code, "✗ write" in out, out.splitlines()[-1]) == (0, True, "partial")
    (place / "broken").unlink()
    code, out, _ = run(capsys, "resume", place / "team.py", "r1", *journal)
    assert (code, out.splitlines()[-1]) == (0, "success: <write <find tea >>")
    assert calls(place) == ["find tea ", "write <find tea >", "write <find tea >"]
    code, out, _ = run(capsys, "resume", place / "team.py", "r1", *journal, "--from", "find", "--json")
    assert code == 0
    assert json.loads(out)["steps"]["write"]["session_id"] == "r1/task/write@3"
    code, out, _ = run(capsys, "run", place / "team.py", *journal, "--run", "r1")
    assert (code, len(calls(place))) == (0, 5)


def test_killed_run_is_resumed_in_the_next_process(place, capsys, commands):
    """Completed steps do not run again."""
    (place / "hang").touch()
    command = ["actgent", "pipeline", "run", place / "team.py", "--input", "topic=tea"]
    with commands.popen(
        [*command, "--journal", place / "runs.db", "--run", "r"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as life:
        waits = [
            sys.executable,
            "-c",
            f"import os, time\nwhile not os.path.exists({str(place / 'hangs')!r}): time.sleep(0.01)",
        ]
        subprocess.run(waits, check=True, timeout=300)
        life.send_signal(signal.SIGKILL)
        life.communicate()
    (place / "hang").unlink()
    code, out, _ = run(capsys, "resume", place / "team.py", "r", "--journal", place / "runs.db")
    assert (code, out.splitlines()[-1]) == (0, "success: <write <find tea >>")
    assert calls(place) == ["find tea ", "write <find tea >", "write <find tea >"]


def test_pipeline_is_checked_and_drawn_without_agents(place, capsys):
    """All errors are printed, one per line."""
    code, out, _ = run(capsys, "check", place / "report.json")
    assert (code, "pipeline 'report' is fine (3 steps in 2 groups; inputs: topic)" in out) == (0, True)
    assert run(capsys, "draw", place / "report.json")[1].splitlines()[0] == "  1 ─ find   clerk"
    assert run(capsys, "draw", place / "team.py", "--mermaid")[1].startswith("flowchart TD\n")
    wrong = {"a": {"agent": "x", "message": "{a}"}, "b": {"agent": "x", "message": "m", "after": "c"}}
    (place / "wrong.json").write_text(json.dumps({"pipeline": "p", "steps": wrong}))
    code, _, err = run(capsys, "check", place / "wrong.json")
    assert (code, len(err.splitlines())) == (2, 3)
    code, _, err = run(capsys, "check", place / "report.json", "--agents", place / "team.py")
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "team.py"], "the input 'topic' is missing"),
        (["run", "team.py", "--input", "topic"], "--input must be NAME=VALUE"),
        (["run", "team.py", "--inputs", "[1]"], "--inputs must be a JSON object"),
        (["run", "team.py", "--inputs", "{"], "--inputs must be a JSON object"),
        (["run", "team.py", "--input", "topic=x", "--run", "r"], "--run requires --journal"),
        (["run", "team.py:other", "--input", "topic=x"], "did you mean"),
        (["run", "report.json", "--input", "topic=x"], "no agents were passed: pass agents="),
        (["run", "none.json"], "none.json cannot be read: the file does not exist"),
        (["run", "none"], "none cannot be read: the file does not exist"),
        (["check", "list.json"], "the file must be an object with keys and values, not [1]"),
        (["draw", "list.json"], "the file must be an object with keys and values, not [1]"),
        (["run", "calls.txt"], "calls.txt must end with .yaml, .yml or .json"),
        (["run", "latin.yaml"], "latin.yaml cannot be read: it is not UTF-8"),
        (["show", "team.py", "r", "--journal", "none.db"], "none.db"),
    ],
)
def test_usage_errors(place, capsys, arguments, expected, monkeypatch):
    """The mistake is named, and no step runs."""
    monkeypatch.chdir(place)
    (place / "list.json").write_text("[1]", encoding="utf-8")
    (place / "calls.txt").write_text("", encoding="utf-8")
    (place / "latin.yaml").write_bytes(b"pipeline: caf\xe9")
    code, _, err = run(capsys, *arguments)
    assert code in (1, 2)
    assert expected in err or (expected == "did you mean" and "choose one of pipeline" in err)
    assert not (place / "calls").exists()
