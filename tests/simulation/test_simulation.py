"""Simulation of programs by seeds: repeatable, without false alarms, and able to find planted defects."""

import itertools
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import attrs
import pytest
import trio

from actgent import ConfigurationError
from actgent.agents.agent_construction import AgentModels
from actgent.approvals import Approval
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.record_types import (
    ApprovalRequestRecord,
    MessageAcceptedRecord,
    MessageEndRecord,
    SessionClosedRecord,
    SessionCreatedRecord,
)
from actgent.journal.session_list_queries import SessionKey
from actgent.messages import Message, Sender, Text
from actgent.runtime.runtime import Runtime
from actgent.runtime.sessions import session_table
from actgent.runtime.sessions.session_opener import SessionOpener
from actgent.runtime.sessions.tag_and_metadata_changes import Annotator
from actgent.simulation import Settings, Story, play
from actgent.simulation.caller_observations import CallerObservations
from actgent.simulation.failing_run_shrinking import problem_kinds, shrink
from actgent.simulation.fault_and_workload_plan import FAULTS, draw_plan
from actgent.simulation.invariant_checks import check_run
from actgent.simulation.run_report import ToolRun, render_story
from actgent.simulation.seeded_choices import Choices
from actgent.simulation.simulated_storage import Storage
from actgent.simulation.simulated_world import START, SimulatedEvent, World
from actgent.simulation.single_seed_run import check_program
from actgent.tools.tool_execution import Batch

from .programs import (
    CLERK,
    COUNTER,
    DOUBLE_REFUND,
    ISOLATED,
    NETWORK,
    OWN_TASKS,
    PIPELINE,
    PLAIN,
    SIMULATED_NETWORK,
    TEAM,
    WORKSHOP,
)

SOAK = bool(os.environ.get("ACTGENT_SOAK"))
SEEDS = {"memory": 5_000 if SOAK else 60, "sqlite": 1_000 if SOAK else 15}


@pytest.fixture
def settings(tmp_path):
    """Make settings for the text of a program."""

    def make(text, **changes):
        path = tmp_path / "app.py"
        path.write_text(text, encoding="utf-8")
        return Settings(program=path, **changes)

    return make


@pytest.mark.parametrize("journal", ["memory", "sqlite"])
def test_seeds_are_repeatable_and_raise_no_false_alarm(settings, journal):
    """Each seed does the same twice, and a correct program has no problem under any fault."""
    chosen, kills = settings(CLERK, journal=journal), 0
    for seed in range(SEEDS[journal]):
        outcome = play(seed, chosen)
        assert not outcome.problems, (seed, outcome.problems, render_story(outcome.story.events))
        assert seed % 3 or play(seed, chosen).digest == outcome.digest, seed
        kills += outcome.story.kills
    assert kills > SEEDS[journal] / 5


def test_seeds_reach_each_kind_of_event(settings):
    """Together, the seeds have every kind of fault, and approvals, delegation and answers."""
    chosen, kinds, agents = settings(CLERK), set(), set()
    for seed in range(SEEDS["memory"]):
        outcome = play(seed, chosen)
        kinds |= set(outcome.counts)
        agents |= {agent for agent, _ in outcome.story.found}
    assert {
        "kill",
        "stop",
        "journal",
        "tool fault",
        "approval",
        "interrupt",
        "close",
        "failure",
        "reply",
        "result",
    } <= kinds
    assert agents == {"clerk", "helper"}


def test_seed_is_the_same_in_another_process(settings):
    """The hash seed of Python, memory addresses and the time do not matter."""
    chosen = settings(CLERK)
    code = f"""
from pathlib import Path
from actgent.runtime.sessions import session_table
from actgent.simulation import Settings, play
print(*[play(seed, Settings(program=Path({str(chosen.program)!r}))).digest for seed in range(6)])
"""
    digests = [play(seed, chosen).digest for seed in range(6)]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == digests
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize(
    ("program", "always", "journal", "seeds"),
    [
        (COUNTER, "close,slow,stop", "memory", (57, 182, 549)),
        (COUNTER, "restart,slow,cancel", "memory", (298, 381, 564)),
        (WORKSHOP, "", "memory", (1855,)),
        (WORKSHOP, "", "sqlite", (936, 1889)),
        (TEAM, "", "memory", (5, 6, 69, 197, 563, 1498)),
        (TEAM, "restart,task", "memory", (73, 74, 261)),
        (TEAM, "task,interrupt,restart", "memory", (804,)),
        (PIPELINE, "", "memory", (171,)),
        (PLAIN, "memory,erase,slow", "memory", (963,)),
        (ISOLATED, "", "memory", (125, 165)),
        (OWN_TASKS, "", "memory", (17,)),
        (OWN_TASKS, "restart,task", "memory", (762,)),
    ],
    ids=[
        "close",
        "restart",
        "workshop",
        "sqlite",
        "team",
        "stopped team",
        "interrupted team",
        "pipeline",
        "plain",
        "isolated",
        "own tasks",
        "stopped own tasks",
    ],
)
def test_seeds_that_failed_once(settings, program, always, journal, seeds):
    """These seeds found faults of actgent, or false alarms of the checks. They have no problem any more."""
    chosen = settings(program, journal=journal, always=frozenset(filter(None, always.split(","))))
    for seed in seeds:
        assert play(seed, chosen).problems == [], seed


@pytest.mark.parametrize(
    "faults", [(), *[(fault,) for fault in FAULTS]], ids=lambda faults: "".join(faults) or "none"
)
def test_faults_can_be_chosen(settings, faults):
    """A seed has no faults but the chosen ones."""
    kinds = {
        "kill": "kill",
        "stop": "stop",
        "tool": "tool fault",
        "journal": "journal",
        "interrupt": "interrupt",
        "close": "close",
    }
    for seed in range(4):
        outcome = play(seed, settings(CLERK, faults=frozenset(faults)))
        assert not outcome.problems
        assert not {name for fault, name in kinds.items() if fault not in faults} & set(outcome.counts)


def test_each_seed_can_have_chosen_kinds():
    """With `always`, each seed has these kinds of faults, and no other choice of its plan changes."""
    usual, chosen = Settings(program=Path()), Settings(program=Path(), always=frozenset(["close", "erase"]))
    had = list[bool]()
    for seed in range(40):
        before, after = (draw_plan(Choices(seed), each, 0) for each in (usual, chosen))
        assert after.chance["close"]
        assert after.chance["erase"]
        had.append(bool(before.chance["close"] and before.chance["erase"]))
        others = {kind: before.chance[kind] for kind in FAULTS if kind not in chosen.always}
        assert attrs.evolve(after, chance=before.chance) == before
        assert {kind: after.chance[kind] for kind in others} == others
    assert not all(had)


def test_active_approvers_decide_more(settings):
    """The kind `approver` happens on request only. Its approvers decide more approvals before the last life."""

    def count_decisions(always):
        chosen = settings(COUNTER, faults=frozenset(["approver", "downtime"]), always=frozenset(always))
        stories = [play(seed, chosen).story.events for seed in range(12)]
        return sum(event.kind == "approval" and event.at < 30 for events in stories for event in events)

    assert not any(
        draw_plan(Choices(seed), Settings(program=Path()), 0).chance["approver"] for seed in range(9)
    )
    assert count_decisions(["approver"]) > 2 * count_decisions([])


def test_double_refund_is_found_and_shrunk(settings):
    """The story of a planted double effect is short, and each of its choices is necessary."""
    chosen = settings(DOUBLE_REFUND, faults=frozenset(["kill", "stop", "model", "tool", "journal", "cancel"]))
    failed = next(each for each in (play(seed, chosen) for seed in range(200)) if each.problems)
    assert "each_call_pays_once: s" in failed.problems[0]
    best, left_out = shrink(failed, chosen)
    assert problem_kinds(best) == problem_kinds(failed)
    for event in best.happened:
        assert not problem_kinds(play(best.seed, chosen, [*left_out, event])) & problem_kinds(best)
    lines = render_story(best.story.events)
    assert len(lines) <= 15
    text = "\n".join(lines)
    for words in (
        "ada says",
        "the model calls ",
        " refund(",
        "THE PROCESS IS KILLED",
        "life 2 begins",
        "refund has taken effect",
    ):
        assert words in text
    assert play(failed.seed, chosen, left_out).digest == best.digest


def test_story_has_one_line_for_an_event_and_its_direct_consequence():
    """A crash and the next start, a tool and its effect, and a call and its error share a line. Other events have their own."""
    events = [
        SimulatedEvent(1.0, "model", "the model calls book(order='1'), sign(order='(1')"),
        SimulatedEvent(1.0, "write", "4+2", False),
        SimulatedEvent(1.5, "result", "sign in s0: error"),
        SimulatedEvent(2.0, "tool", "book begins, in s0"),
        SimulatedEvent(2.0, "tool", "book has taken effect"),
        SimulatedEvent(2.0, "kill", "THE PROCESS IS KILLED at a random moment"),
        SimulatedEvent(3.0, "life", "life 2 begins"),
        SimulatedEvent(3.0, "tool", "book begins, in s0"),
        SimulatedEvent(3.0, "tool", "seal has taken effect"),
        SimulatedEvent(3.0, "life", "life 3 begins"),
        SimulatedEvent(4.0, "result", "seal in s0: error"),
    ]
    assert [line.split(maxsplit=1) for line in render_story(events)] == [
        ["1.000", "the model calls book(order='1'), sign(order='(1'); sign in s0: error at 1.500"],
        ["2.000", "book begins, in s0; book has taken effect"],
        ["2.000", "THE PROCESS IS KILLED at a random moment; life 2 begins at 3.000"],
        ["3.000", "book begins, in s0"],
        ["3.000", "seal has taken effect"],
        ["3.000", "life 3 begins"],
        ["4.000", "seal in s0: error"],
    ]


def test_kinds_on_request_change_the_start_and_the_metadata(settings):
    """With `order`, agents start in different orders. With `annotate`, callers add metadata, which no correct run loses."""
    chosen, orders, count = settings(CLERK, faults=frozenset(["order", "annotate"])), set(), 0
    chosen = attrs.evolve(chosen, always=chosen.faults)
    start = Runtime.start

    async def note_start(runtime, agent):
        names.append(agent.name)
        return await start(runtime, agent)

    for seed in range(8):
        names = []
        with mock.patch.object(Runtime, "start", note_start):
            outcome = play(seed, chosen)
        assert not outcome.problems
        orders.add(names[0])
        count += outcome.counts["annotate"]
    assert orders == {"clerk", "helper"}
    assert count > 0


def test_lost_annotation_is_found(settings, monkeypatch):
    """A change of metadata that returns before its write is reported."""

    async def annotate(self, key, change):
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(Annotator, "annotate", annotate)
    chosen = settings(PLAIN, faults=frozenset(["annotate"]), always=frozenset(["annotate"]))
    assert any("annotate() of" in text for seed in range(8) for text in play(seed, chosen).problems)


def test_turn_during_on_session_is_found(settings, monkeypatch):
    """A turn that begins before the `on_session` handler of its session has returned is reported."""
    call = SessionOpener.call_on_session

    async def call_later(opener, context):
        trio.lowlevel.spawn_system_task(call, opener, context)
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SessionOpener, "call_on_session", call_later)
    chosen = settings(PLAIN, faults=frozenset(["handler"]), always=frozenset(["handler"]))
    assert any(
        "before its on_session handler" in text for seed in range(20) for text in play(seed, chosen).problems
    )


def test_lost_write_is_found(settings, monkeypatch):
    """A journal that confirms a write without storing it is reported."""
    write, count = MemoryJournal._write, 0

    async def lose_some(self, rows, heads, epoch):
        nonlocal count
        count += 1
        if count % 5:
            await write(self, rows, heads, epoch)

    monkeypatch.setattr(MemoryJournal, "_write", lose_some)
    chosen = settings(CLERK)
    assert any(play(seed, chosen).problems for seed in range(30))


def test_wrong_status_after_a_crash_is_found(settings, monkeypatch):
    """A `once` call that began before a crash must not be reported as cancelled."""
    set_result = Batch.set_result

    def call_it_cancelled(self, index, result):
        set_result(self, index, result)
        if result is None:
            self._finished[index] = attrs.evolve(self._finished[index], status="cancelled")

    monkeypatch.setattr(Batch, "set_result", call_it_cancelled)
    chosen = settings(CLERK)
    problems = (problem for seed in range(150) for problem in play(seed, chosen).problems)
    assert any("is reported as cancelled, but began" in problem for problem in problems)


def test_network_is_refused(settings):
    """A tool that opens a connection fails with the remedy; with a simulated body it succeeds."""
    chosen = settings(NETWORK, faults=frozenset())
    statuses = [
        event.text for seed in range(8) for event in play(seed, chosen).story.events if event.kind == "result"
    ]
    assert statuses
    assert all(text.endswith("error") for text in statuses)
    chosen = settings(SIMULATED_NETWORK, faults=frozenset())
    runs = [
        run
        for seed in range(8)
        for session in play(seed, chosen).story.sessions()
        for run in session.effects("fetch")
    ]
    assert runs


def test_world_leaves_the_process_as_it_was(settings):
    """Time, random numbers, threads, sockets and the models of agents are the real ones after killed lives."""

    def real_parts():
        return (
            time.time,
            time.monotonic,
            os.urandom,
            trio.to_thread.run_sync,
            socket.socket.connect,
            AgentModels.resolve,
            session_table.MAX_LOADED_IDLE,
        )

    before, state, kills = real_parts(), random.getstate(), 0
    for seed in range(6):
        kills += play(seed, settings(CLERK)).story.kills
    assert kills
    assert real_parts() == before
    assert random.getstate() == state


def test_downtime_delays_the_next_life(settings):
    """After a life, the process may be down for up to an hour, in which the clock runs."""
    events = [play(seed, settings(PLAIN, faults=frozenset(["downtime"]))).story.events for seed in range(20)]
    down = [
        (event, following.at - event.at)
        for story in events
        for event, following in itertools.pairwise(story)
        if "the process is down" in event.text
    ]
    assert down
    for event, seconds in down:
        assert event.text == f"the process is down for {seconds:g} s"
    assert {round(seconds) for _, seconds in down} == {1, 60, 4000}


def answered_alone(events):
    """Return True if no model of one session is asked while a turn of another session runs."""
    running = None
    for event in events:
        session_id = event.text.partition(":")[0].partition(" ")[0]
        if event.kind == "request":
            if running not in (None, session_id):
                return False
            running = session_id
        elif event.kind in ("reply", "failure", "life"):
            running = None
    return True


def test_concurrency_of_one_lets_other_sessions_wait(settings):
    """With the fault `concurrency`, the turns of two sessions of one agent never overlap."""

    def stories(*faults):
        chosen = settings(PLAIN, faults=frozenset(faults))
        kinds = [draw_plan(Choices(seed), chosen, 0).chance["concurrency"] for seed in range(30)]
        seeds = [seed for seed, chance in enumerate(kinds) if bool(chance) == bool(faults)]
        return [play(seed, chosen).story.events for seed in seeds[:10]]

    assert all(map(answered_alone, stories("concurrency")))
    assert not all(map(answered_alone, stories()))


def test_handlers_take_time_and_open_other_sessions(settings):
    """With the fault `handler`, handlers wait, and `on_session` opens another session of the agent."""
    happened = {
        name.rpartition(" of ")[2].partition(" ")[2]
        for seed in range(20)
        for name, _ in play(seed, settings(PLAIN, faults=frozenset(["handler"]))).happened
        if name.startswith("handler of ")
    }
    assert happened == {"takes time", "opens another session"}


def test_pipeline_keeps_its_own_model(settings):
    """The model of a pipeline calls no provider, so the simulation does not replace it. Each run begins with its steps."""
    texts = [event.text for seed in range(8) for event in play(seed, settings(PIPELINE)).story.events]
    assert any(text.startswith("run_steps begins") for text in texts)
    assert not any(text.startswith("the model calls run_steps") for text in texts)


def test_one_agent_has_all_sessions_in_some_seeds(settings):
    """The sessions of a seed belong to one agent or to several."""
    agents = [
        {agent for agent, session_id in play(seed, settings(CLERK, faults=frozenset())).story.found}
        for seed in range(12)
    ]
    assert {"clerk"} in agents
    assert {"helper"} in agents
    assert {"clerk", "helper"} in agents


def test_processes_are_killed_during_calls(settings):
    """Some crashes happen at a write while a call of some kind runs."""
    chosen = settings(PLAIN, faults=frozenset(["kill"]))
    texts = [event.text for seed in range(40) for event in play(seed, chosen).story.events]
    assert "THE PROCESS IS KILLED during a call of a caller" in texts


def test_moments_name_the_running_calls():
    """A write is a moment of each kind of running calls. The begin of a call is a moment, too."""
    world, moments = World(Choices(0)), []
    with world.watching(moments.append), world.running_call("close"):
        world.note_write("before write")
        with world.running_call("task"):
            pass
        world.note_write("after write")
    world.note_write("before write")
    assert moments == [
        "begin close",
        "before write",
        "during close",
        "begin task",
        "after write",
        "during close",
    ]


def test_work_after_a_close_is_found():
    """A message that is accepted after the record of the close is reported."""
    message = Message(session_id="s0", sender=Sender("ada"), parts=(Text("hello"),))
    story = Story(seed=0)
    story.session("clerk", "s0").records = [
        SessionCreatedRecord(owner=Sender("ada"), created_at=0.0),
        SessionClosedRecord(),
        MessageAcceptedRecord(message=message),
        MessageEndRecord(message_id=message.id),
    ]
    assert [*check_run(story, CallerObservations(), {})] == ["s0 has a MessageAcceptedRecord after its close"]


@pytest.mark.parametrize("is_late", [True, False])
def test_approval_of_a_call_that_took_effect_is_found(is_late):
    """A decision about a call may only be requested before the effect of the call."""
    approval = Approval(
        id="a1", session_id="s0", agent="clerk", call_id="c1", tool_name="book", arguments={}, question="?",
        created_at=START + (2.0 if is_late else 0.5),
    )  # fmt: skip
    story = Story(seed=0)
    session = story.session("clerk", "s0")
    session.records = [
        SessionCreatedRecord(owner=Sender("ada"), created_at=0.0),
        ApprovalRequestRecord(approval=approval),
    ]
    run = ToolRun(
        agent="clerk", session="s0", tool="book", call_id="c1", arguments={}, idempotency_key="k",
        process_number=1, began_at=1.0,
    )  # fmt: skip
    session.began, session.done = [run], [run]
    problems = [*check_run(story, CallerObservations(), {("clerk", "book"): "idempotent"})]
    assert any("c1 of s0, but its tool had taken effect" in each for each in problems) == is_late


@pytest.mark.parametrize("is_open", [True, False])
def test_open_session_below_a_closed_parent_is_found(is_open):
    """The check at the end of a life names an open child session of a closed session."""
    storage = Storage(World(Choices(0)), "memory", 0.0)
    heads = [
        SimpleNamespace(session_id="s0", parent_agent=None, parent_id=None, closed=True),
        SimpleNamespace(session_id="child", parent_agent="clerk", parent_id="s0", closed=not is_open),
        SimpleNamespace(session_id="s1", parent_agent=None, parent_id=None, closed=False),
    ]
    stored = {SessionKey("clerk", each.session_id): each for each in heads}
    storage._stored = SimpleNamespace(_stored_heads=stored)
    assert [(key.session_id, parent) for key, parent in storage.find_orphans()] == [("child", "s0")] * is_open


def test_killed_handlers_cause_no_warning(settings, recwarn):
    """A life that is killed between two handlers leaves a coroutine, which Python does not report."""
    kills = [
        play(seed, settings(PLAIN, faults=frozenset(["kill", "handler"]))).story.events for seed in range(30)
    ]
    assert any("after a handler was called" in event.text for events in kills for event in events)
    assert [str(each.message) for each in recwarn] == []


def test_left_out_choice_changes_no_other():
    """A choice depends on its name and number only."""
    one, other = Choices(3), Choices(3, frozenset([("b", 0)]))
    assert [one.fraction("a") for _ in range(3)] == [other.fraction("a") for _ in range(3)]
    assert one.happens("b", 1.0)
    assert not other.happens("b", 1.0)
    assert one.fraction("c") == other.fraction("c")
    assert [one.happens("b", 0.5) for _ in range(20)] == [other.happens("b", 0.5) for _ in range(20)]
    assert one.happened[0] == ("b", 0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "defines no agent at its top level"),
        ("import nothing_of_this_name\n", "cannot be run: ModuleNotFoundError"),
        (NETWORK + "\nsimulated('fetch')\n", "must be a tool, not 'fetch'"),
    ],
)
def test_program_that_cannot_be_simulated(settings, text, words):
    """The error names the file and the remedy."""
    with pytest.raises(ConfigurationError, match=words):
        check_program(settings(text))


def test_missing_program(tmp_path):
    """The error of a missing file, or of a folder, names the expected file."""
    with pytest.raises(ConfigurationError, match="no such file"):
        check_program(Settings(program=tmp_path / "app.py"))
    with pytest.raises(ConfigurationError, match="is a folder; expected a Python file that defines an agent"):
        check_program(Settings(program=tmp_path))
