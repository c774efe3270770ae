"""Two nodes side by side: whoever is asked, sessions are served where they live."""

from functools import partial

import pytest
import trio

from actgent import Approve, InboxFull, Suspended

from .pairs import PATIENCE, Echo, make_clerk, open_pair


@pytest.fixture
async def pair(open_cluster):
    async with open_pair(open_cluster) as opened:
        yield opened


async def test_approvals_of_all_nodes_are_listed_by_each(pair):
    """By a runtime and by any node that a client asks; a decision reaches the session where it lives."""
    with trio.fail_after(PATIENCE):
        async with pair.cluster.connect() as client:
            clerk, ids = client.agent("clerk"), [pair.id_at(pair.one), pair.id_at(pair.two)]
            for session_id in ids:
                session = await clerk.create_session("ada", session_id=session_id)
                with pytest.raises(Suspended):
                    await clerk.run("deploy mars", session=session)
            for runtime in (pair.one, pair.two):
                found = await runtime.approvals()
                assert sorted(each.session_id for each in found) == sorted(ids)
            for _ in range(4):  # the nodes take such requests in turns
                found = await client.approvals()
                assert sorted(each.session_id for each in found) == sorted(ids)
            for approval in found:
                assert (await clerk.resume({approval.id: Approve()})).text == "done: deployed to mars"
            assert await pair.one.approvals() == await pair.two.approvals() == ()


async def test_a_client_comes_again_to_a_session_whose_line_is_full(open_cluster):
    """One without patience hears that it is full; one that has some says what it has to once there is room."""
    model = Echo()
    agent = make_clerk(model, session_inbox=1)
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster() as cluster,
            cluster.node(agent),
            cluster.connect(patience=PATIENCE) as client,
            cluster.connect(patience=0.1) as hasty,
            trio.open_nursery() as nursery,
        ):
            session = await client.agent("clerk").create_session("ada")
            await session.chat("hold", message_id="m0")
            while not model.asked:  # noqa: ASYNC110 - a model counts
                await trio.sleep(0.01)
            for number in range(1, 40):
                chat = partial(session.chat, f"m{number}", message_id=f"m{number}", enqueue_timeout=60)
                nursery.start_soon(chat)
            known = await hasty.agent("clerk").open_session(session.id)
            why = ""
            while "16 requests of this session wait" not in why:
                with pytest.raises(InboxFull) as refused:
                    await known.chat("too much", message_id="m40", enqueue_timeout=0)
                why = str(refused.value)
            model.may_go.set()
            while (await session.messages()).total < 80:
                await session.wait_idle()
            said = [each.text for each in await session.history() if each.sender.kind == "user"]
            assert sorted(said) == sorted(["hold", *(f"m{number}" for number in range(1, 40))])
