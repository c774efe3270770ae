"""`actgent inspect`, `replay` and `journal`, run in this process with real files."""

import contextlib
import io
import json
import re
import signal
import sqlite3
from pathlib import Path

import pytest
import trio

from actgent import (
    BareAgent,
    LimitReached,
    Limits,
    ScriptedLLM,
    Sender,
    SlidingWindow,
    ToolCall,
    open_runtime,
    tool,
)
from actgent.approvals import Approval, Reject
from actgent.cli.chat_and_run_commands import load_agent
from actgent.cli.command_options import ReplayOptions
from actgent.cli.journals import journal_commands as journal_cli
from actgent.cli.journals.replay_command import fork
from actgent.cli.main import main
from actgent.cli.terminal_io import Terminal
from actgent.journal.journal_interface import Entry
from actgent.journal.journal_url import open_journal
from actgent.journal.record_types import (
    ApprovalDecisionRecord,
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    MessageAppendedRecord,
    NextTimerRecord,
    SessionCreatedRecord,
    SourceLiftRecord,
    SuspensionRecord,
    TaskOutcomeRecord,
    UsageRecord,
)
from actgent.journal.sqlite.schema import MIGRATIONS
from actgent.messages import Message, Text
from actgent.testing import open_provider

AGENT = '''
from actgent import BareAgent, ScriptedLLM, ToolCall, tool

@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b

agent = BareAgent("clerk", llm=ScriptedLLM([ToolCall("add", {"a": 2, "b": 2}), "It is 4."]), tools=[add])
'''


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def talk(folder):
    """Write two sessions to a journal."""
    script = [ToolCall("add", {"a": 1, "b": 2}), "It is\n3.", "[red]bye[/red] \x1b[2J"]
    clerk = BareAgent("clerk", llm=ScriptedLLM(script), tools=[add])
    async with open_runtime(journal=f"sqlite:///{folder}/a.db") as runtime:
        await runtime.start(clerk)
        session = await clerk.create_session("ada", "1 + 2?", session_id="s1")
        await session.wait_idle()
        session.state.dispatch(("n", [1]))
        await session.chat("thanks")
        await session.wait_idle()
        await clerk.create_session("bob", session_id="s2")


@pytest.fixture
def folder(tmp_path):
    """A folder with the journal and the file of an agent."""
    trio.run(talk, tmp_path)
    (tmp_path / "clerk.py").write_text(AGENT)
    return tmp_path


def actgent(*arguments):
    """Return the exit code and the output of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    return left.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(autouse=True)
def signals():
    """Restore the signal handlers after the test, because `main` replaces them for the rest of the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def good(*arguments):
    """Run a command that must succeed. Return its output."""
    code, out, err = actgent(*arguments)
    assert code == 0, err
    return out


def test_inspect_shows_times_and_suspensions(folder):
    """Both are shown in the list, in the transcript, and in the records."""

    async def suspend():
        async with open_journal(f"sqlite:///{folder}/a.db") as journal:
            records = (NextTimerRecord(at=86400.0), SuspensionRecord(message_id="m", ids=("w1", "w2")))
            entry = Entry(session_id="s2", agent="clerk", records=records)
            await journal.commit(entry, epoch=await journal.acquire())

    trio.run(suspend)
    (listed,) = [line for line in good("inspect", folder / "a.db").splitlines() if line.startswith("s2")]
    assert listed.endswith("suspended, due 1970-01-02 00:00:00")
    assert "suspended: w1, w2" in good("inspect", folder / "a.db", "s2")
    steps = good("inspect", folder / "a.db", "s2", "--steps")
    assert "NextTimer: at 1970-01-02 00:00:00" in steps
    assert "Suspension: m waits for w1, w2" in steps


def test_inspect_shows_labels_and_lifts(folder):
    """The label follows each record that changes it, also a lift, which is part of the transcript."""

    async def lift():
        async with open_journal(f"sqlite:///{folder}/a.db") as journal:
            labelled = Message(
                id="m9", session_id="s2", sender=Sender("bob"), parts=(Text("Pay."),), via="mail:bob"
            )
            records = (
                MessageAcceptedRecord(message=labelled),
                MessageAppendedRecord(message_id="m9"),
                SourceLiftRecord(source="mail:bob", by="ada", reason="a colleague", at=0.0),
            )
            entry = Entry(session_id="s2", agent="clerk", records=records)
            await journal.commit(entry, epoch=await journal.acquire())

    trio.run(lift)
    shown = good("inspect", folder / "a.db", "s2", "--labels").splitlines()[-4:]
    assert [line.split("  ")[-1] for line in shown] == [
        "bob: Pay.",
        "label: mail:bob",
        "lifted: mail:bob by ada, 1970-01-01 00:00:00: a colleague",
        "label: trusted",
    ]
    assert "label" not in good("inspect", folder / "a.db", "s2")
    assert "SourceLift: mail:bob by ada" in good("inspect", folder / "a.db", "s2", "--steps")


def test_inspect_lists_sessions_and_prints_transcripts(folder):
    """The list has one row for each session. A transcript is shown as data, with any content."""
    listed = good("inspect", folder / "a.db").splitlines()
    assert re.fullmatch(r"s1 +clerk +ada +[0-9-]{10} [0-9:]{8} +16 +idle", listed[1])
    assert [line.split()[0] for line in listed] == ["session", "s1", "s2"]
    output = good("inspect", folder / "a.db", "s1")
    for expected in ("3  ada: 1 + 2?", "clerk: calls add(a=1, b=2)", "tools: add -> 3", "clerk: It is 3."):
        assert expected in output
    assert "[red]bye[/red] \\x1b[2J" in output
    assert "clerk: It is\n3." in good("inspect", folder / "a.db", "s1", "--full")
    steps = good("inspect", folder / "a.db", "s1", "--steps")
    assert [line.split()[0] for line in steps.splitlines()] == [str(number) for number in range(1, 17)]
    assert len(good("inspect", folder / "a.db", "--agent", "nobody").splitlines()) == 1


def test_replay_gives_a_stable_digest(folder):
    """Each record has a digest, and the state is shown."""
    whole = good("replay", folder / "a.db", "s1")
    assert whole == good("replay", folder / "a.db", "s1", "--to", 16)
    assert "state     n = [1]" in whole
    earlier = good("replay", folder / "a.db", "s1", "--to", 4)
    assert "waiting   1" in earlier
    assert re.search("digest .*", earlier)[0] != re.search("digest .*", whole)[0]


def test_replay_names_the_first_difference(folder):
    """Unchanged code gives no difference. A changed agent name in the file is a different agent."""
    same = good("replay", folder / "a.db", "s1", "--code", folder / "clerk.py")
    assert same.endswith("clerk does the same\n")
    other = AGENT.replace("BareAgent", "SimpleAgent")
    (folder / "clerk.py").write_text(other)
    code, _, complaint = actgent("replay", folder / "a.db", "s1", "--code", folder / "clerk.py")
    assert code == 1
    assert "record 4: recorded system prompt and tools" in complaint
    assert "record 9: recorded outcome reply" in complaint


@pytest.mark.parametrize("llm", ["", "llm: openai:gpt-5.2\n"])
def test_commands_without_a_model_need_no_key(folder, no_keys, llm):
    """Compare, show and check need neither the name of a model nor its key. Only a fork needs both."""
    brain = folder / "clerk" / "brain.md"
    brain.parent.mkdir()
    brain.write_text(f"---\nname: clerk\n{llm}---\nBe kind.", encoding="utf-8")
    journal, clerk = folder / "a.db", folder / "clerk"
    code, out, complaint = actgent("replay", journal, "s1", "--code", clerk)
    assert (code, "digest" in out, "agent clerk differs" in complaint) == (1, True, True), complaint
    step = good("inspect", journal, "s1", "--context").split()[0]
    assert "Be kind." in good("inspect", journal, "s1", "--context", "--step", step, "--code", clerk)
    assert "0 sessions in the middle" in good("check", clerk, "--journal", journal)
    code, _, complaint = actgent("replay", journal, "s1", "--fork", "f", "--code", clerk)
    assert (code, "API key" in complaint or "no model is configured" in complaint) == (2, True)


def test_fork_continues_from_a_record(folder):
    """The copy calls its agent's model and runs tools. The recorded session is unchanged."""
    before = good("inspect", folder / "a.db", "s1", "--steps")
    fork = ("replay", folder / "a.db", "s1", "--to", 2, "--fork", "f", "--code", folder / "clerk.py")
    assert good(*fork) == "tool: add(a=2, b=2) = 4\nIt is 4.\n"
    assert "clerk: It is 4." in good("inspect", folder / "a.db", "f")
    assert before == good("inspect", folder / "a.db", "s1", "--steps")
    code, _, complaint = actgent(*fork)
    assert (code, "already has a session 'f'" in complaint) == (2, True)


async def test_fork_with_another_model(tmp_path, no_keys, capsys):
    """A plain agent with its own prompt continues with the history up to the record."""
    await talk(tmp_path)
    no_keys.setenv("OPENAI_API_KEY", "loopback")
    async with open_provider(["Kind regards."]) as provider:
        options = ReplayOptions(
            journal=f"{tmp_path}/a.db",
            session="s1",
            to=10,
            fork="f",
            model="openai:x",
            base_url=provider.openai_url,
            system="Be kind.",
            message="And now?",
        )
        assert await fork(options, Terminal()) == 0
        request = json.loads(provider.requests[-1].body)["messages"]
    assert capsys.readouterr().out == "Kind regards.\n"
    assert [message["role"] for message in request] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert request[0]["content"] == "Be kind."


SPENDER = """
from actgent import BareAgent, ScriptedLLM
agent = BareAgent("clerk", llm=ScriptedLLM(["fine"], repeat=True))
"""


async def in_a_journal(folder, work):
    """Run a function with the agent of the file `clerk.py` and a journal in this process, then close both."""
    agent = load_agent(f"{folder}/clerk.py")
    async with open_runtime(journal=f"sqlite:///{folder}/b.db") as runtime:
        await work(await runtime.start(agent))


async def test_fork_shares_the_budget_of_the_original(tmp_path):
    """The usage of each session counts for both, during the fork and later in one runtime."""
    (tmp_path / "clerk.py").write_text(SPENDER)
    options = {"journal": f"{tmp_path}/b.db", "session": "s", "to": None}
    who = {"code": f"{tmp_path}/clerk.py", "message": "And now?"}
    ended = []

    async def begin(agent):
        session = await agent.create_session("ada", "go", session_id="s", limits=Limits(model_calls=9))
        await session.wait_idle()

    async def race(agent):
        async def ask(session):
            try:
                await agent.run("go on", session=session)
            except LimitReached as error:
                ended.append(f"limit of {error.session_id}")
            else:
                ended.append("fine")

        original, copy = await agent.open_session("s"), await agent.open_session("f")
        assert original.budget.accounts[0] is copy.budget.accounts[0]
        async with trio.open_nursery() as nursery:
            for session in (original, copy) * 6:
                nursery.start_soon(ask, session)

    await in_a_journal(tmp_path, begin)
    assert await fork(ReplayOptions(fork="f", **who, **options), Terminal()) == 0
    assert await fork(ReplayOptions(fork="g", **who, **options), Terminal()) == 0
    await in_a_journal(tmp_path, race)
    assert sorted(ended) == ["fine"] * 6 + ["limit of s"] * 6  # after three before
    assert await fork(ReplayOptions(fork="h", **who, **options), Terminal()) == 1
    async with open_journal(f"sqlite:///{tmp_path}/b.db") as journal:
        await journal.acquire()
        spent = [record for record in await journal.load("s") if isinstance(record, UsageRecord)]
        assert sum(record.model_calls for record in spent if not record.turn) == 9


async def test_fork_of_a_delegated_task_is_independent(tmp_path, capsys):
    """The fork stays open without a waiting parent, and reports to no session. Other sessions of the agent stay evicted."""
    (tmp_path / "clerk.py").write_text(SPENDER)

    async def delegate(lead):
        session = await lead.create_session("ada", session_id="s")
        await session.delegate("clerk", "a part", task_id="task")
        await session.wait_idle()

    async with open_runtime(journal=f"sqlite:///{tmp_path}/b.db") as runtime:
        lead = BareAgent("lead", llm=ScriptedLLM(["noted"], repeat=True))
        await runtime.start(load_agent(f"{tmp_path}/clerk.py"))
        await delegate(await runtime.start(lead))
    async with open_journal(f"sqlite:///{tmp_path}/b.db") as journal:
        epoch = await journal.acquire()
        ada = Message(id="m", session_id="unfinished", sender=Sender("ada"), parts="wait")
        opened = SessionCreatedRecord(owner=ada.sender, created_at=1.0)
        entry = Entry(
            session_id="unfinished", agent="clerk", records=(opened, MessageAcceptedRecord(message=ada))
        )
        await journal.commit(entry, epoch=epoch)
        before = await journal.load("s")
    who = {"code": f"{tmp_path}/clerk.py", "message": "And now?"}
    options = ReplayOptions(journal=f"{tmp_path}/b.db", session="task", to=None, fork="f", **who)
    assert await fork(options, Terminal()) == 0
    assert capsys.readouterr().out == "fine\n"
    async with open_journal(f"sqlite:///{tmp_path}/b.db") as journal:
        await journal.acquire()
        assert await journal.load("s") == before
        assert len(await journal.load("unfinished")) == 2
        (summary,) = [each for each in await journal.sessions() if each.session_id == "f"]
        assert (summary.closed, summary.parent_id) == (False, None)


def test_sessions_are_exported_and_imported(folder):
    """Sessions of one journal are copied to another."""
    good("journal", "export", folder / "a.db", folder / "case", "--session", "s1")
    good("journal", "import", folder / "b.db", folder / "case")
    assert good("replay", folder / "a.db", "s1") == good("replay", folder / "b.db", "s1")
    good("journal", "import", folder / "b.db", folder / "case", "--new-ids")
    (copied,) = [
        line for line in good("inspect", folder / "b.db").splitlines() if "ada" in line and "s1" not in line
    ]
    shown = [good("replay", folder / "b.db", session) for session in ("s1", copied.split()[0])]
    assert shown[0].splitlines()[2:] == shown[1].splitlines()[2:]  # the digest belongs to another session


def test_damaged_journal_is_checked_and_recovered(folder):
    """The damage is named, and all undamaged records are copied."""
    assert "is OK" in good("journal", "check", folder / "a.db")
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as database:
        database.execute(
            "UPDATE steps SET body = x'00' WHERE series = (SELECT series FROM sessions WHERE session_id = 's1') AND first > 10"
        )
        database.commit()
    code, _, complaint = actgent("journal", "check", folder / "a.db")
    assert (code, "'s1'" in complaint) == (1, True)
    code, saved, complaint = actgent("journal", "recover", folder / "a.db", folder / "b.db")
    assert (code, "'s1'" in complaint) == (1, True)
    assert "2 sessions" in saved
    assert "1 + 2?" in good("inspect", folder / "b.db", "s1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("inspect", "missing.db"), "missing.db"),
        (("inspect", "a.db", "s3"), "'s3'"),
        (("replay", "a.db", "s1", "--to", "17"), "1 to 16"),
        (("replay", "a.db", "s1", "--code", "clerk.py", "--message", "x"), "--fork"),
        (("replay", "a.db", "s1", "--code", "clerk.py", "--fork", "f", "--system", "x"), "--system"),
        (("replay", "a.db", "s1", "--code", "clerk.py", "--fork", "f", "--model", "x"), "--model"),
        (("journal", "export", "a.db", "a.db"), "exists"),
        (("journal", "import", "b.db", "clerk.py"), "lacks the header"),
        (("journal", "check", "postgres://h/d"), "SQLite"),
        (("inspect", "."), "is a folder"),
        (("inspect", "postgres://ada:s3cret@h/d?shema=x"), "parameter 'shema': did you mean 'schema'?"),
        (
            ("inspect", "postgres://ada:s3cret@h/d?x=s3cret"),
            "unknown parameter 'x': use schema= or a parameter of libpq",
        ),
        (("journal", "import", "a.db", "all.sessions"), "--new-ids"),
        (("inspect", "clerk.py"), "not the file of a journal"),
        (("inspect", "empty"), "empty"),
        (("inspect", "all.sessions"), "journal import"),
        (("journal", "check", "clerk.py"), "not the file of a journal"),
        (("journal", "recover", "clerk.py", "b.db"), "not the file of a journal"),
        (("journal", "import", "clerk.py", "all.sessions"), "not the file of a journal"),
        (("journal", "export", "a.db", "b.sessions", "--agent", "nobody"), "no session that matches"),
        (("replay", "a.db", "s1", "--message", "x"), "--fork"),
        (("replay", "a.db", "s1", "--to", "17", "--code", "clerk.py"), "1 to 16"),
        (("replay", "a.db", "s1", "--code", "missing.py"), "missing.py"),
    ],
)
def test_usage_error_is_one_line_with_exit_code_2(folder, monkeypatch, arguments, named):
    """The line states the mistake or the remedy, and nothing is created or changed."""
    monkeypatch.chdir(folder)
    Path("empty").touch()
    good("journal", "export", "a.db", "all.sessions")
    before = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("a.db")}
    code, out, complaint = actgent(*arguments)
    assert (code, out, complaint.count("\n")) == (2, "", 1)
    assert named in complaint
    assert "s3cret" not in complaint
    after = {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith("a.db")}
    assert after == before


def test_journal_without_its_log_names_the_remedy(folder):
    """A second line names the commands that help. The test deletes the log and with it the lock, which counts the commits."""
    (folder / "a.db-lock").unlink()
    with contextlib.closing(sqlite3.connect(folder / "a.db")) as database:
        database.execute("UPDATE meta SET value = 1 WHERE key = 'open'")
        database.commit()
    code, _, complaint = actgent("inspect", folder / "a.db")
    assert (code, complaint.count("\n")) == (1, 2)
    assert f"journal recover {folder / 'a.db'} NEW" in complaint


def test_journal_in_use_can_be_read(folder, tmp_path, commands):
    """List, transcript, replay and export work. A fork must write, so its error names the process that has the journal."""
    place, exported = folder / "a.db", tmp_path / "out.sessions"

    async def look_meanwhile(*arguments):
        async with open_runtime(journal=f"sqlite:///{place}"):
            return await trio.to_thread.run_sync(look, arguments)

    def look(arguments):
        return commands.run(["actgent", *arguments], capture_output=True, text=True)

    alone = look(["inspect", place]).stdout
    for arguments in (("inspect", place), ("replay", place, "s1"), ("journal", "export", place, exported)):
        done = trio.run(look_meanwhile, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        assert done.stdout == alone or arguments[0] != "inspect"
    assert exported.exists()
    done = trio.run(look_meanwhile, "replay", place, "s1", "--fork", "s9", "--code", folder / "clerk.py")
    assert (done.returncode, "owned by process" in done.stderr) == (1, True)


def test_older_journal_is_read_from_a_migrated_copy(folder, monkeypatch, tmp_path):
    """The original file does not change."""
    old = tmp_path / "old.db"
    with monkeypatch.context() as patched:
        patched.setattr("actgent.journal.sqlite.schema.MIGRATIONS", MIGRATIONS[:-1])

        async def make():
            async with open_journal(f"sqlite:///{old}") as journal:
                await journal.acquire()

        trio.run(make)
    before = old.read_bytes()
    assert "session" in good("inspect", old)
    assert old.read_bytes() == before


def test_a_record_without_a_formatter_is_described_by_its_fields():
    """`inspect --steps` shows the fields of the record that are not empty."""
    assert journal_cli._describe(UsageRecord(turn="t1", tokens=3)) == "turn t1, tokens 3"


def test_inspect_shows_decisions():
    """The output has the approver, the request and the decision."""
    asked = Approval(
        id="1.s",
        session_id="s",
        agent="a",
        call_id="c",
        tool_name="pay",
        arguments={"n": 5},
        question="May it?",
    )
    decided = ApprovalDecisionRecord(approval_id="1.s", decision=Reject("no"), by="ada", at=0.0)
    records = [
        ApprovalRequestRecord(approval=asked),
        decided,
        UsageRecord(model_calls=2),
        TaskOutcomeRecord(message_id="m", text="done"),
    ]
    shown = [line.show(200) for line in journal_cli._transcript(records)]
    assert "asked: May it? pay(n=5)" in shown[0]
    assert "1.s rejected by ada" in shown[1]
    steps = [line.show(200) for line in journal_cli._all_steps(records)]
    assert "model_calls 2" in steps[2]
    assert "done" in steps[3]


async def talk_twice(path):
    """Write a session `ada` of two agents each."""
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        for name in ("shop", "bank"):
            agent = await runtime.start(BareAgent(name, llm=ScriptedLLM([f"I am {name}."])))
            session = await agent.create_session("ada", f"Hello, {name}.", session_id="ada")
            await session.wait_idle()


def test_agent_option_selects_among_equal_ids(tmp_path):
    """Commands for one session report the ambiguity. Export and import copy the sessions of all agents."""
    trio.run(talk_twice, tmp_path / "a.db")
    for command in ("inspect", "replay"):
        code, _, complaint = actgent(command, tmp_path / "a.db", "ada")
        assert (code, "'bank', 'shop'" in complaint) == (2, True), command
    assert "I am bank." in good("inspect", tmp_path / "a.db", "ada", "--agent", "bank")
    assert "I am shop." in good("inspect", tmp_path / "a.db", "ada", "--agent", "shop")
    digests = {
        good("replay", tmp_path / "a.db", "ada", "--agent", name).splitlines()[1] for name in ("bank", "shop")
    }
    assert len(digests) == 2
    good("journal", "export", tmp_path / "a.db", tmp_path / "all", "--session", "ada")
    good("journal", "import", tmp_path / "b.db", tmp_path / "all")
    good("journal", "import", tmp_path / "b.db", tmp_path / "all", "--new-ids")
    rows = good("inspect", tmp_path / "b.db").splitlines()[1:]
    assert sorted(row.split()[1] for row in rows) == ["bank", "bank", "shop", "shop"]
    assert sum(row.split()[0] == "ada" for row in rows) == 2
    code, _, complaint = actgent("journal", "import", tmp_path / "b.db", tmp_path / "all")
    assert (code, "already contains session 'ada'" in complaint) == (2, True)


SHOWING = """
from actgent import BareAgent, ScriptedLLM, SlidingWindow

answers = ScriptedLLM(lambda chat: f"I see {len(chat.messages)}.", context_window=1_200)
agent = BareAgent("clerk", llm=answers, max_tokens=300, memory=SlidingWindow(turns=50))
"""


async def talk_until_it_is_cut(path):
    """Write a conversation that once exceeds the context of its model. Return the requests to the model."""
    llm = ScriptedLLM(lambda chat: f"I see {len(chat.messages)}.", context_window=1_200)
    agent = BareAgent("clerk", llm=llm, max_tokens=300, memory=SlidingWindow(turns=50))
    async with open_runtime(journal=f"sqlite:///{path}") as runtime:
        await runtime.start(agent)
        session = await agent.create_session("ada", session_id="s")
        for number in range(9):
            await agent.run(f"Letter {number}. " + "It says little. " * 30, session=session)
    return llm.chats


def test_inspect_shows_model_requests_and_cuts(tmp_path):
    """Each request is shown with its length and its cuts. With the code of the agent, the complete text is shown as it was sent."""
    path, code = tmp_path / "a.db", tmp_path / "clerk.py"
    code.write_text(SHOWING)
    chats = trio.run(talk_until_it_is_cut, path)
    listed = good("inspect", path, "s", "--context").splitlines()
    steps = [line.split()[0] for line in listed if not line.startswith("       ")]
    cut = [
        listed[index - 1].split()[0]
        for index, line in enumerate(listed)
        if "older messages were omitted" in line
    ]
    assert len(steps) == len(chats) == 9
    assert cut
    for step, chat in zip(steps, chats, strict=True):
        out = good("inspect", path, "s", "--context", "--step", step, "--code", code, "--full")
        text = "\n".join(f"{each.role}: {part.text}" for each in chat.messages for part in each.parts)
        assert out.endswith(f"system: You are clerk.\n{text}\n")
        assert "memory    SlidingWindow(turns=50" in out
    last = good("inspect", path, "s", "--context", "--step", cut[0], "--code", code)
    assert "fitting   cut: up to" in last
    failed, _, complaint = actgent("inspect", path, "s", "--context", "--step", "2", "--code", code)
    assert (failed, "record 2 is not an answer of a model" in complaint) == (2, True)
    assert actgent("inspect", path, "s", "--step", "4")[0] == 2
    assert actgent("inspect", path, "--context")[0] == 2
