"""How places are shared: between URGENT and other messages, and between owners."""

from collections import Counter
from contextlib import suppress

import pytest
import trio

from actgent import Approve, BareAgent, InboxFull, Priority, ScriptedLLM, ToolCall, open_runtime, tool


def jain(amounts):
    """Jain's index of fairness: 1 where all have the same, 1/n where one has all."""
    return sum(amounts) ** 2 / (len(amounts) * sum(amount**2 for amount in amounts))


class Clerk:
    """A model that counts answers by owner, and concurrent calls."""

    def __init__(self, seconds=1.0):
        self.seconds = seconds
        self.now = self.most = 0
        self.turns = Counter()

    async def __call__(self, chat):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(self.seconds)
        finally:
            self.now -= 1
        self.turns[chat.messages[-1].parts[0].text] += 1
        return "ok"


async def say_on(agent, owner, *, priority="NORMAL", queue=2):
    """Send without a pause: so many messages are always on their way; with one, the next is sent when all has ended."""
    session, places = await agent.create_session(owner), trio.Semaphore(queue)
    session.on_conversation(lambda _: places.release())
    session.on_exception(lambda _: places.release())
    while True:
        await places.acquire()
        if queue == 1:
            await session.wait_idle()
        with suppress(InboxFull):
            await session.chat(owner, priority=priority)


async def serve(agent, seconds, *senders):
    async with agent, trio.open_nursery() as nursery:
        for owner, count, options in senders:
            for _ in range(count):
                nursery.start_soon(lambda o=owner, k=options: say_on(agent, o, **k))
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()


# --- URGENT ----------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
async def test_urgent_turns_exceed_the_limit_by_a_bounded_number(busy, autojump_clock):
    """Of 300 concurrent URGENT messages `max_urgent_sessions` run beyond `max_concurrent_sessions`, at any load."""
    clerk = Clerk()
    async with BareAgent("a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=10, grace=100) as agent:
        if busy:
            for number in range(10):
                await agent.create_session(f"u{number}", "work")
        for number in range(300):
            session = await agent.create_session(f"u{number}")
            await session.chat("now", priority=Priority.URGENT)
        await trio.sleep(0.5)
        assert clerk.now == 26
    assert clerk.most == 26
    assert clerk.turns["now"] == 300


async def test_the_bound_of_urgent_turns_can_be_set(autojump_clock):
    """With `max_urgent_sessions=2` two URGENT turns exceed the limit."""
    clerk = Clerk()
    async with BareAgent(
        "a", llm=ScriptedLLM(clerk), max_concurrent_sessions=1, max_urgent_sessions=2, grace=100
    ) as agent:
        for _ in range(9):
            await (await agent.create_session("ada")).chat("now", priority="URGENT")
    assert clerk.most == 3


@pytest.mark.parametrize("quiet", [1, 4, 12])
@pytest.mark.parametrize(("users", "each"), [(4, 1), (4, 6), (1, 30), (20, 2)])
@pytest.mark.parametrize("places", [1, 4])
async def test_normal_messages_get_a_fifth_of_all_turns(places, users, each, quiet, autojump_clock):
    """Users who send URGENT continuously, in any number of sessions, leave a fifth of the turns to others."""
    if quiet < places:
        pytest.skip("they want less than a fifth")
    clerk = Clerk()
    agent = BareAgent("a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=places, grace=0)
    loud = [(f"loud{user}", each, {"priority": "URGENT"}) for user in range(users)]
    await serve(agent, 100, *loud, *[(f"quiet{user}", 1, {}) for user in range(quiet)])
    share = sum(turns for owner, turns in clerk.turns.items() if owner.startswith("quiet"))
    assert share >= 0.2 * clerk.turns.total()


async def test_normal_message_is_answered_despite_urgent_ones_of_others(autojump_clock):
    """A user with one message is answered promptly while four users mark all their messages URGENT."""
    clerk = Clerk()
    agent = BareAgent("a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=4, grace=0)
    times = []

    async def ask():
        await trio.sleep(50)
        session = await agent.create_session("quiet", "please")
        session.on_conversation(lambda _: times.append(trio.current_time()))

    async with agent, trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(lambda n=number: say_on(agent, f"loud{n}", priority="URGENT"))
        await ask()
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert times == [51]


async def test_interrupting_urgent_messages_keep_the_share_of_others(autojump_clock):
    """Sessions whose normal messages are all interrupted by URGENT ones do not delay other users."""
    clerk = Clerk()
    agent = BareAgent("a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=4, grace=0)

    async def interrupt(number):
        session = await agent.create_session(f"loud{number}")
        session.on_exception(lambda _: None)
        while True:
            if session._context.pending < 4:
                await session.chat("mine")
                await session.chat("loud", priority="URGENT")
            await trio.sleep(0.3)

    async with agent, trio.open_nursery() as nursery:
        for number in range(12):
            nursery.start_soon(interrupt, number % 4)
        for number in range(8):
            nursery.start_soon(say_on, agent, f"quiet{number}")
        await trio.sleep(200)
        nursery.cancel_scope.cancel()
    share = sum(turns for owner, turns in clerk.turns.items() if owner.startswith("quiet"))
    assert share >= 0.2 * clerk.turns.total()


async def test_urgent_turns_are_shared_between_owners(autojump_clock):
    """An owner who fills all slots with URGENT messages does not starve another owner."""
    clerk = Clerk()
    agent = BareAgent(
        "a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=2, max_urgent_sessions=2, grace=0
    )
    urgent = {"priority": "URGENT"}
    await serve(agent, 100, ("loud", 20, urgent), ("ada", 2, urgent), ("bob", 2, urgent))
    assert jain(list(clerk.turns.values())) >= 0.9


# --- owners ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sessions", [[20] + [1] * 19, [20] + [1] * 4, [20, 1, 1, 1, 1, 1], [30, 10, 5, 4, 4], [20, 6]]
)
@pytest.mark.parametrize("queue", [1, 2])
async def test_owners_share_the_slots_of_an_agent(sessions, queue, autojump_clock):
    """With any number of sessions each owner gets as many turns as any other: Jain's index is 0.9."""
    clerk = Clerk()
    agent = BareAgent("a", llm=ScriptedLLM(clerk, keep=0), max_concurrent_sessions=4, grace=0)
    await serve(agent, 100, *[(f"owner{n}", each, {"queue": queue}) for n, each in enumerate(sessions)])
    assert jain([clerk.turns[f"owner{n}"] for n in range(len(sessions))]) >= 0.9
    assert clerk.turns.total() >= 4 * 95, "no place is left empty"


async def test_children_work_for_the_owner_of_their_root(autojump_clock):
    """A helper of two users' sessions divides its slots between these users."""
    turns = Counter()

    async def help_(chat):
        await trio.sleep(1)
        turns[chat.messages[-1].parts[0].text] += 1
        return "helped"

    helper = BareAgent("helper", llm=ScriptedLLM(help_, keep=0), max_concurrent_sessions=2, grace=0)

    def boss(chat):
        last = chat.messages[-1]
        return "done" if last.role == "tool" else ToolCall("helper", {"task": last.parts[0].text})

    agent = BareAgent("boss", llm=ScriptedLLM(boss, keep=0), tools=[helper.as_tool()], grace=0)
    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        await runtime.start(agent)
        for owner, count in (("loud", 20), ("ada", 4), ("bob", 4)):
            for _ in range(count):
                nursery.start_soon(lambda o=owner: say_on(agent, o))
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert jain(list(turns.values())) >= 0.9


async def test_suspended_turns_do_not_reduce_the_fair_share(autojump_clock):
    """One owner has suspended turns, another has turns that released their slots. The other slots are shared as before."""
    turns = Counter()
    helper = BareAgent("helper", llm=ScriptedLLM(lambda _: "helped", delay=3), grace=0)

    @tool(approval=True)
    async def delete() -> str:
        """Delete."""
        return "deleted"

    async def answer(chat):
        await trio.sleep(1)
        last = chat.messages[-1]
        if last.role == "tool":
            return "done"
        text = last.parts[0].text
        turns[text] += 1
        match text:
            case "ada":
                return ToolCall("delete", {})
            case "bob":
                return ToolCall("helper", {"task": "x"})
        return "ok"

    agent = BareAgent(
        "a",
        llm=ScriptedLLM(answer, keep=0),
        tools=[delete, helper.as_tool()],
        max_concurrent_sessions=2,
        grace=0,
    )

    @agent.on_session
    def approve(session):
        async def say_yes(approval):
            await trio.sleep(2)
            await session.answer(approval.id, Approve())

        session.on_approval(lambda approval: nursery.start_soon(say_yes, approval))

    async with open_runtime() as runtime, trio.open_nursery() as nursery:
        await runtime.start(agent)
        for owner, count in (("ada", 10), ("bob", 10), ("eve", 10), ("sam", 10)):
            for _ in range(count):
                nursery.start_soon(lambda o=owner: say_on(agent, o))
        await trio.sleep(200)
        inbox = agent._opener.running.inbox
        assert inbox.statistics().claimed <= 2 + 20
        nursery.cancel_scope.cancel()
    assert jain([turns[owner] for owner in ("ada", "bob", "eve", "sam")]) >= 0.9


async def test_an_owner_that_fills_the_inbox_does_not_block_other_owners(autojump_clock):
    """Inbox slots and turns are given to the owners in rotation.

    80 messages of one owner wait for two slots of each kind.
    """
    clerk = Clerk()
    agent = BareAgent(
        "a", llm=ScriptedLLM(clerk), max_concurrent_sessions=1, inbox_capacity=4, session_inbox_capacity=4
    )
    async with agent, trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(lambda: say_on(agent, "ada", queue=4))
        await trio.sleep(30.5)
        started = trio.current_time()
        session = await agent.create_session("bob", "bob")
        await session.wait_idle()
        assert clerk.turns["bob"] == 1
        assert trio.current_time() - started <= 5
        nursery.cancel_scope.cancel()
