"""The comparison of two sessions on the dashboard."""

import pytest

from actgent import BareAgent, ScriptedLLM, ToolCall, tool

from .test_dashboard import link_of

ROWS = "Object.fromEntries([...document.querySelectorAll('.figures tbody tr')].map(each => [each.cells[0].textContent, [...each.cells].slice(1).map(one => one.textContent)]))"
STEPS = "[...document.querySelectorAll('.turn')].map(turn => [...turn.querySelectorAll('.beside[role]')].map(each => [each.classList.contains('differs'), ...[...each.children].map(one => one.innerText.split('\\n')[0])]))"


@tool(effect="pure")
async def weigh(what: str) -> str:
    """Weigh a thing."""
    return f"{what}: <b>2 kg</b>"


def script(chat):
    """Weigh a box once and a crate twice. Answer all other messages with text."""
    last = chat.messages[-1]
    results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
    asked = [part.text for each in chat.messages for part in each.parts if type(part).__name__ == "Text"][-1]
    weighed = sum(type(part).__name__ == "ToolResult" for each in chat.messages for part in each.parts)
    if "weigh" in asked and (not results or ("crate" in asked and weighed < 2)):
        return ToolCall("weigh", {"what": "crate" if "crate" in asked else "box"})
    return f"done after {weighed}" if results else "hello"


@pytest.fixture
async def compared(serving, screen):
    """Yield a function that opens a page, and sessions `one` and `two` of two agents. Their first turns are equal."""
    agents = [
        BareAgent(name, llm=ScriptedLLM(script, name=f"model-{name}"), tools=[weigh])
        for name in ("left", "right")
    ]
    async with serving(agents=agents) as served, served.client("root") as client:
        for agent, session, expected in (
            ("left", "one", "weigh the box"),
            ("right", "two", "weigh the crate"),
        ):
            await client.put(f"/v1/sessions/{session}", json={"agent": agent})
            for content in ("hi", expected):
                await client.post(f"/v1/sessions/{session}/messages", json={"input": content}, headers={"prefer": "wait=20"})  # fmt: skip
        await client.put("/v1/sessions/three", json={"agent": "left"})
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        yield client


async def test_figures_and_steps_are_compared(compared, screen):
    """Figures show their difference, and equal turns are marked. A step without a partner has an empty side. HTML is shown as text."""
    await screen.go("#/compare?a=one&aa=left&b=two&ba=right")
    await screen.until("document.querySelectorAll('.turn').length === 2")
    rows = await screen.run(ROWS)
    assert rows["Turns"] == ["2", "2", "same"]
    assert rows["Model calls"] == ["3", "4", "+1 (+33 %)"]
    assert rows["Tool calls"] == ["1", "2", "+1 (+100 %)"]
    assert rows["Models"] == ["scripted", "scripted", "same"]
    tags = await screen.run(
        "[...document.querySelectorAll('.turn .about .tag')].map(each => each.textContent)"
    )
    assert tags == ["same", "differs"]
    first, second = await screen.run(STEPS)
    assert first == [[False, "answer", "answer"]]
    assert [each[0] for each in second] == [True] * 5
    sides = [tuple(each[1:]) for each in second]
    assert sides.count(("no such step", "calls weigh")) == 1
    assert sides.count(("calls weigh", "calls weigh")) == 1
    assert sides[-1] == ("answer", "answer")
    assert await screen.run("document.querySelectorAll('.step b b').length") == 0
    assert "<b>2 kg</b>" in await screen.run("document.querySelector('main').innerText")
    await screen.run("document.querySelector('input[type=checkbox]').click()")
    await screen.until("document.querySelectorAll('.turn').length === 1")


async def test_other_session_is_chosen_in_the_list(compared, screen):
    """The button of a session leads to the sessions of its agent and of other agents, or to a typed id.

    The page shows a new choice at once. After an unknown id, the form keeps the id.
    """
    await screen.go("#/sessions/one?agent=left")
    await screen.run(
        "[...document.querySelectorAll('.head a')].find(each => each.textContent === 'Compare').click()"
    )
    await screen.until("document.querySelector('main ul.plain a')")
    assert await screen.run("[...document.querySelectorAll('main ul.plain a')].map(each => each.textContent)") == ["three", "two"]  # fmt: skip
    await screen.run("document.querySelector('main ul.plain a').click()")
    await screen.until("document.querySelectorAll('.turn').length === 2")
    assert "no such turn" in await screen.run("document.querySelector('main').innerText")
    await compared.post("/v1/sessions/three/messages", json={"input": "hi"}, headers={"prefer": "wait=20"})
    await screen.until("document.querySelector('.turn .about .tag').textContent === 'same'")
    await screen.go("#/compare?a=one&aa=left")
    await screen.fill("[name=other]", "nothing")
    await screen.press("Enter")
    await screen.until("document.querySelector('main .err')")
    assert await screen.run("document.querySelector('[name=other]').value") == "nothing"
    screen.tab.complaints.clear()  # the browser logs the 404
