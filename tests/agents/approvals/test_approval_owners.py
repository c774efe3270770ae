"""Open approvals of one owner, so that a service does not show arguments of another user's calls."""

import pytest
import trio
import trio.testing

from actgent import Approve, BareAgent, ScriptedLLM, ToolCall, open_runtime, tool


@tool(approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def payer(name, amount, *, sessions=1):
    """Return an agent whose first answer in each of its sessions is a payment."""
    return BareAgent(
        name, llm=ScriptedLLM([ToolCall("pay", {"amount": amount})] * sessions + ["Done."]), tools=[pay]
    )


async def ask(agent, owner):
    """Create a session whose payment waits for approval."""
    session = await agent.create_session(owner, session_id=f"{agent.name}-{owner}")
    await session.chat("pay")
    await session.wait_idle()


@pytest.mark.parametrize("journal", [None, "memory:", "sqlite"])
async def test_approvals_are_listed_by_owner(journal, tmp_path):
    """With `owner=` the runtime and an agent list the approvals of that owner only, page by page."""
    url = f"sqlite:///{tmp_path / 'a.db'}" if journal == "sqlite" else journal
    async with open_runtime(journal=url) as runtime:
        agents = [
            await runtime.start(payer("first", 1, sessions=2)),
            await runtime.start(payer("second", 2, sessions=2)),
        ]
        for agent in agents:
            for owner in ("ada", "bob"):
                await ask(agent, owner)
        everything = [*(await runtime.approvals())]
        everything += await runtime.approvals(after=everything[-1])
        assert sorted((each.agent, each.owner) for each in everything) == [
            ("first", "ada"),
            ("first", "bob"),
            ("second", "ada"),
            ("second", "bob"),
        ]
        found, after = [], None
        while page := await runtime.approvals(owner="bob", after=after, limit=1):
            found += page
            after = page[-1]
        assert [(each.agent, each.owner) for each in found] == [("first", "bob"), ("second", "bob")]
        assert [each.owner for each in await agents[0].approvals(owner="ada")] == ["ada"]
        assert await runtime.approvals(owner="eve") == ()


async def test_delegated_approval_has_the_owner_of_the_root_session():
    """The owner of a delegated approval is the user of the topmost session, in the handler and in the list."""
    helper = payer("helper", 7)
    boss = BareAgent(
        "boss", llm=ScriptedLLM([ToolCall("helper", {"task": "pay"}), "Done."]), tools=[helper.as_tool()]
    )
    async with open_runtime() as runtime:
        await runtime.start(boss)
        session = await boss.create_session("ada")
        approvals, is_asked = [], trio.Event()
        session.on_approval(lambda approval: (approvals.append(approval), is_asked.set()))
        await session.chat("pay")
        await is_asked.wait()
        await trio.testing.wait_all_tasks_blocked()
        (approval,) = await runtime.approvals(owner="ada")
        assert approvals == [approval]
        assert session.approvals == (approval,)
        await session.answer(approval, Approve())
        await session.wait_idle()
        assert await runtime.approvals() == ()


async def test_approvals_are_listed_by_owner_after_a_restart(tmp_path):
    """After a restart the approvals are still listed by owner."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with open_runtime(journal=url) as runtime:
        await ask(await runtime.start(payer("first", 1)), "ada")
    async with open_runtime(journal=url) as runtime:
        await runtime.start(payer("first", 1))
        assert [each.owner for each in await runtime.approvals(owner="ada")] == ["ada"]
        assert await runtime.approvals(owner="bob") == ()
