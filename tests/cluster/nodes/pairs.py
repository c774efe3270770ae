"""Two nodes of one cluster in one process, each with some of the partitions."""

from contextlib import asynccontextmanager

import attrs
import trio

from actgent import LLM, BareAgent, ModelResponse, Text, ToolCall, Usage, tool

PATIENCE = 120
"""Seconds for all of a test, on a machine that does much else."""


@tool(approval=True, effect="once")
async def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


@attrs.define(eq=False)
class Echo(LLM):
    """Says again what it was told; a message that begins with `hold` waits until it is let go."""

    name = "echo"
    asked: list = attrs.field(factory=list)
    may_go: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        said = "".join(part.text for part in last.parts if isinstance(part, Text))
        self.asked.append(said)
        if said.startswith("deploy "):
            return ModelResponse(
                parts=(ToolCall("deploy", {"place": said[7:]}),), stop="tool_use", usage=Usage()
            )
        if said.startswith("hold"):
            await self.may_go.wait()
        text = f"done: {results[0].content}" if results else f"you said: {said}"
        for number, word in enumerate(text.split(" ")):
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


@attrs.define(eq=False)
class Pair:
    """Two nodes, their agents, and the models of those."""

    cluster: object
    one: object
    two: object
    agents: tuple
    models: tuple

    def id_at(self, runtime):
        """A new id of a session that lives at a node now."""
        return runtime.journal.new_session_id()


def make_clerk(model, **options):
    return BareAgent("clerk", llm=model, tools=[deploy], **options)


@asynccontextmanager
async def open_pair(open_cluster):
    """A `Pair` whose nodes have as many partitions each."""
    models = Echo(), Echo()
    agents = tuple(map(make_clerk, models))
    async with (
        open_cluster() as cluster,
        cluster.node(agents[0], node="one") as one,
        cluster.node(agents[1], node="two") as two,
    ):
        await wait_balanced(one, two)
        yield Pair(cluster, one, two, agents, models)


async def wait_balanced(*runtimes, nodes=0):
    """Wait until each of these nodes serves as many partitions as the others of all `nodes`; of these without a number."""
    share = runtimes[0].journal.count // (nodes or len(runtimes))
    with trio.fail_after(PATIENCE):
        while any(len(each.journal.owned) != share for each in runtimes):  # noqa: ASYNC110 - nobody tells
            await trio.sleep(0.05)


async def drain(cluster, runtime):
    """Have a node hand over what it has; its process goes on."""
    from actgent.cluster.operations.cluster_status import drain as drain_node

    await drain_node(cluster.journal, cluster.pool, runtime.journal.node)
    await runtime.journal.left.wait()
