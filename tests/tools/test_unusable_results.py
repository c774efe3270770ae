"""Tools that ran and returned a value that is not JSON, in sessions with and without a journal."""

import pytest

from actgent import BareAgent, ScriptedLLM, Tool, ToolCall, open_runtime, tool


class Receipt:
    """A value that is not JSON."""

    def __str__(self):
        return "receipt 7"


class Blank:
    """A value that is not JSON and has no text."""

    def __str__(self):
        raise ValueError("no text")


TEXTS = {
    "Receipt": "receipt 7",
    "Blank": "[the tool ran and returned a value of the type Blank without readable text: str() raised ValueError]",
}


NO_PARAMETERS = {"type": "object", "properties": {}}


@pytest.fixture(params=["none", "memory", "sqlite"])
def journal(request, tmp_path):
    """Return no journal, and the URL of each kind of journal without a server."""
    return {"none": None, "memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/agents.db"}[request.param]


def pay_with(kind, effect, paid):
    @tool(effect=effect)
    def pay(euros: int) -> object:
        """Pay."""
        paid.append(euros)
        return kind()

    return pay


class Twice(Tool):
    """A tool that calls another tool, like code of a model."""

    name = "twice"
    description = "Pay twice."
    calls_tools = True
    effect = "idempotent"
    parameters = NO_PARAMETERS

    async def execute(self, arguments, context):
        results = [await context.tools.call("pay", {"euros": euros}) for euros in (1, 2)]
        return [(result.status, result.content) for result in results]


@pytest.mark.parametrize("effect", ["once", "idempotent", "pure"])
@pytest.mark.parametrize("kind", [Receipt, Blank], ids=["Receipt", "Blank"])
async def test_model_and_handlers_see_that_the_tool_ran(journal, effect, kind):
    """The result is a success with the text of the value, the same for the model, for handlers and in the record."""
    paid, shown, received = [], [], []

    def answer(chat):
        shown.append(chat.messages[-1].parts[0])
        return "Paid."

    llm = ScriptedLLM([ToolCall("pay", {"euros": 25}, id="c1"), answer])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[pay_with(kind, effect, paid)]))
        session = await agent.create_session("ada", session_id="s")
        session.on_tool_result(received.append)
        assert (await agent.run("Pay.", session=session)).text == "Paid."
        (recorded,) = session.history[-2].tool_results
    assert paid == [25]
    for result in (recorded, shown[0], received[0]):
        assert (result.status, result.error, result.content) == ("success", None, TEXTS[kind.__name__])


async def test_text_of_an_unusable_result_is_in_the_journal(tmp_path):
    """A restart reads the text and does not run the tool again."""
    url, paid = f"sqlite:///{tmp_path}/agents.db", []
    llm = ScriptedLLM([ToolCall("pay", {"euros": 25}, id="c1"), "Paid.", "Still paid."])
    histories = []
    for _ in range(2):
        async with open_runtime(journal=url) as runtime:
            agent = await runtime.start(BareAgent("clerk", llm=llm, tools=[pay_with(Receipt, "once", paid)]))
            session = await agent.ensure_session("ada", "s")
            if not histories:
                await agent.run("Pay.", session=session)
            histories.append(session.history)
    assert histories[0] == histories[1]
    assert histories[0][-2].tool_results[0].content == "receipt 7"
    assert paid == [25]


async def test_nested_call_with_an_unusable_result_succeeds(journal):
    """The calling tool gets the text."""
    paid = []
    tools = [pay_with(Receipt, "once", paid), Twice()]
    llm = ScriptedLLM([ToolCall("twice", {}, id="c1"), "Paid."])
    async with open_runtime(journal=journal) as runtime:
        agent = await runtime.start(BareAgent("clerk", llm=llm, tools=tools))
        session = await agent.create_session("ada", "Pay.")
        await session.wait_idle()
        (result,) = session.history[-2].tool_results
    assert result.content == '[["success", "receipt 7"], ["success", "receipt 7"]]'
    assert paid == [1, 2]
