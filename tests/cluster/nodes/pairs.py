"""Two nodes of one cluster in one process, each with half of the partitions."""

from contextlib import asynccontextmanager

import attrs
import trio

from actgent import LLM, BareAgent, ModelResponse, Text, ToolCall, Usage, tool

PATIENCE = 120
"""Seconds for a whole test on a loaded machine."""


@tool(approval=True, effect="once")
async def deploy(place: str) -> str:
    """Deploy to a place."""
    return f"deployed to {place}"


@attrs.define(eq=False)
class Echo(LLM):
    """A model that repeats the message. A message that begins with `hold` waits for `may_go`."""

    name = "echo"
    asked: list = attrs.field(factory=list)
    may_go: trio.Event = attrs.field(factory=trio.Event)

    async def complete(self, chat, on_text=None):
        last = chat.messages[-1]
        results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
        content = "".join(part.text for part in last.parts if isinstance(part, Text))
        self.asked.append(content)
        if content.startswith("deploy "):
            return ModelResponse(
                parts=(ToolCall("deploy", {"place": content[7:]}),), stop="tool_use", usage=Usage()
            )
        if content.startswith("hold"):
            await self.may_go.wait()
        text = f"done: {results[0].content}" if results else f"you said: {content}"
        for number, word in enumerate(text.split(" ")):
            if on_text is not None:
                await on_text(word if number == 0 else f" {word}", 0)
        await trio.lowlevel.checkpoint()
        return ModelResponse(parts=(Text(text),), usage=Usage(input_tokens=1, output_tokens=1))


@attrs.define(eq=False)
class Pair:
    """Two nodes, their agents, and the models of these agents."""

    cluster: object
    one: object
    two: object
    agents: tuple
    models: tuple

    def id_at(self, runtime):
        """Return a new session id that the node owns now."""
        return runtime.journal.new_session_id()


def make_clerk(model, **options):
    return BareAgent("clerk", llm=model, tools=[deploy], **options)


@asynccontextmanager
async def open_pair(open_cluster):
    """Yield a `Pair` whose nodes have equal numbers of partitions."""
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
    """Wait until each of these runtimes serves an equal share of the partitions.

    `nodes` is the number of all nodes; 0 means the number of these runtimes.
    """
    share = runtimes[0].journal.count // (nodes or len(runtimes))
    with trio.fail_after(PATIENCE):
        while any(len(each.journal.owned) != share for each in runtimes):  # noqa: ASYNC110 - no event signals this state
            await trio.sleep(0.05)


async def drain(cluster, runtime):
    """Make a node hand over its partitions. Its process keeps running."""
    from actgent.cluster.pool_operations import drain as drain_node

    await drain_node(cluster.journal, cluster.pool, runtime.journal.node)
    await runtime.journal.left.wait()
