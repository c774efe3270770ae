"""Each page shows content of models, tools, users and programs as text."""

from urllib.parse import quote

import pytest
import trio
import trio.testing

from actgent import (
    ApprovalRequest,
    BareAgent,
    Limits,
    LongTermMemory,
    ProviderUnavailable,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    tool,
)

IMAGE = "<img src=x onerror=document.title='pwned'>"
TAG = "<img/src=x/onerror=document.title='pwned'>"
"""`IMAGE` without spaces, so that it is a valid id."""
QUOTED = "\"'><script>document.title='pwned'</script>"


@tool
async def look(context: ToolContext) -> str:
    """Look."""
    context.state.dispatch((IMAGE, [QUOTED]))
    return IMAGE + QUOTED


@tool(approval=ApprovalRequest(IMAGE + QUOTED))
async def act(words: str) -> str:
    """Act."""
    return words


def talk(chat):
    """Call the first tool, then the second tool."""
    last = chat.messages[-1]
    is_result = any(type(part).__name__ == "ToolResult" for part in last.parts)
    return ToolCall("act", {"words": IMAGE + QUOTED}) if is_result else ToolCall("look", {})


@pytest.fixture
async def memories():
    """Yield memories whose texts, kinds, sources, readers, agents and sessions are hostile."""
    label = {"actgent.sources": IMAGE, "actgent.readers": quote(QUOTED, safe="")}
    async with LongTermMemory() as opened:
        old = await opened.remember(
            IMAGE + QUOTED, owner=TAG, kind=IMAGE, agent=QUOTED, session_id=TAG, metadata=label
        )
        made = await opened.update(old.id, QUOTED + IMAGE, owner=TAG)
        other = await opened.remember(IMAGE, owner=TAG)
        await opened.associate(made.id, other.id, IMAGE, owner=TAG)
        yield opened


async def test_untrusted_text_is_shown_as_text(serving, screen, memories):
    """Ids, owners, messages, arguments, results, questions, state, errors and schedules are shown literally."""
    agents = [
        BareAgent(
            "clerk",
            llm=ScriptedLLM(talk),
            tools=[look, act],
            role=IMAGE,
            limits=Limits(tokens=100_000),
            long_term_memory=memories,
        ),
        BareAgent("scout", llm=ScriptedLLM([ProviderUnavailable(IMAGE)])),
    ]
    async with serving(agents=agents) as served, served.client("root") as root:
        opener = served.runtime.agents.opener
        await opener("clerk").create(TAG, IMAGE + QUOTED, session_id=TAG)
        scout = await opener("scout").create(QUOTED.replace(" ", ""), "look", session_id=f"{TAG}2")
        await scout.wait_idle()
        with trio.fail_after(60):
            while not (await root.get("/v1/approvals")).json()["items"]:
                await trio.testing.wait_all_tasks_blocked(0.05)
        path = "/v1/sessions/" + TAG.replace("/", "%2F").replace("<", "%3C").replace(">", "%3E").replace(
            "'", "%27"
        )
        made = await root.post(f"{path}/schedules", json={"input": IMAGE, "after": 1000})
        assert made.status_code == 201, made.text
        await screen.open(f"{served.gateway.url}/#key={served.tokens['root']}")
        await screen.until("document.querySelector('tbody a')")
        place = await screen.run("document.querySelector('tbody a').hash")
        link = await screen.run(
            "[...document.querySelectorAll('tbody a')].find(each => !each.textContent.endsWith('2')).hash"
        )
        journal = link.replace("#/sessions/", "#/journal/")
        trace = link.replace("?", "/trace?")
        session = link.removeprefix("#/sessions/").partition("?")[0]
        compared = f"#/compare?a={session}&b={session}2"
        for page in (place, link, journal, trace, compared, *(f"#/{each}" for each in ("agents", "sessions", "approvals", "errors", "schedules", "budgets", "journal"))):  # fmt: skip
            await screen.go(page)
            await screen.until("document.querySelector('main').innerText.includes('onerror=')")
            assert await screen.run("document.querySelectorAll('main img, main script').length") == 0, page
            assert "pwned" not in await screen.run("document.title"), page
        await screen.go("#/memories")
        await screen.until("document.querySelector('tbody a').textContent.includes('onerror=')")
        await screen.run("document.querySelector('tbody a').click()")
        await screen.until("document.querySelectorAll('.hit').length === 2")
        await screen.run("document.querySelectorAll('.hit .link').forEach(each => each.click())")
        await screen.until("document.querySelector('.hits').innerText.includes('→')")
        for button in ("main > .row .bad", ".hit .btn.bad"):
            await screen.run(f"document.querySelector('{button}').click()")
            await screen.until("document.querySelector('dialog[open]').innerText.includes('onerror=')")
            await screen.press("Escape")
            await screen.until("!document.querySelector('dialog')")
        assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
        assert "pwned" not in await screen.run("document.title")
