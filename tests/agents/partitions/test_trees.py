"""All sessions of a tree belong to the partition of the root session."""

from collections.abc import Iterator

import pytest

from actgent import (
    BareAgent,
    ConfigurationError,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    ToolResult,
    handoff,
    open_runtime,
    tool,
)
from actgent.journal.in_memory_journal import MemoryJournal
from actgent.journal.postgres.session_partitioning import slot_of
from actgent.journal.session_export_and_fork import read_sessions, with_new_ids


class Family:
    """A boss that asks, runs, calls, delegates to and hands over to helpers, which call another agent."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.ids: list[str] = []
        """Ids of all sessions that were opened."""

        @tool(effect="pure")
        async def run(how: str) -> str:
            """Ask the helper in a session that nobody named."""
            return str(await (self.helper.ref.ask(how) if how == "ref" else self.helper.run(how)))

        @tool(effect="pure")
        async def give(name: str, context: ToolContext) -> str:
            """Give the helper a task."""
            return await context.session.delegate("helper", "dig", task_id=name or None)

        self.deep = BareAgent("deep", llm=ScriptedLLM(lambda _: "deep"))
        self.helper = BareAgent("helper", llm=ScriptedLLM(self._help), tools=[self.deep.as_tool()])
        calls = [
            ToolCall("run", {"how": "ref"}),
            ToolCall("run", {"how": "run"}),
            ToolCall("helper", {"task": "hi"}),
            ToolCall("give", {"name": "dig"}),
            ToolCall("give", {"name": ""}),
        ]
        turns: Iterator[object] = iter([calls, ToolCall("handoff_to_deep", {}), *["done"] * 10])
        self.boss = BareAgent(
            "boss",
            llm=ScriptedLLM(lambda _: next(turns)),
            tools=[run, give, self.helper.as_tool(), handoff(to=self.deep)],
        )
        for agent in (self.boss, self.helper, self.deep):
            agent.on_session(lambda session: self.ids.append(session.id))

    def _help(self, chat):
        part = chat.messages[-1].parts[0]
        if isinstance(part, ToolResult):
            self.answered.append(part.content)
            return "fine"
        return ToolCall("deep", {"task": "go"})


async def family_of(journal):
    """Run a `Family` on a journal to its end. Return it with the ids of a root and of its child."""
    family = Family()
    async with open_runtime(journal=journal) as runtime:
        if hasattr(journal, "acquire_partitions"):
            await journal.acquire_partitions([3])
        await runtime.start(family.boss)
        session = await family.boss.create_session("ada")
        child = await family.deep.create_session("ada", parent=session)
        await session.chat("go")
        await session.wait_idle()
        assert family.answered == ["deep"] * 5
        return family, session.id, child.id


async def test_all_sessions_of_a_tree_are_in_one_partition(open_journal_of):
    """Sessions of asks, runs, tasks, handoffs and child sessions have the slot of their root."""
    async with open_journal_of("one") as journal:
        family, root, child = await family_of(journal)
        assert len({*family.ids}) == 1 + 1 + 2 * 5 + 1
        assert {slot_of(each) for each in family.ids} == {slot_of(root)}
        assert journal.partition_of(child) == 3


async def test_task_ids_are_session_ids_without_partitions():
    """Without partitions a task id is the session id. Generated ids begin with the root id, so that a move to partitions works."""
    async with MemoryJournal().running() as journal:
        family, root, child = await family_of(journal)
        assert "dig" in family.ids
        assert child.startswith(f"{root}/")


async def test_a_child_of_another_partition_is_refused(open_node, id_in):
    """A child id that does not begin with the parent id raises an error and creates no session."""
    async with open_node("one", take=[0, 1]) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(["fine"])))
        parent = await agent.create_session("ada", session_id=id_in(0))
        below = f"{parent.id}/x"
        with pytest.raises(ConfigurationError, match=f"{parent.id}/"):
            await agent.create_session("ada", session_id=id_in(0, nth=1), parent=parent)
        with pytest.raises(ConfigurationError, match="name a child of"):
            await agent.ensure_session("ada", "x", parent=parent)
        child = await agent.create_session("ada", session_id=below, parent=parent)
        assert child.parent is parent
        assert {each.session_id for each in await runtime.journal.sessions()} == {parent.id, child.id}


async def test_new_session_belongs_to_an_owned_partition(open_node):
    """Generated session ids belong to an owned partition, also if the process owns only one."""
    async with open_node("one", take=[5]) as runtime:
        agent = await runtime.start(BareAgent("a", llm=ScriptedLLM(lambda _: "fine")))
        ids = [(await agent.create_session("ada")).id for _ in range(20)]
        assert {runtime.journal.partition_of(each) for each in ids} == {5}
        assert len(set(ids)) == 20
        assert str(await agent.run("hi")) == "fine"


async def test_copies_of_a_tree_form_a_tree():
    """Copies with new ids form a tree: each new id begins with the new root id."""
    async with MemoryJournal().running() as journal:
        _, root, _ = await family_of(journal)
        old = [each.session_id for each in await journal.sessions()]
        new = [each.session_id for each in with_new_ids(await read_sessions(journal))]
        assert not {*old} & {*new}
        below = {each for each in old if each.startswith(f"{root}/")}
        assert (
            len({each.partition("/")[0] for each, was in zip(new, old, strict=True) if was in {root, *below}})
            == 1
        )
