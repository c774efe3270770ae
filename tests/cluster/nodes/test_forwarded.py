"""Calls for sessions of another process, which ends, hangs or leaves during the calls.

Each call has its effect once.
"""

import os
import random
import signal
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from actgent import Approve, BareAgent, Failure, Modes, RemoteSession, Reply, Suspended, connect, open_gateway
from actgent.web.access_tokens import new_token

from .conversations import PATIENCE
from .node_process import Slow, deploy
from .pairs import wait_balanced
from .test_gateways import LIMITS

NUMBERS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP, "leave": signal.SIGTERM}
KINDS = ("chat", "run", "stream", "interrupt", "approve", "mode", "delegate", "make", "schedule", "close")


class Calls:
    """One call of each kind, for sessions that all live at another node."""

    def __init__(self, clerk, new_id):
        self.clerk, self._new_id = clerk, new_id
        self.sessions, self.replies, self.made = {}, {}, new_id()

    async def begin(self):
        """Create the sessions, and start the turns that the calls need."""
        for kind in KINDS:
            if kind != "make":
                session = self.sessions[kind] = await self.clerk.create_session(
                    "ada", session_id=self._new_id()
                )
                assert isinstance(session, RemoteSession)
        with pytest.raises(Suspended) as waits:
            await self.clerk.run("deploy mars", session=self.sessions["approve"])
        (self.approval,) = waits.value.ids
        for kind in ("interrupt", "close"):
            await self.sessions[kind].chat("slowly one", message_id="m1")

    async def ask_all(self, pause):
        async with trio.open_nursery() as nursery:
            for kind in KINDS:
                nursery.start_soon(self._ask, kind, pause)

    async def _ask(self, kind, pause):
        await trio.sleep(pause())
        await getattr(self, f"_{kind}")(self.sessions.get(kind))

    async def _chat(self, session):
        await session.chat("hello", message_id="m1")

    async def _run(self, session):
        self.replies["run"] = (await self.clerk.run("slowly two words", session=session)).text

    async def _stream(self, session):
        async with self.clerk.stream("slowly two words", session=session) as deliveries:
            self.replies["stream"] = [each async for each in deliveries]

    async def _interrupt(self, session):
        await session.interrupt(message_id="m1")

    async def _approve(self, session):
        await session.answer(self.approval, Approve())

    async def _mode(self, session):
        self.replies["mode"] = await session.set_mode("plan")

    async def _delegate(self, session):
        await session.delegate("digger", "slowly a hole", task_id="t1")

    async def _make(self, _):
        session = await self.clerk.create_session("ada", session_id=self.made)
        await session.chat("hello", message_id="m1")
        self.sessions["make"] = session

    async def _schedule(self, session):
        await session.schedule("look", after=1, key="k")

    async def _close(self, session):
        await session.aclose()

    # --- results -----------------------------------------------------------------------------

    async def check(self):
        """Assert that each call had its effect once."""
        for kind in KINDS:
            if kind != "close":
                await self.sessions[kind].wait_idle()
        for kind in ("chat", "make"):
            assert await self.said(kind) == ["hello", "you said: hello"], kind
        for kind in ("run", "stream"):
            assert await self.said(kind) == ["slowly two words", "you said: slowly two words"], kind
        assert self.replies["run"] == "you said: slowly two words"
        received = [each for each in self.replies["stream"] if isinstance(each, Reply | Failure)]
        assert [each.text for each in received] == ["you said: slowly two words"]
        # The next owner may stop the message in its queue, and a message without a turn is not in the history.
        assert await self.said("interrupt") in (["slowly one"], [])
        await self._check_approved()
        assert self.replies["mode"] == await self.sessions["mode"].mode() == "plan"
        while min([len(await self.said(each)) for each in ("delegate", "schedule")]) < 2:  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.1)
        for kind in ("delegate", "schedule"):
            await self.sessions[kind].wait_idle()
            assert len(await self.said(kind)) == 2, kind
        assert await self.sessions["close"].status() == "closed"

    async def _check_approved(self):
        """Assert that the approved call ran once, or has an unknown outcome.

        A call whose process died during its execution is not run again.
        """
        (result,) = [
            each for message in await self.sessions["approve"].history() for each in message.tool_results
        ]
        known = {"success": "deployed to mars", "outcome_unknown": ""}
        assert result.content == known[result.status]
        assert await self.said("approve") == ["deploy mars", "", "", f"done: {result.content}"]

    async def said(self, kind):
        return [each.text for each in await self.sessions[kind].history()]


@asynccontextmanager
async def reaching(runtime):
    """Yield the agent of a client that is connected to the gateway of a node."""
    token, known = new_token("t", owner="ada", scopes=("chat", "approve"))
    async with (
        open_gateway(runtime, bind="127.0.0.1:0", tokens=[known], limits=LIMITS) as gateway,
        connect(gateway.url, token=token, retry_timeout=PATIENCE) as client,
    ):
        yield client.agent("clerk")


@pytest.mark.parametrize("how", ["kill", "hang", "leave"])
async def test_calls_for_another_node_survive_its_end(nodes, how):
    """Calls by a node and by its gateway: each is answered and has its effect once, at any stage of the call."""
    dice = random.Random(int(os.environ.get("ACTGENT_SEED", "0")))
    agent = BareAgent("clerk", llm=Slow(), tools=[deploy], modes=Modes(execution=[deploy], initial="act"))
    async with nodes.cluster.node(agent, BareAgent("digger", llm=Slow())) as here, reaching(here) as far:
        await nodes.start("b")
        with trio.fail_after(2 * PATIENCE):
            await wait_balanced(here, nodes=2)
            calls = [Calls(clerk, partial(other_id, here)) for clerk in (agent, far)]
            for each in calls:
                await each.begin()
            async with trio.open_nursery() as nursery:
                for each in calls:
                    nursery.start_soon(each.ask_all, partial(dice.uniform, 0, 0.1))
                await trio.sleep(dice.uniform(0, 0.15))
                nodes.kill("b", NUMBERS[how])
                if how == "hang":
                    while len(here.journal.owned) < here.journal.count:  # noqa: ASYNC110 - no event signals this state
                        await trio.sleep(0.05)
                    nodes.kill("b", signal.SIGCONT)
            for each in calls:
                await each.check()


def other_id(runtime):
    """Return the id of a session that lives at the other node."""
    while runtime.journal.owns(found := f"s{random.getrandbits(40)}"):
        pass
    return found
