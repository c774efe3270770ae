"""Tasks that sessions delegate to other agents: asks, delegations, search by capability, cancellation, and crashes."""

import collections
from functools import partial

import pytest
import trio
import trio.testing

from actgent import (
    AgentCard,
    BareAgent,
    ConfigurationError,
    InboxFull,
    JournalFailed,
    LimitReached,
    NotRunning,
    ScriptedLLM,
    ToolCall,
    delegation_tools,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    MessageEndRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
    TaskOutcomeRecord,
)
from actgent.journal.session_export_and_fork import read_sessions, with_new_ids, write_sessions
from actgent.runtime.agent_directory import Directory
from actgent.sessions.pending.delegated_tasks import MAX_TASKS
from actgent.testing import assert_valid_transcript, check_transcript


def last_text(chat):
    return chat.messages[-1].parts[0].text


def results_of(session):
    return [result for message in session.history for result in message.tool_results]


async def open_sessions(journal):
    return [each for each in await journal.sessions() if not each.closed]


# --- asks are children -------------------------------------------------------------------


async def test_ask_creates_a_child_session_of_the_caller(autojump_clock):
    """The child session is open until the answer, for a tool and for a reference."""
    seen = []

    @tool(parallel=True)
    async def ask(how: str) -> str:
        """Ask the helper."""
        reply = await (helper.ref.ask("hi") if how == "ref" else helper.run("hi"))
        return str(reply)

    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "fine", delay=1))
    calls = [
        ToolCall("ask", {"how": "ref"}),
        ToolCall("ask", {"how": "run"}),
        ToolCall("helper", {"task": "hi"}),
    ]
    boss = BareAgent("boss", llm=ScriptedLLM([calls, "done"]), tools=[ask, helper.as_tool()])
    async with boss:
        session = await boss.create_session("ada", "go", session_id="s")
        await trio.sleep(0.5)
        seen += session.children
        assert [(child.owner.name, child.parent, child.agent_name) for child in seen] == [
            ("boss", session, "helper")
        ] * 3
        await session.wait_idle()
        assert session.children == ()
    assert [result.content for result in results_of(session)] == ["fine"] * 3


@pytest.mark.parametrize("how", ["interrupt", "aclose", "delete", "urgent"])
async def test_children_end_with_the_caller(autojump_clock, how):
    """The whole tree ends within a second of the stop of its parent."""
    workers = [BareAgent(f"w{n}", llm=ScriptedLLM(lambda _: "late", delay=1000)) for n in range(10)]
    middle = [
        BareAgent(
            f"m{n}",
            llm=ScriptedLLM([[ToolCall(worker.name, {"task": "x"}) for worker in workers], "late"]),
            tools=[worker.as_tool() for worker in workers],
        )
        for n in range(10)
    ]
    calls = [ToolCall(agent.name, {"task": "x"}) for agent in middle]
    boss = BareAgent("boss", llm=ScriptedLLM([calls, "ok"]), tools=[agent.as_tool() for agent in middle])
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada", "go")
        await trio.sleep(5)
        assert sum(len(worker._opener.running.sessions) for worker in workers) == 100
        with trio.fail_after(1):
            match how:
                case "interrupt":
                    await session.interrupt()
                case "aclose":
                    await session.aclose()
                case "delete":
                    await runtime.delete_session(session.id)
                case _:
                    await session.chat("now", priority="urgent")
                    await session.wait_idle()
            await trio.testing.wait_all_tasks_blocked()
        assert all(not agent._opener.running.sessions for agent in (*workers, *middle))


async def test_failed_child_is_a_result_with_agent_and_kind(autojump_clock):
    """The text is fit for a model: unknown exceptions are named by class alone."""

    def secret(_):
        raise RuntimeError("password 1234")

    helper = BareAgent("helper", llm=ScriptedLLM(secret))
    boss = BareAgent(
        "boss", llm=ScriptedLLM([ToolCall("helper", {"task": "x"}), "sorry"]), tools=[helper.as_tool()]
    )
    async with boss:
        session = await boss.create_session("ada", "go")
        await session.wait_idle()
    (result,) = results_of(session)
    assert (result.status, result.error) == (
        "error",
        "agent 'helper' failed (model): scripted: its client raised RuntimeError",
    )


# --- delegated: the result is a message --------------------------------------------------


def team(*, delay=1, script=None, tools=(), **options):
    """Return a lead, and a worker that echoes."""
    worker = BareAgent(
        "worker",
        llm=ScriptedLLM(lambda chat: f"did {last_text(chat)}", delay=delay),
        capabilities="digging holes",
    )
    heard = ScriptedLLM(script or (lambda chat: f"heard: {last_text(chat)}"), delay=0.1)
    return BareAgent("lead", llm=heard, tools=tools, **options), worker


async def test_result_of_a_delegated_task_is_a_message(autojump_clock, listen):
    """The message starts a turn in the delegating session, with the worker as its sender."""
    lead, worker = team()
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        received = listen(session)
        task_id = await session.delegate("worker", "a hole")
        assert [child.id for child in session.children] == [task_id]
        assert session.status == "idle"
        await trio.sleep(2)
        await session.wait_idle()
        assert session.children == ()
    message = session.history[0]
    assert (message.sender.name, message.sender.kind) == ("worker", "agent")
    assert message.text == f"Task {task_id} was done by agent 'worker':\ndid a hole"
    assert str(received[0]) == f"heard: {message.text}"


async def test_results_that_come_during_a_turn_are_answered_together(autojump_clock, listen):
    """No result is lost, and none interrupts the turn."""
    llm = ScriptedLLM(lambda chat: f"heard: {last_text(chat)}", delay=5)
    lead, worker = BareAgent("lead", llm=llm), team(delay=0.2)[1]
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        received = listen(session)
        await session.chat("five holes, please")
        tasks = [await session.delegate("worker", f"hole {n}") for n in range(5)]
        await trio.sleep(12)
        await session.wait_idle()
        messages = [message for message in session.history if message.sender.kind == "agent"]
        assert sorted(message.id for message in messages) == sorted(f"{task}/result" for task in tasks)
    assert len(received) == 2
    assert len(messages) == 5
    for chat in llm.chats:
        assert_valid_transcript(chat)


async def test_a_failed_task_is_reported(autojump_clock):
    """The report has the kind of the failure."""

    def fail(_):
        raise RuntimeError("secret")

    lead, _ = team()
    async with open_runtime() as runtime:
        await runtime.start(lead)
        await runtime.start(BareAgent("worker", llm=ScriptedLLM(fail)))
        session = await lead.create_session("ada")
        task_id = await session.delegate("worker", "a hole")
        await trio.sleep(1)
        await session.wait_idle()
    text = session.history[0].text
    assert (
        text
        == f"Task {task_id}, given to agent 'worker', failed (model): scripted: its client raised RuntimeError"
    )


async def test_a_task_can_be_cancelled(autojump_clock):
    """The session of the task is closed, and no report follows."""
    lead, worker = team(delay=100)
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        task_id = await session.delegate("worker", "a hole")
        await trio.sleep(1)
        assert await session.cancel_task(task_id)
        assert not await session.cancel_task(task_id)
        assert (session.children, worker._opener.running.sessions.keys()) == ((), set())
        await trio.sleep(200)
        assert session.history == ()


async def test_task_of_an_earlier_process_can_be_cancelled(autojump_clock):
    """After a restart the task is not in memory; the journal is searched, and no report follows."""
    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal) as runtime:
                lead, worker = team(delay=1000)
                for agent in (lead, worker):
                    await runtime.start(agent)
                session = await lead.create_session("ada", session_id="s1")
                values = [await session.delegate("worker", "a hole", task_id=each) for each in (None, "t")]
                await trio.sleep_forever()
        may_open = trio.Event()
        async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
            lead, worker = team(delay=1000)
            worker.on_session(lambda _: may_open.wait())
            await runtime.start(lead)
            session = await lead.open_session("s1")
            with pytest.raises(NotRunning):
                await session.cancel_task("t")
            assert not await session.cancel_task("other")
            nursery.start_soon(runtime.start, worker)
            await trio.testing.wait_all_tasks_blocked()
            was_at_work = {}

            async def cancel(task_id):
                was_at_work[task_id] = await session.cancel_task(task_id)

            for task_id in values:
                nursery.start_soon(cancel, task_id)
            await trio.testing.wait_all_tasks_blocked()
            may_open.set()
            await trio.sleep(2000)
            assert was_at_work == dict.fromkeys(values, True)
            assert session.history == ()
        assert {each.session_id for each in await open_sessions(journal)} <= {"s1"}


async def test_running_task_is_cancelled_after_a_restart_of_the_delegating_agent(autojump_clock):
    """The child session has stayed in memory, because its agent was not stopped."""
    (lead, worker), (lead_again, _) = team(delay=100), team(delay=100)
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada", session_id="s1")
        await session.delegate("worker", "a hole", task_id="t")
        await trio.sleep(1)
        runtime.stop("lead")
        await trio.sleep(1)
        await runtime.start(lead_again)
        session = await lead_again.open_session("s1")
        assert [each.id for each in session.children] == ["t"]
        assert await session.cancel_task("t")
        await trio.sleep(200)
        assert session.history == ()
        assert {each.session_id for each in await open_sessions(journal)} == {"s1"}


async def test_task_with_a_result_is_not_cancelled(autojump_clock):
    """The caller gets False, because the result is being delivered."""
    may_write = trio.Event()

    class Slow(MemoryJournal):
        async def commit(self, entry, *, epoch, durable=True):
            accepted = [
                each.message.id for each in entry.records if type(each).__name__ == "MessageAcceptedRecord"
            ]
            if any(each.endswith("/result") for each in accepted):
                await may_write.wait()
            await super().commit(entry, epoch=epoch, durable=durable)

    lead, worker = team(delay=1)
    async with Slow().running() as journal, open_runtime(journal=journal) as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t")
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:

            async def cancel():
                assert not await session.cancel_task("t")

            nursery.start_soon(cancel)
            await trio.testing.wait_all_tasks_blocked()
            may_write.set()
        await session.wait_idle()
        assert [each.sender.kind for each in session.history] == ["agent", "assistant"]


async def test_stopped_task_drops_a_result_that_waits_for_the_journal(autojump_clock):
    """Its result waited for the journal and is no longer delivered."""
    works = False

    class Failing(MemoryJournal):
        async def commit(self, entry, *, epoch, durable=True):
            accepted = [
                each.message.id for each in entry.records if type(each).__name__ == "MessageAcceptedRecord"
            ]
            if not works and any(each.endswith("/result") for each in accepted):
                raise JournalFailed("the disk is away")
            await super().commit(entry, epoch=epoch, durable=durable)

    lead, worker = team(delay=1)
    async with Failing().running() as journal, open_runtime(journal=journal) as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole", task_id="t")
        await trio.sleep(2)
        with trio.fail_after(60):
            assert await session.cancel_task("t")
        works = True
        await trio.sleep(10)
        assert session.history == ()


async def test_closing_a_session_cancels_its_tasks(autojump_clock):
    """An interrupt of its turn does not cancel them, because they are not part of the turn."""
    lead, worker = team(delay=100)
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        session = await lead.create_session("ada")
        await session.delegate("worker", "a hole")
        await session.interrupt()
        assert len(session.children) == 1
        with trio.fail_after(1):
            await session.aclose()
        assert not worker._opener.running.sessions


async def test_task_limit_and_missing_agent_raise_at_once(autojump_clock):
    lead, worker = team(delay=100)
    async with open_runtime() as runtime:
        await runtime.start(lead)
        session = await lead.create_session("ada")
        with pytest.raises(NotRunning, match="worker"):
            await session.delegate("worker", "a hole")
        await runtime.start(worker)
        for number in range(MAX_TASKS):
            await session.delegate("worker", f"hole {number}")
        with pytest.raises(LimitReached, match="delegated tasks"):
            await session.delegate("worker", "one more")
        await session.aclose()


async def test_concurrent_tasks_respect_the_limit_and_their_ids(autojump_clock):
    """With a journal lookup before each start, the maximum is never exceeded, and one id starts one task."""
    refused = []

    async def give(session, **options):
        try:
            await session.delegate("worker", "a hole", **options)
        except LimitReached as error:
            refused.append(error)

    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        lead, worker = team(delay=100)
        for agent in (lead, worker):
            await runtime.start(agent)
        session, other = await lead.create_session("ada"), await lead.create_session("bob")
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_TASKS + 20):
                nursery.start_soon(give, session)
            for _ in range(5):
                nursery.start_soon(partial(give, other, task_id="t"))
        assert (len(session.children), len(refused)) == (MAX_TASKS, 20)
        assert [child.id for child in other.children] == ["t"]
        await session.aclose()
        await other.aclose()


async def test_task_rejected_by_a_full_inbox_can_be_delegated_again(autojump_clock):
    """The task runs under its id and is reported. A cancelled task stays cancelled."""
    async with MemoryJournal().running() as journal, open_runtime(journal=journal) as runtime:
        llm = ScriptedLLM(lambda chat: f"did {last_text(chat)}", delay=100)
        worker = await runtime.start(
            BareAgent("worker", llm=llm, max_concurrent_sessions=1, inbox_capacity=1)
        )
        lead = await runtime.start(team()[0])
        for name in ("busy", "waiting"):
            await worker.create_session("eve", name)
        session = await lead.create_session("ada")
        with pytest.raises(InboxFull):
            await session.delegate("worker", "a hole", task_id="t")
        assert session.children == ()
        await trio.sleep(200)
        assert await session.delegate("worker", "a hole", task_id="t") == "t"
        await trio.sleep(101)
        await session.wait_idle()
        assert session.history[0].text.endswith("did a hole")
        await session.delegate("worker", "another", task_id="u")
        await session.cancel_task("u")
        await session.delegate("worker", "another", task_id="u")
        assert session.children == ()


async def test_temporary_session_stays_open_for_results_of_its_tasks(autojump_clock):
    """`run` has returned its answer, and results of tasks that the turn delegated are still received."""
    calls = []

    def script(chat):
        calls.append(last_text(chat))
        if len(calls) == 1:
            return ToolCall("delegate_to_agent", {"agent": "worker", "task": "a hole", "wait": False})
        return "ok"

    lead, worker = team(script=script, tools=delegation_tools())
    async with open_runtime() as runtime:
        for agent in (lead, worker):
            await runtime.start(agent)
        assert str(await lead.run("go")) == "ok"
        assert len(lead._opener.running.sessions) == 1
        await trio.sleep(3)
        assert len(calls) == 3
        assert calls[2].endswith("did a hole")
        assert not lead._opener.running.sessions


# --- found by capability -----------------------------------------------------------------


def cards(**capabilities):
    directory = Directory()
    for name, text in capabilities.items():
        directory.add(BareAgent(name, llm=ScriptedLLM(["x"]), capabilities=text))
    return directory


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ("translate", ["poet", "tongue"]),
        ("translate French", ["tongue", "poet"]),
        ("TRANSLATIONS", []),
        ("french", ["tongue"]),
        ("sums", ["abacus"]),
        ("abacus", ["abacus"]),
        ("fly", []),
        ("", ["abacus", "poet", "tongue"]),
        (" , ", ["abacus", "poet", "tongue"]),
    ],
)
def test_agents_are_found_by_capability(expected, found):
    """The agent that matches the most words is first; ties are sorted by name."""
    directory = cards(tongue="translates French and German", poet="rhymes; can translate", abacus="does sums")
    assert [card.name for card in directory.find(expected)] == found


async def test_runtime_finds_running_agents_by_name(autojump_clock):
    lead, worker = team()
    async with open_runtime() as runtime:
        await runtime.start(lead)
        assert list(runtime.agents) == ["lead"]
        await runtime.start(worker)
        assert runtime.agents["worker"] == AgentCard(
            name="worker", capabilities="digging holes", models={"default": "scripted"}
        )
        assert [card.name for card in runtime.agents.find("dig holes")] == ["worker"]
        directory = runtime.agents
    assert not directory


async def ask_model(script, *, tools, others=(), between=5):
    """Return the tool results of a lead whose model makes this call."""
    lead = BareAgent("lead", llm=ScriptedLLM(script, keep=0), tools=tools)
    async with open_runtime() as runtime:
        for agent in (lead, *others):
            await runtime.start(agent)
        session = await lead.create_session("ada", "go")
        await session.wait_idle()
        await trio.sleep(between)
        await session.wait_idle()
        return session


async def test_model_finds_agents_and_delegates_tasks(autojump_clock):
    """The model reads the cards of other agents, and gets the answer of a task."""
    script = [
        ToolCall("find_agents", {"capability": "holes"}),
        ToolCall("delegate_to_agent", {"agent": "worker", "task": "a hole", "priority": "MEDIUM"}),
        "done",
    ]
    session = await ask_model(script, tools=delegation_tools(), others=[team()[1]])
    found, answer = results_of(session)
    assert '"name":"worker"' in found.content.replace(" ", "")
    assert "lead" not in found.content
    assert answer.content == "did a hole"


async def test_task_has_the_priority_of_the_model(autojump_clock):
    """The other agent's queue uses it; MEDIUM and a missing value are NORMAL."""
    said: list[str] = []
    value = {"low": "LOW", "none": None, "medium": "MEDIUM", "high": "HIGH"}
    calls = [
        {"agent": "worker", "task": task, "wait": False} | ({"priority": level} if level else {})
        for task, level in {"first": None, **value}.items()
    ]
    first, *others = [ToolCall("delegate_to_agent", call) for call in calls]
    script = [first, others, *["done"] * 9]

    def work(chat):
        said.append(last_text(chat))
        return "ok"

    worker = BareAgent("worker", llm=ScriptedLLM(work, delay=1), max_concurrent_sessions=1)
    await ask_model(script, tools=delegation_tools(), others=[worker], between=30)
    assert (said[:2], set(said[2:4]), said[4:]) == (["first", "high"], {"none", "medium"}, ["low"])


async def test_agent_can_call_only_permitted_agents(autojump_clock):
    """Other agents are neither found nor called, and the check is made at the call."""
    script = [
        [
            ToolCall("find_agents", {}),
            ToolCall("delegate_to_agent", {"agent": "worker", "task": "x"}),
            ToolCall("delegate_to_agent", {"agent": "worker", "task": "x", "wait": False}),
            ToolCall("delegate_to_agent", {"agent": "lead", "task": "x"}),
            ToolCall("delegate_to_agent", {"agent": "nobody", "task": "x"}),
        ],
        "done",
    ]
    for allowed in (["other"], lambda card: "digging" not in card.capabilities):
        session = await ask_model(script, tools=delegation_tools(allowed), others=[team()[1]])
        found, *refused = results_of(session)
        assert "worker" not in found.content
        assert all("you may not call it" in result.error for result in refused)


async def test_task_has_a_timeout_and_retries(autojump_clock):
    """A failure is retried in a new conversation. At the timeout the task is stopped, and that is the result."""
    failures = [RuntimeError(), RuntimeError(), "third time lucky"]
    flaky = BareAgent("flaky", llm=ScriptedLLM(failures))
    slow = BareAgent("slow", llm=ScriptedLLM(lambda _: "late", delay=1000))
    script = [
        [ToolCall("delegate_to_agent", {"agent": name, "task": "x"}) for name in ("flaky", "slow")],
        "done",
    ]
    session = await ask_model(script, tools=delegation_tools(timeout=20, tries=3), others=[flaky, slow])
    lucky, late = results_of(session)
    assert lucky.content == "third time lucky"
    assert (late.status, "20 s" in late.error) == ("error", True)
    with pytest.raises(ConfigurationError, match="allowed="):
        delegation_tools("worker")


# --- after a crash -----------------------------------------------------------------------


class World:
    """Data outside of the processes, over all of them."""

    def __init__(self):
        self.paid = collections.Counter()
        self.replies = collections.defaultdict(set)
        self.problems = []

    def agents(self):
        """Return a boss with two concurrent workers, each of which pays something once."""

        def worker(name):
            @tool(effect="once")
            async def pay(order: str) -> str:
                """Pay an order."""
                await trio.sleep(0.01)
                self.paid[order] += 1
                await trio.sleep(0.01)
                return f"paid {order}"

            def answer(chat):
                self.problems += check_transcript(chat)
                if chat.messages[-1].role == "tool":
                    return f"{name}: {chat.messages[-1].parts[0].text}"
                return ToolCall("pay", {"order": f"{name} {last_text(chat)}"})

            return BareAgent(name, llm=ScriptedLLM(answer, keep=0, delay=0.01), tools=[pay])

        def lead(chat):
            self.problems += check_transcript(chat)
            last = chat.messages[-1]
            if last.role == "tool":
                return "done: " + "; ".join(part.text for part in last.parts)
            return [ToolCall(name, {"task": last_text(chat)}) for name in ("w1", "w2")]

        workers = [worker("w1"), worker("w2")]
        boss = BareAgent(
            "boss", llm=ScriptedLLM(lead, keep=0, delay=0.01), tools=[each.as_tool() for each in workers]
        )

        @boss.on_session
        def attach(session):
            session.on_conversation(lambda reply: self.replies[session.id].add((reply.id, str(reply))))

        return boss, workers


@pytest.mark.parametrize("first", ["boss", "workers"])
async def test_crash_at_every_write_repeats_no_work_of_a_tree(autojump_clock, mortal, first):
    """The boss has one answer from its two workers; `once` effects happen once; no session stays open."""
    crashes = unknown = 0
    for steps in range(1, 200):
        world, journal, accepted = World(), mortal(), []

        async def life(journal, *, opens=True, world=world, accepted=accepted):
            async with open_runtime(journal=journal) as runtime:
                boss, workers = world.agents()
                for agent in (*workers, boss) if first == "workers" else (boss,):
                    await runtime.start(agent)
                if opens:
                    session = await boss.create_session("ada", session_id="s")
                    await session.chat("bill", message_id="m")
                    accepted.append("m")
                for running in [agent._opener.running for agent in (boss, *workers)]:
                    await running.inbox.wait_idle()

        async with journal.running():
            died = await journal.live(life, steps=steps)
            await journal.live(lambda journal: life(journal, opens=False))
            left = [each.session_id for each in await open_sessions(journal)]
            unfinished = [each for each in await journal.sessions() if each.unfinished]
        if not died:
            break
        crashes += 1
        assert world.problems == []
        assert set(left) <= {"s"}, (steps, left)
        assert unfinished == [], steps
        assert all(count == 1 for count in world.paid.values()), (steps, world.paid)
        if accepted:
            (reply,) = world.replies["s"]
            assert reply[1].startswith("done: w1: "), (steps, reply)
            assert "; w2: " in reply[1]
            unknown += "outcome is unknown" in reply[1]
            for name in ("w1", "w2"):
                assert world.paid[f"{name} bill"] == 1 or "outcome is unknown" in reply[1], (steps, reply)
    assert crashes > 15
    assert 0 < unknown < crashes / 2


async def test_a_crash_at_every_write_loses_no_result_of_a_delegated_task(autojump_clock, mortal):
    """The result is delivered once, also after the crash. The same task id is the same task."""
    crashes = 0
    for steps in range(1, 100):
        journal, delegated = mortal(), []

        async def life(journal, *, opens=True, delegated=delegated):
            lead, worker = team(grace=100)
            async with open_runtime(journal=journal) as runtime:
                for agent in (worker, lead):
                    await runtime.start(agent)
                if opens:
                    session = await lead.create_session("ada", session_id="s")
                elif await journal.load("s"):
                    session = await lead.open_session("s")
                else:
                    return
                if not any(message.sender.kind == "agent" for message in session.history):
                    assert await session.delegate("worker", "a hole", task_id="t") == "t"
                delegated.append("t")
                await trio.sleep(5)

        async with journal.running():
            died = await journal.live(life, steps=steps)
            await journal.live(lambda journal: life(journal, opens=False))
            left = [each.session_id for each in await open_sessions(journal)]
            records = await journal.load("s")
        if not died:
            break
        crashes += 1
        assert set(left) <= {"s"}, steps
        if delegated:
            received = [r.message for r in records if type(r).__name__ == "MessageAcceptedRecord"]
            assert [message.text for message in received] == [
                "Task t was done by agent 'worker':\ndid a hole"
            ], steps
    assert crashes > 6


async def test_result_is_delivered_when_its_agent_starts(autojump_clock):
    """The result is written to the journal until then."""
    async with MemoryJournal().running() as journal:
        lead, worker = team(delay=10, grace=0)
        with pytest.raises(RuntimeError):  # noqa: PT012 - the block is what fails
            async with open_runtime(journal=journal) as runtime:
                for agent in (lead, worker):
                    await runtime.start(agent)
                session = await lead.create_session("ada", session_id="s")
                await session.delegate("worker", "a hole", task_id="t")
                await trio.sleep(1)
                raise RuntimeError
        _, worker = team()
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(worker)
            await trio.sleep(5)
        lead, worker = team()
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(lead)
            session = await lead.open_session("s")
            await session.wait_idle()
            assert session.history[0].text.endswith("did a hole")
            assert len(session.history) == 2


async def test_temporary_session_ends_after_a_crash(autojump_clock):
    """The session resumes and leaves the journal at its end, together with its child sessions."""
    async with MemoryJournal().running() as journal:
        for attempt in range(2):
            boss, helper = asking(["done"] if attempt else [ToolCall("ask", {}), "done"])
            with pytest.RaisesGroup(RuntimeError):
                async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
                    await runtime.start(helper)
                    await runtime.start(boss)
                    if not attempt:
                        nursery.start_soon(boss.run, "go")
                        nursery.start_soon(boss.ref.tell, "go")
                    await trio.sleep(5)
                    raise RuntimeError
            summaries = await journal.sessions()
            opened = [(await journal.load(each.session_id))[0] for each in summaries]
            assert all(isinstance(each, SessionCreatedRecord) and each.transient for each in opened)
            assert len(summaries) == (0 if attempt else 2)


def asking(script):
    """Return a boss that asks a slow helper in a way that cannot be repeated."""

    @tool(effect="once")
    async def ask() -> str:
        """Ask the helper."""
        return str(await helper.run("hi"))

    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "fine", delay=1000), grace=0)
    return BareAgent("boss", llm=ScriptedLLM(script), tools=[ask], grace=0), helper


@pytest.mark.parametrize("how", ["as_tool", "delegate_to_agent"])
async def test_task_that_had_not_started_runs_after_a_crash(autojump_clock, how):
    """The agent was busy and stopped before the waiting turn. The session stays open, and the next process answers."""
    replies = []

    @tool(effect="idempotent")
    async def linger() -> str:
        """Outlive the other agent where all are cancelled."""
        try:
            await trio.sleep(100)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(0.5)
        return "over"

    def agents(delay):
        worker = BareAgent(
            "worker", llm=ScriptedLLM(lambda _: "fine", delay=delay), max_concurrent_sessions=1
        )
        if how == "as_tool":
            ask, tools = ToolCall("worker", {"task": "x"}), [worker.as_tool()]
        else:
            ask, tools = ToolCall(how, {"agent": "worker", "task": "x"}), delegation_tools()

        def answer(chat):
            last = chat.messages[-1]
            return f"heard {last.parts[0].text}" if last.role == "tool" else [ask, ToolCall("linger", {})]

        lead = BareAgent("lead", llm=ScriptedLLM(answer, keep=0), tools=[*tools, linger])
        lead.on_session(lambda session: session.on_conversation(lambda reply: replies.append(reply.text)))
        return worker, lead

    async with MemoryJournal().running() as journal:
        with trio.move_on_after(5):
            async with open_runtime(journal=journal) as runtime, trio.open_nursery() as nursery:
                worker, lead = [await runtime.start(agent) for agent in agents(1000)]
                await worker.create_session("ada", "keep busy")
                nursery.start_soon(lead.run, "go")
                await trio.sleep(1)
                seen = worker._opener.running.inbox.statistics()
                assert (seen.claimed, seen.waiting) == (1, 1)
        (child,) = [each for each in await journal.sessions("worker") if each.parent_id is not None]
        assert (child.unfinished, child.closed) == (1, False)
        assert not any(
            isinstance(each, MessageEndRecord | SessionClosedRecord)
            for each in await journal.load(child.session_id)
        )
        async with open_runtime(journal=journal) as runtime:
            for agent in agents(1):
                await runtime.start(agent)
            await trio.sleep(200)
        assert replies == ["heard fine"]
        assert await journal.unfinished("worker") == await journal.unfinished("lead") == []


async def test_child_session_records_its_answer(autojump_clock):
    """The outcome is recorded after the answer, in the same step as the end of the message."""
    async with MemoryJournal().running() as journal:
        helper = BareAgent("helper", llm=ScriptedLLM(["fine"]))
        llm = ScriptedLLM([ToolCall("helper", {"task": "x"}, "c1"), "done"])
        boss = BareAgent("boss", llm=llm, tools=[helper.as_tool()])
        async with open_runtime(journal=journal) as runtime:
            await runtime.start(boss)
            session = await boss.create_session("ada", "go", session_id="s")
            await session.wait_idle()
        *_, answered, _, closed = await journal.load("@boss/s/c1/helper")
        assert answered == TaskOutcomeRecord(message_id="@boss/s/c1/helper/task", text="fine")
        assert isinstance(closed, SessionClosedRecord)


async def test_imported_session_tree_resumes_separately_from_the_original(autojump_clock):
    """Sessions imported under new ids keep their parents and children, and receive only results of their own tasks."""

    def agents(delay):
        helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "fine", delay=delay))
        return BareAgent("boss", llm=ScriptedLLM(lambda chat: f"heard: {last_text(chat)}", keep=0)), helper

    async with MemoryJournal().running() as journal:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block fails
            async with open_runtime(journal=journal) as runtime:
                boss, _ = [await runtime.start(agent) for agent in agents(delay=3600)]
                session = await boss.create_session("ada", session_id="p")
                await session.delegate("helper", "do it")
                await trio.sleep(1)
                raise ZeroDivisionError
        async with MemoryJournal().running() as other:
            await other.acquire()
            copies = with_new_ids(await read_sessions(journal))
            await write_sessions(other, copies)
            async with open_runtime(journal=other) as runtime:
                boss, _ = [await runtime.start(agent) for agent in agents(delay=1)]
                (copy,) = [each.session_id for each in copies if each.agent == "boss"]
                session = await boss.open_session(copy)
                await trio.sleep(5)
                assert "done by agent 'helper':\nfine" in session.history[-1].text
                assert await other.unfinished("helper") == await other.unfinished("boss") == []


async def test_undeliverable_task_result_is_a_dead_letter(autojump_clock, caplog):
    """The parent is loaded from the journal, and a user's function fails for it: the result is kept for operators."""

    def helper(delay):
        return BareAgent("helper", llm=ScriptedLLM(lambda _: "42", delay=delay))

    async with MemoryJournal().running() as journal:
        async with open_runtime(journal=journal) as runtime:
            lead = await runtime.start(BareAgent("lead", llm=ScriptedLLM(["heard"]), grace=0))
            await runtime.start(helper(1000))
            parent = await lead.create_session("ada", session_id="d")
            await parent.delegate("helper", "dig", task_id="t")
        async with open_runtime(journal=journal) as runtime:
            lead = BareAgent("lead", llm=ScriptedLLM(["heard"]))

            @lead.on_session
            def fail(_session):
                raise ValueError("no handlers today")

            async with runtime.starting():
                await runtime.start(lead)
                await runtime.start(helper(1))
            await trio.sleep(10)
            (letter,) = runtime.dead_letters
    assert (letter.actor, letter.reason) == ("lead", "it was not taken")
    assert letter.payload.text == "Task t was done by agent 'helper':\n42"
    assert "its result could not be sent to session" in caplog.text
