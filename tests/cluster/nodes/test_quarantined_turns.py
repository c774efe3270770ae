"""Long turns on two nodes that are killed again and again, also with a message among them that kills its node."""

import os
import sys
from contextlib import suppress

import attrs
import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from actgent import ActorFailed, ServerUnreachable
from actgent.journal.postgres.cluster_tables_reader import read_dead

from .conversations import PATIENCE

TURNS = 24
TURN_SECONDS = 20 if os.environ.get("ACTGENT_SOAK") else 5
"""Seconds that a model takes for an answer."""
REPORT = os.environ.get("ACTGENT_SOAK")
"""Write the time of the last answer to the error output."""
MAX_EXTRA_SECONDS = 40 if os.environ.get("ACTGENT_SOAK") else 120
"""Maximum seconds from the messages to the last answer, in addition to the time of a turn."""
KILL_INTERVAL_SECONDS = 5
KILLS = 3


async def keep_alive(nodes, name, ready):
    """Run a node, and start the next one after its death. `ready` holds the names of the nodes that run."""
    for number in range(100):
        with suppress(RuntimeError):  # it may be killed before it is ready
            await nodes.start(f"{name}{number}")
            ready.add(name)
        while nodes.running[f"{name}{number}"].poll() is None:  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.05)
        ready.discard(name)


async def kill_all(nodes, ready, names):
    """Kill all nodes that run, `KILLS` times, each time after the nodes with these names are ready."""
    for _ in range(KILLS):
        await trio.sleep(KILL_INTERVAL_SECONDS)
        while not ready.issuperset(names):  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.05)
        for node in list(nodes.running.values()):
            if node.poll() is None:
                node.kill()


@attrs.define
class Asking:
    """Senders of one message each, and the time of each answer."""

    agent: object
    begun: float = attrs.field(factory=trio.current_time)
    answered_after: dict = attrs.field(factory=dict)
    """Seconds until the answer, by text."""
    failed: list = attrs.field(factory=list)
    gave_up: list = attrs.field(factory=list)

    async def run(self, session, text):
        """Wait for the answer by long polls."""
        message_id = f"m-{text}".replace(" ", "-")
        while text not in self.answered_after:
            try:
                reply = await self.agent.run(text, session=session, message_id=message_id)
            except ActorFailed:
                self.failed.append(text)
                return
            except ServerUnreachable as error:
                self.gave_up.append(str(error)[:200])
            else:
                self.note(text, reply)

    async def listen(self, session, text):
        """Wait for the answer by the event stream."""
        received = trio.Event()

        def note(reply):
            self.note(text, reply)
            received.set()

        def note_failure(failure):
            self.gave_up.append(str(failure)[:200])
            received.set()

        session.on_conversation(note)
        session.on_exception(note_failure)
        await session.chat(text, message_id=f"m-{text}".replace(" ", "-"))
        await received.wait()

    def note(self, text, reply):
        assert reply.text == f"you said: {text}"
        self.answered_after[text] = trio.current_time() - self.begun


@pytest.mark.parametrize("poison", [False, True], ids=["killed", "poisoned"])
async def test_long_turns_are_answered_soon_after_deaths(nodes, poison):
    """Suspects are opened within seconds, so the last answer comes within 40 s in addition to the time of the turn.

    In concurrent tests the restart of a node takes longer. A message that kills its node is dead-lettered,
    and no other message is. All other senders get their answers.

    With such a message, the test kills only both nodes at once: two deaths of single nodes with the same suspect
    alone are those of a message that kills its node.
    """
    ready = set()
    nodes.options = (f"slowly={TURN_SECONDS}",)
    async with trio.open_nursery() as nursery:
        for name in "ab":
            nursery.start_soon(keep_alive, nodes, name, ready)
        while len(nodes.ports) < 2:  # noqa: ASYNC110 - another process changes this state
            await trio.sleep(0.05)
        await nodes.settle(["a0", "b0"])
        async with nodes.cluster.connect(retry_timeout=PATIENCE) as client:
            agent = client.agent("clerk")
            sessions = [await agent.create_session("ada") for _ in range(TURNS)]
            killing = await agent.create_session("ada")
            asking = Asking(agent)
            with trio.fail_after(2 * PATIENCE):
                async with trio.open_nursery() as turns:
                    for number, session in enumerate(sessions):
                        ask = asking.listen if number % 2 else asking.run
                        turns.start_soon(ask, session, f"slowly {number}")
                    while len(nodes.calls) < TURNS:  # noqa: ASYNC110 - another process changes this state
                        await trio.sleep(0.05)
                    turns.start_soon(kill_all, nodes, ready, "ab" if poison else "")
                    if poison:
                        turns.start_soon(asking.run, killing, "kill")
            if REPORT:
                last = max(asking.answered_after.values())
                line = (
                    f"{last:.1f} s, {len(nodes.running)} processes, {sum(nodes.calls.values())} model calls\n"
                )
                sys.stderr.write(line)
        nursery.cancel_scope.cancel()
    dead = await read_dead(nodes.cluster.journal)
    assert [each.message_id for each in dead] == ["m-kill"] * poison
    assert asking.failed == ["kill"] * poison
    assert asking.gave_up == []
    assert len(asking.answered_after) == TURNS
    assert max(asking.answered_after.values()) < TURN_SECONDS + MAX_EXTRA_SECONDS
