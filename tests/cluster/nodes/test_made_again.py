"""Sessions of an id whose making the broker delivers again: they are their maker's, and nobody else's."""

import pytest
import trio

from actgent import SessionExists
from actgent.cluster.requests import Telling

from .pairs import PATIENCE, Echo, make_clerk


@pytest.fixture
def again(monkeypatch):
    """Has the next making of a session delivered again: its partition leaves the node when it is made, before that is told."""
    tell, wanted, given = Telling.__call__, [], []

    async def tell_unless_cut(self, *told, **named):
        work = self.work
        if work.asked.verb == "PUT" and len(given) < len(wanted):
            given.append(work.asked.id)
            work.scope.cancel()
            await trio.lowlevel.checkpoint()
        await tell(self, *told, **named)

    def wish():
        wanted.append(True)
        return given

    monkeypatch.setattr(Telling, "__call__", tell_unless_cut)
    return wish


async def test_a_session_that_was_made_when_its_making_comes_again(open_cluster, again):
    """Its maker has it as if nothing had been, and hears all of it; who wants the same id with the same words is refused."""
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(make_clerk(Echo())),
            cluster.connect() as client,
            cluster.connect(name="other") as other,
        ):
            given = again()
            session = await client.agent("clerk").create_session("ada", "hello", session_id="s1")
            assert len(given) == 1
            heard = []
            session.on_conversation(lambda reply: heard.append(reply.text))
            await session.wait_idle()
            assert heard == ["you said: hello"]

            again()
            with pytest.raises(SessionExists):
                await other.agent("clerk").create_session("ada", session_id="s1")
            assert len(given) == 2
            with pytest.raises(SessionExists):
                await client.agent("clerk").create_session("ada", session_id="s1")
            again()
            found = await other.agent("clerk").ensure_session("ada", "s1")
            assert found.id == "s1"
            assert (await session.messages()).total == 2
