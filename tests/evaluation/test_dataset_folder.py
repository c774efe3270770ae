"""Datasets in a folder: cases from sessions, and the history of evaluations."""

import json
import sys

import pytest
import trio

from actgent import BareAgent, ConfigurationError, ScriptedLLM, SessionExists, open_runtime
from actgent.evaluation import (
    Case,
    DatasetFolder,
    contains,
    dataset_folder,
    evaluate,
    load_cases,
    store_report,
)
from actgent.support import files_shared_by_processes

APPEND = """
import sys, trio
from actgent.evaluation import dataset_folder
async def main():
    path = dataset_folder.Path(sys.argv[1])
    for number in range(20):
        async with dataset_folder.file_change(path):
            dataset_folder._append(path, {"name": f"{sys.argv[2]}-{number}", "input": "x", "expected": "y"}, "clerk")
trio.run(main)
"""


@pytest.fixture
async def runtime():
    """Yield a runtime with three answered sessions, and a session without an answer."""
    async with open_runtime(journal="memory:") as opened:
        agent = await opened.start(BareAgent("clerk", llm=ScriptedLLM(lambda _: "Hello Ada")))
        for name in ("s1", "s2", "s3"):
            session = await agent.create_session("ada", session_id=name)
            await agent.run("Hi, I am Ada.", session=session)
        await agent.create_session("ada", session_id="empty")
        yield opened


async def add(folder, runtime, session_id, name="support", **options):
    return await folder.add_session(name, runtime.journal, "clerk", session_id, **options)


async def test_a_session_becomes_a_case_that_eval_reads(runtime, tmp_path):
    """The same session is one case. A case that was edited in the file is not replaced."""
    folder = DatasetFolder(tmp_path)
    case, is_new = await add(folder, runtime, "s1")
    assert (case["name"], is_new) == ("s1", True)
    assert await add(folder, runtime, "s1") == (case, False)
    await add(folder, runtime, "s2")
    path = tmp_path / "support.jsonl"
    assert [each.title for each in load_cases(path)] == ["s1", "s2"]
    assert case["case"]["session"] == {"agent": "clerk", "id": "s1"}
    other = {**case["case"], "name": "s2", "session": {"agent": "clerk", "id": "s2"}}
    named = [(each["name"], each["case"]) for each in await folder.cases("support")]
    assert named == [("s1", case["case"]), ("s2", other)]
    edited = path.read_text().replace("Hello Ada", "Hello")
    path.write_text(edited.rstrip("\n"))  # an editor without a newline at the end
    with pytest.raises(SessionExists):
        await add(folder, runtime, "s1")
    await add(folder, runtime, "s3")
    assert path.read_text().startswith(edited)
    assert [each.title for each in load_cases(path)] == ["s1", "s2", "s3"]


async def test_a_turn_becomes_a_case_with_its_messages(tmp_path):
    """The case ends with the answer of its message, also if later messages follow. Only the rating of the message counts."""
    folder = DatasetFolder(tmp_path)
    async with open_runtime(journal="memory:") as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=ScriptedLLM(["one", "two", "three"])))
        session = await agent.create_session("ada", session_id="s1")
        for number in (1, 2, 3):
            await agent.run(f"question {number}", session=session, message_id=f"m{number}")
        await runtime.rate("s1", "m2", score=0, expected="zwei", by="ada")
        await runtime.rate("s1", "m3", score=0, by="ada")
        first, _ = await add(folder, runtime, "s1", message_id="m1")
        second, _ = await add(folder, runtime, "s1", message_id="m2")
        with pytest.raises(ConfigurationError, match="requires a message whose turn ends with an answer"):
            await add(folder, runtime, "s1", message_id="m3")
        with pytest.raises(ConfigurationError, match="requires a message whose turn ends with an answer"):
            await add(folder, runtime, "s1", message_id="m4", expected="four")
        third, _ = await add(folder, runtime, "s1", message_id="m3", expected=" drei ")
    assert [
        (each["name"], each["case"]["input"], each["case"]["expected"]) for each in (first, second, third)
    ] == [
        ("s1/m1", ["question 1"], "one"),
        ("s1/m2", ["question 1", "question 2"], "zwei"),
        ("s1/m3", ["question 1", "question 2", "question 3"], "drei"),
    ]
    assert [each["case"].get("tags") for each in (first, second, third)] == [None, ["bad"], ["bad"]]
    assert [each.title for each in load_cases(tmp_path / "support.jsonl")] == ["s1/m1", "s1/m2", "s1/m3"]


async def test_a_file_that_would_be_too_large_stays_readable(runtime, tmp_path, monkeypatch):
    folder = DatasetFolder(tmp_path)
    await add(folder, runtime, "s1")
    before = (tmp_path / "support.jsonl").read_bytes()
    monkeypatch.setattr(dataset_folder, "MAX_BYTES", len(before) + 10)
    with pytest.raises(ConfigurationError, match="would be larger than"):
        await add(folder, runtime, "s2")
    assert (tmp_path / "support.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", ["../x", "", ".x", "a/b", "x" * 129, "a\n"])
async def test_names_stay_in_the_folder(runtime, tmp_path, name):
    (tmp_path / "x.jsonl").write_text("")
    folder = DatasetFolder(tmp_path / "inner") if (tmp_path / "inner").mkdir() is None else None
    with pytest.raises(ConfigurationError, match="name of a dataset"):
        await add(folder, runtime, "s1", name)
    assert [await call(name) for call in (folder.cases, folder.evaluations)] == [None, None]
    assert list((tmp_path / "inner").iterdir()) == []


async def test_unusable_sessions_and_files_are_rejected(runtime, tmp_path):
    """The file stays as it was."""
    folder = DatasetFolder(tmp_path)
    with pytest.raises(ConfigurationError, match="requires a session that ends with an answer"):
        await add(folder, runtime, "empty")
    (tmp_path / "support.jsonl").write_text('{"input": "x", "expected": "y"}\n{"input"\n')
    before = (tmp_path / "support.jsonl").read_bytes()
    for call in (lambda: add(folder, runtime, "s1"), lambda: folder.cases("support")):
        with pytest.raises(ConfigurationError, match=r"support.jsonl:2 is not JSON"):
            await call()
    assert (tmp_path / "support.jsonl").read_bytes() == before
    with pytest.raises(ConfigurationError, match="not a folder"):
        DatasetFolder(tmp_path / "missing")


async def test_concurrent_writers_lose_no_case(runtime, tmp_path):
    """Two processes and two tasks append to one file."""
    folder, path = DatasetFolder(tmp_path), tmp_path / "support.jsonl"
    async with trio.open_nursery() as nursery:
        for name in ("one", "two"):
            nursery.start_soon(trio.run_process, [sys.executable, "-c", APPEND, str(path), name])
        for name in ("s1", "s2", "s3"):
            nursery.start_soon(add, folder, runtime, name)
    names = {each.name for each in load_cases(path)}
    assert names == {"s1", "s2", "s3"} | {f"{who}-{n}" for who in ("one", "two") for n in range(20)}


async def test_a_failed_write_keeps_the_old_cases(runtime, tmp_path, monkeypatch):
    """A disk that is full while the file is written leaves the old file, and no partial file."""
    folder = DatasetFolder(tmp_path)
    await add(folder, runtime, "s1")
    before = (tmp_path / "support.jsonl").read_bytes()

    def fail(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files_shared_by_processes.os, "fsync", fail)
        with pytest.raises(ConfigurationError, match="No space left"):
            await add(folder, runtime, "s2")
    assert (tmp_path / "support.jsonl").read_bytes() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["support.jsonl", "support.jsonl.lock"]
    await add(folder, runtime, "s2")
    assert len(load_cases(tmp_path / "support.jsonl")) == 2


async def run(path, answers, cases=("Hi", "Bye")):
    """Evaluate cases of one word with scripted answers, and store the report."""
    known = [Case(input=word, name=word, checks=[contains("Ada")]) for word in cases]
    agent = BareAgent("clerk", llm=ScriptedLLM(answers))
    report = await evaluate(known, {"clerk": agent}, concurrency=1)
    return store_report(path, report.to_json())


async def test_evaluations_are_compared_with_the_one_before(tmp_path):
    """Cases that pass now or fail now, new cases and removed cases are visible. Other files are ignored."""
    path = tmp_path / "support.jsonl"
    path.write_text('{"input": "Hi", "contains": ["Ada"]}\n')
    folder = DatasetFolder(tmp_path)
    assert (await folder.evaluations("support"), await folder.evaluations("other")) == ([], None)
    first = await run(path, ["Hi Ada", "Bye Ada"])
    second = await run(path, ["Hi", "Welcome Ada"], cases=("Hi", "Welcome"))
    (second.parent / "zz.json").write_text('{"format": "actgent-evaluation 1"}')
    (second.parent / "zzz.json").write_text("[]")
    (second.parent / ".hidden.json").write_text("{")
    assert [each["id"] for each in await folder.evaluations("support")] == [second.stem, first.stem]
    found = await folder.evaluation("support", second.stem)
    assert found["before"]["id"] == first.stem
    assert {
        each["name"]: (each["figures"]["passed"], each["before"] and each["before"]["passed"])
        for each in found["items"]
    } == {"Hi": (0, 1), "Welcome": (1, None)}
    assert found["removed"] == ["Bye"]
    (failed,) = [each["runs"][0] for each in found["items"] if each["name"] == "Hi"]
    assert (failed["text"], failed["passed"]) == ("Hi", False)
    assert failed["failures"][0].startswith("contains")
    oldest = await folder.evaluation("support", first.stem)
    assert (oldest["before"], oldest["summary"]["variants"][0]["passed"]) == (None, 2)
    assert await folder.evaluation("support", "zz") is None
    assert await folder.evaluation("support", "../x") is None
    (listed,) = await folder.datasets()
    assert (listed["name"], listed["cases"], listed["evaluations"]) == ("support", 1, 2)
    assert listed["last"] == found["summary"]


async def test_a_report_needs_a_file_of_cases(tmp_path):
    with pytest.raises(ConfigurationError, match=r"suffix \.jsonl"):
        store_report(tmp_path / "cases.md", json.dumps({}))
