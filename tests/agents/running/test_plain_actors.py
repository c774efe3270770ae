"""Plain actors and agents in one runtime share addresses, supervision, shutdown, and the list of dead letters."""

import re

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actgent import BareAgent, ScriptedLLM, ToolCall, ToolResult, open_runtime, tool
from actgent.actors import Actor, ActorContext, Supervision
from actgent.errors import (
    ActorFailed,
    ConfigurationError,
    DeadLetterGone,
    DeadlockDetected,
    NotRunning,
    Stopped,
    UsageError,
)
from actgent.testing import assert_no_leaks


class Counter(Actor):
    """An actor that adds up its messages."""

    def __init__(self) -> None:
        self.total = 0

    async def receive(self, payload: object) -> object:
        if isinstance(payload, Exception):
            raise payload
        self.total += payload
        return self.total


async def slow(chat):
    await trio.sleep(1)
    return f"re: {chat.messages[-1].parts[-1].text}"


async def never(chat):
    await trio.sleep_forever()


class Clerk(Actor):
    """Hands each text on to an agent, by the name that it has in the runtime."""

    def __init__(self, runtime, name):
        self.runtime = runtime
        self.agent = name

    async def receive(self, payload):
        return str(await self.runtime.find(self.agent).ask(payload))


async def test_actors_and_agents_have_the_same_ask(autojump_clock):
    """Both are found by name, accept `tell` and `ask`, and are counted."""
    async with assert_no_leaks(), open_runtime() as runtime:
        await runtime.start(BareAgent("tutor", llm=ScriptedLLM(slow)))
        counter = await runtime.spawn(Counter, name="counter")
        await counter.tell(2)
        assert runtime.find("counter") is counter
        assert await runtime.find("counter").ask(3) == 5
        assert str(await runtime.find("tutor").ask("hi")) == "re: hi"
        assert runtime.find("nobody") is None
        assert runtime.count == 2
        assert repr(runtime) == "<Runtime: 1 agent, 1 actor, 0 dead letters>"


async def test_names_are_shared(autojump_clock):
    """An agent and an actor with one name would have one address: the second is rejected, and the first keeps running."""
    async with open_runtime() as runtime:
        await runtime.spawn(Counter, name="a")
        with pytest.raises(ConfigurationError, match="'a' runs here already"):
            await runtime.start(BareAgent("a", llm=ScriptedLLM(["x"])))
        agent = await runtime.start(BareAgent("b", llm=ScriptedLLM(["x"])))
        with pytest.raises(ConfigurationError, match="'b' is running already"):
            await runtime.spawn(Counter, name="b")
        assert str(await agent.run("hi")) == "x"


async def test_draining_actors_may_ask_agents(autojump_clock):
    """Messages that an actor accepted are processed, with the help of an agent that accepts no other messages."""
    answers = []

    class Asking(Clerk):
        async def receive(self, payload):
            answers.append(await super().receive(payload))

    async with open_runtime() as runtime:
        await runtime.start(BareAgent("tutor", llm=ScriptedLLM(slow)))
        clerk = await runtime.spawn(lambda: Asking(runtime, "tutor"))
        for text in ("one", "two"):
            await clerk.tell(text)
    assert answers == ["re: one", "re: two"]
    assert runtime.dead_letters == ()
    with pytest.raises(UsageError, match="closed or closing"):
        await runtime.spawn(Counter)


async def test_two_poison_messages_stop_only_their_actor(autojump_clock):
    """By default the actor stops, and a runtime of 50 agents answers as before."""
    async with open_runtime() as runtime:
        agents = [
            await runtime.start(BareAgent(f"a{n}", llm=ScriptedLLM(lambda _: "yes"))) for n in range(50)
        ]
        counter = await runtime.spawn(Counter, name="counter")
        for _ in range(2):
            await counter.tell(KeyError("poison"))
        await trio.sleep(120)
        assert [str(await agent.run("hi")) for agent in agents] == ["yes"] * 50
        assert runtime.find("counter") is None
        assert [letter.actor for letter in runtime.dead_letters] == ["counter"] * 2


async def test_an_actor_that_fails_too_often_ends_the_runtime_with_its_error(autojump_clock):
    """The root has no parent: agents stop, waiting callers get the error, and the block raises the cause."""
    outcomes = []
    with pytest.RaisesGroup(pytest.RaisesExc(ActorFailed, match="'counter'.*it failed 2 times")) as raised:
        async with open_runtime(supervision=Supervision(max_restarts=1, escalate=True)) as runtime:
            agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM(never)))
            session = await agent.create_session("ada", "hi")
            session.on_exception(lambda failure: outcomes.append(failure.kind))
            counter = await runtime.spawn(Counter, name="counter")
            await counter.tell(KeyError("x"))
            await trio.sleep_forever()
    assert isinstance(raised.value.exceptions[0].__cause__, KeyError)
    assert outcomes == ["stopped"]


async def test_one_for_all_restarts_an_agent_with_the_actor_that_it_needs(autojump_clock):
    """The agent's turn ends as failed, not as stopped; its sessions stay, and the next message is answered."""
    async with open_runtime(supervision=Supervision(strategy="one_for_all", deliveries=1)) as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM([never, "back"])))
        counter = await runtime.spawn(Counter)
        session = await agent.create_session("ada")
        kinds, replies = [], []
        session.on_exception(lambda failure: kinds.append(failure.error))
        session.on_conversation(lambda reply: replies.append(str(reply)))
        await session.chat("hi")
        await wait_all_tasks_blocked()
        await counter.tell(ValueError())
        await trio.sleep(1)
        assert [type(each) for each in kinds] == [ActorFailed]
        await session.chat("again")
        await session.wait_idle()
        assert replies == ["back"]
        assert runtime.count == 2


async def test_one_for_one_restart_does_not_affect_agents(autojump_clock):
    """By default the turn of an agent continues while an actor restarts."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM(slow)))
        counter = await runtime.spawn(Counter)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.tell, ValueError())
            assert str(await agent.run("hi")) == "re: hi"


async def test_ask_ends_when_its_agent_stops(autojump_clock):
    """The waiting caller gets the error at once, and the agent can be started again under its name."""
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM([never, "hello again"])))
        outcomes = []

        async def ask() -> None:
            with pytest.raises(Stopped) as raised:
                await agent.ref.ask("hi")
            outcomes.append(raised.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            runtime.stop("tutor")
        assert len(outcomes) == 1
        assert trio.current_time() == 0
        assert runtime.find("tutor") is None
        await runtime.start(agent)
        assert str(await agent.ref.ask("hi")) == "hello again"
        runtime.stop("nobody")


async def test_ask_ends_when_its_actor_dies(autojump_clock):
    """An agent's tool that waits for the actor gets the error as its result."""
    async with open_runtime() as runtime:
        clerk = await runtime.spawn(lambda: Clerk(runtime, "tutor"))
        await runtime.start(BareAgent("tutor", llm=ScriptedLLM(never)))
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                with pytest.raises(ActorFailed, match="it was stopped"):
                    await clerk.ask("hi")

            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            clerk.stop()
        assert trio.current_time() == 0


async def test_a_cancelled_spawn_starts_nothing(autojump_clock):
    """The actor does not run, and its name is free."""
    async with open_runtime() as runtime:
        with trio.CancelScope() as scope:
            scope.cancel()
            await runtime.spawn(Counter, name="counter")
        assert scope.cancelled_caught
        assert runtime.find("counter") is None
        assert runtime.count == 0


# --- dead letters ------------------------------------------------------------------------


async def test_messages_of_a_stopped_agent_are_listed_and_resume(autojump_clock):
    """The interrupted turn and the messages queued after it are listed once each, in order of arrival."""
    replies = []
    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM([never, "1", "2"])))
        agent.on_session(lambda session: session.on_conversation(lambda reply: replies.append(str(reply))))
        session = await agent.create_session("ada", session_id="s")
        for text in ("first", "second"):
            await session.chat(text)
        await wait_all_tasks_blocked()
        runtime.stop("tutor")
        await wait_all_tasks_blocked()
        letters = runtime.dead_letters
        assert [(each.actor, each.payload.parts[0].text, each.reason) for each in letters] == [
            ("tutor", "first", "it was stopped"),
            ("tutor", "second", "it was stopped"),
        ]
        with pytest.raises(ActorFailed, match="no actor of this name is running"):
            await runtime.send_again(letters[0])
        await runtime.start(agent)
        for letter in letters:
            await runtime.send_again(letter)
        session = await agent.open_session("s", owner="ada")
        await session.wait_idle()
        assert [each.parts[0].text for each in session.history][::2] == ["first", "second"]
        assert runtime.dead_letters == ()
        with pytest.raises(DeadLetterGone):
            await runtime.send_again(letters[0])
    assert replies == ["1", "2"]


async def test_message_to_a_stopped_agent_is_a_dead_letter(autojump_clock):
    """The sender gets NotRunning. The next start of the agent can answer the message."""
    texts = []

    def answer(chat):
        texts.append(chat.messages[-1].parts[-1].text)
        return "ok"

    async with open_runtime() as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM(answer)))
        ref = runtime.find("tutor")
        runtime.stop("tutor")
        await wait_all_tasks_blocked()
        with pytest.raises(NotRunning):
            await ref.tell("too late")
        (letter,) = runtime.dead_letters
        assert (letter.actor, letter.payload, letter.reason) == (
            "tutor",
            "too late",
            "the agent is not running",
        )
        await runtime.start(agent)
        await runtime.send_again(letter)
    assert texts == ["too late"]


async def test_a_journal_keeps_the_queue_of_a_stopped_agent(autojump_clock, tmp_path):
    """The next start resumes the queue, so its messages are no dead letters."""
    async with open_runtime(journal=f"sqlite:///{tmp_path}/j.db") as runtime:
        agent = await runtime.start(BareAgent("tutor", llm=ScriptedLLM(never)))
        await agent.create_session("ada", "hi")
        runtime.stop("tutor")
        await trio.sleep(2)
        assert runtime.find("tutor") is None
        assert runtime.dead_letters == ()


async def test_children_of_an_actor_are_found_and_end_with_it(autojump_clock):
    """They are counted with all others."""

    class Parent(Actor):
        async def started(self, context: ActorContext) -> None:
            await context.spawn(Counter, name="child")

    async with open_runtime() as runtime:
        await runtime.spawn(Parent, name="parent")
        await wait_all_tasks_blocked()
        assert runtime.count == 2
        assert await runtime.find("child").ask(1) == 1
        runtime.stop("parent")
        await wait_all_tasks_blocked()
        assert runtime.count == 0


# --- circles -----------------------------------------------------------------------------


async def test_an_ask_cycle_of_actor_and_agent_is_rejected(autojump_clock):
    """The agent's tool asks the actor that waits for the agent: the error is the tool's result, and no caller waits."""
    results = []
    async with open_runtime() as runtime:
        clerk = await runtime.spawn(lambda: Clerk(runtime, "tutor"), name="clerk")

        @tool
        async def ask_clerk() -> str:
            """Ask the clerk."""
            return await clerk.ask("what?")

        def answer(chat):
            last = chat.messages[-1].parts[-1]
            if isinstance(last, ToolResult):
                results.append(str(last.error))
                return "done"
            return ToolCall("ask_clerk", {})

        await runtime.start(BareAgent("tutor", llm=ScriptedLLM(answer), tools=[ask_clerk]))
        assert await clerk.ask("hi") == "done"
    assert trio.current_time() == 0
    assert re.search(
        r"DeadlockDetected.*wait for each other forever: tutor/\S+ -> clerk -> tutor/", results[0]
    )


async def test_an_actor_that_asks_itself_is_rejected(autojump_clock):
    """The actor may ask itself directly or through another actor.

    A `tell` and an `ask` from a separate task are accepted.
    """
    outcomes = []

    class Asking(Actor):
        async def receive(self, payload):
            if payload == "answer":
                return "answered"
            name, *rest = payload
            try:
                outcomes.append(await runtime.find(name).ask(rest or "answer", deadline=5))
            except DeadlockDetected as error:
                outcomes.append(error.path)

    async with open_runtime() as runtime:
        for name in "ab":
            await runtime.spawn(Asking, name=name)
        await runtime.find("a").ask("a")
        await runtime.find("a").ask("ba")
        await runtime.find("a").ask("b")
    assert outcomes == [("a", "a"), ("b", "a", "b"), None, "answered"]
    assert trio.current_time() == 0
