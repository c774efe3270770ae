"""Rare cases of a cluster: closed readers, concurrent operators, record keys, turns that do not end."""

import base64

import pytest
import trio

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent import LLM, BareAgent, ModelResponse, Text
from actgent.cluster.dead_letters import resend_dead_letter
from actgent.errors import JournalError
from actgent.journal.encryption import VARIABLE
from actgent.journal.session_list_queries import SessionKey
from actgent.runtime import runtime as runtimes

PATIENCE = 120
"""Seconds for a whole test on a loaded machine."""


class Held(LLM):
    """A model that repeats the message after the event `goes` is set."""

    name = "held"

    def __init__(self):
        self.goes = trio.Event()
        self.called = trio.Event()
        self.calls = 0

    async def complete(self, chat, on_text=None):
        self.calls += 1
        self.called.set()
        await self.goes.wait()
        return ModelResponse(parts=(Text(f"you said: {chat.messages[-1].parts[0].text}"),))


def free():
    llm = Held()
    llm.goes.set()
    return llm


async def answers_of(session):
    return [each.text for each in await session.history() if each.sender.kind == "assistant"]


async def give_up(runtime, session):
    """Send a message, and record it as a dead letter."""
    await session.chat("2 + 2?", message_id="m1")
    await session.wait_idle()
    await runtime.journal.suspects.dead_letter(SessionKey("clerk", session.id), "m1", "5 processes died")


def bodies_in(cluster):
    """Return the stored bytes of all records in the database."""
    address, _, schema = cluster.journal.partition("?schema=")
    with psycopg.connect(address) as database:
        return [bytes(body) for (body,) in database.execute(f"SELECT body FROM {schema}.steps")]


async def test_concurrent_redeliveries_send_one_message(open_cluster):
    """Both operators get the new id of the message."""
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(BareAgent("clerk", llm=free())) as runtime,
            cluster.connect() as client,
        ):
            session = await client.agent("clerk").create_session("ada")
            await give_up(runtime, session)
            ids = []

            async def retry():
                ids.append(await resend_dead_letter(cluster.journal, cluster.pool, "m1"))

            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(retry)
            await session.wait_idle()
            assert len(set(ids)) == 1
            messages = [each.id for each in await session.history() if each.sender.kind == "user"]
            assert messages == ["m1", ids[0]]
            assert len(await answers_of(session)) == 2


async def test_records_are_encrypted_in_a_cluster(open_cluster, monkeypatch):
    """Nodes with the keys resume the sessions.

    A node without the keys reads no record and redelivers no message.
    """
    key = base64.b64encode(bytes(range(32))).decode()
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(retry_timeout=PATIENCE) as client:
            monkeypatch.setenv(VARIABLE, f"k1:{key}")
            async with cluster.node(BareAgent("clerk", llm=free())) as runtime:
                session = await client.agent("clerk").create_session("ada")
                await give_up(runtime, session)
                bodies = bodies_in(cluster)
                assert bodies
                assert all(body.startswith(b"\xe1") for body in bodies)
            async with cluster.node(BareAgent("clerk", llm=free())):
                assert (await client.agent("clerk").run("hello", session=session)).text == "you said: hello"
                place = (cluster.journal, cluster.pool, "m1")
                monkeypatch.delenv(VARIABLE)
                with pytest.raises(JournalError, match=VARIABLE):
                    await resend_dead_letter(*place)
                with pytest.raises((JournalError, ExceptionGroup), match=VARIABLE):
                    async with cluster.node(BareAgent("clerk", llm=free())):
                        pass
                monkeypatch.setenv(VARIABLE, f"k1:{key}")
                await resend_dead_letter(*place)
                await session.wait_idle()
                assert await answers_of(session) == [
                    "you said: 2 + 2?",
                    "you said: hello",
                    "you said: 2 + 2?",
                ]


async def test_node_ends_despite_a_hanging_turn(open_cluster, monkeypatch):
    """The grace period ends. Another node runs the turn again and repeats the model call."""
    monkeypatch.setattr(runtimes, "LEAVE_GRACE_SECONDS", 0.5)
    hangs, answers = Held(), free()
    with trio.fail_after(PATIENCE):
        async with open_cluster() as cluster, cluster.connect(retry_timeout=PATIENCE) as client:
            async with cluster.node(BareAgent("clerk", llm=hangs)):
                session = await client.agent("clerk").create_session("ada")
                await session.chat("hello", message_id="m1")
                await hangs.called.wait()
            async with cluster.node(BareAgent("clerk", llm=answers)):
                await session.wait_idle()
                assert await answers_of(session) == ["you said: hello"]
            assert (hangs.calls, answers.calls) == (1, 1)
