"""Content of the pages for each scope of the key, for each width of the window, and during a model call."""

import attrs
import pytest
import trio

from actgent import ApprovalRequest, BareAgent, Limits, ProviderUnavailable, ScriptedLLM, ToolCall, tool

TEXT = "document.querySelector('main').innerText"
BUTTONS = "[...document.querySelectorAll('main button, main .btn')].map(each => each.innerText.trim()).join()"
CUT = """[...document.querySelectorAll('main, main .scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className} ${each.scrollWidth} > ${each.clientWidth}`).join()"""


@tool(approval=ApprovalRequest("Is the account right?"))
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool
def reach(place: str) -> str:
    """Reach a place."""
    raise RuntimeError(f"no way to {place}")


class PricedLLM(ScriptedLLM):
    """A model with cheap answers."""

    async def complete(self, chat, **options):
        answer = await super().complete(chat, **options)
        return attrs.evolve(answer, usage=attrs.evolve(answer.usage, cost=0.00042))


def payer(chat):
    text = "".join(part.text for part in chat.messages[-1].parts if hasattr(part, "text"))
    if "reach" in text:
        return ToolCall("reach", {"place": "mars"})
    return ToolCall("pay", {"amount": 7}) if "pay" in text else "It is done."


def agents():
    return [
        BareAgent(
            "clerk",
            llm=PricedLLM(payer),
            tools=[pay, reach],
            goal="keep the books right",
            limits=Limits(tokens=10**9),
        )
    ]


async def say(served, session_id, words, name="ada"):
    async with served.client(name) as client:
        await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk", "limits": {"tokens": 10**9}})
        body = {"json": {"input": words}, "headers": {"prefer": "wait=20"}}
        answer = await client.post(f"/v1/sessions/{session_id}/messages", **body)
        assert answer.status_code in (200, 202), answer.text


def link_of(served, name="root"):
    return f"{served.gateway.url}/#key={served.tokens[name]}"


async def test_calls_approved_together_are_distinguishable(serving, screen):
    """The list shows two equal payments with their sessions and their question."""
    async with serving(agents=agents()) as served:
        for name in ("north", "south"):
            await say(served, name, "pay")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/approvals")
        await screen.run("document.querySelector('section:nth-of-type(2) h2 button').click()")
        listed = await screen.until("document.querySelector('dialog .listed').innerText")
    for expected in ("north", "south", "clerk", "Is the account right?"):
        assert expected in listed


async def decide(served, session_id):
    """Approve the pending call of a session, as another user does."""
    async with served.client("root") as root:
        (approval,) = (
            each
            for each in (await root.get("/v1/approvals")).json()["items"]
            if each["session_id"] == session_id
        )
        await root.post(f"/v1/approvals/{approval['id']}/decision", json={"approve": {}})


async def pending(served):
    async with served.client("root") as root:
        return sorted(each["session_id"] for each in (await root.get("/v1/approvals")).json()["items"])


async def test_a_call_that_is_decided_elsewhere_keeps_the_written_decision(serving, screen):
    """The card stays with the text and a notice, so that no key reaches the next call. The next call appears on request."""
    async with serving(agents=agents()) as served:
        for name in ("north", "south"):
            await say(served, name, "pay")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/approvals")
        await screen.press("r")
        await screen.until("document.activeElement.tagName === 'TEXTAREA'")
        await screen.tab.call("Input.insertText", text="not ")
        await decide(served, "north")
        await screen.until("document.querySelector('.ask .err')?.innerText.includes('decided elsewhere')")
        await screen.press("a")
        assert await screen.run("document.activeElement.value") == "not a"
        assert await screen.run("document.querySelector('.ask .btn.main').disabled")
        assert "north" in await screen.run("document.querySelector('section h2').innerText")
        await screen.run("[...document.querySelectorAll('.ask .btn')].at(-1).click()")
        await screen.until("document.querySelector('section h2').innerText.includes('south')")
        assert await pending(served) == ["south"]


async def test_a_key_does_not_reach_a_call_that_appeared_just_now(serving, screen):
    """If another user decides the shown call, the next call takes its place and ignores keys for a second. A repeated key decides nothing."""
    async with serving(agents=agents()) as served:
        for name in ("north", "south"):
            await say(served, name, "pay")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/approvals")
        await screen.until("document.querySelector('.ask pre')")
        repeated = "dispatchEvent(new KeyboardEvent('keydown', { key: 'a', repeat: true, bubbles: true }))"
        await screen.run(f"document.body.{repeated}")
        await screen.run("""new MutationObserver(() => {
          if (window.pressed || !document.querySelector("section h2").innerText.includes("south")) return;
          window.pressed = true;
          document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "a", bubbles: true }));
        }).observe(document.querySelector("main"), { childList: true, subtree: true, characterData: true })""")
        await decide(served, "north")
        await screen.until("window.pressed")
        await trio.sleep(1.1)
        assert await pending(served) == ["south"]
        await screen.press("a")
        await screen.until("document.body.innerText.includes('No pending approvals')")


@pytest.mark.parametrize("width", [390, 360])
async def test_no_column_is_cut_on_a_phone(stage, screen, width):
    """At the width of a phone each page shows all columns without horizontal scrolling."""
    link, places = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    await screen.tab.look(width, "light")
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await screen.tab.call("Emulation.setDeviceMetricsOverride", **size)
    for name, place in places.items():
        await screen.go(place)
        assert await screen.run(CUT) == "", name


async def test_figures_and_errors_are_readable(serving, screen):
    """A cost of less than a tenth of a cent is not shown as `$0.000`. The goal describes the agent. A failed tool is an error."""
    async with serving(agents=agents()) as served:
        await say(served, "s1", "reach it")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        about = await screen.until(
            "document.querySelector('.turn .about').innerText.includes('answered') && document.querySelector('.turn .about').innerText"
        )
        assert "$0.00084" in about
        await screen.go("#/agents")
        assert "keep the books right" in await screen.run(TEXT)
        await screen.go("#/errors")
        shown = await screen.run(TEXT)
        assert "RuntimeError: no way to mars" in shown
        assert "Tool: reach" in shown


@pytest.mark.parametrize(("name", "has"), [("watcher", False), ("root", True)])
async def test_controls_of_other_scopes_are_absent(serving, screen, name, has):
    """A key that only reads sees no control of another scope. A key with the scope sees the controls."""
    controls = ("Send", "Stop", "Close", "Journal", "Approve", "Reject", "Good answer", "Remove")
    labels = "[...document.querySelectorAll('main [aria-label]')].map(each => each.getAttribute('aria-label')).join()"
    async with serving(agents=agents()) as served:
        await say(served, "s1", "hello")
        await say(served, "s1", "pay")
        async with served.client() as ada:
            await ada.post("/v1/sessions/s1/schedules", json={"input": "look", "after": 900})
        await screen.open(link_of(served, name))
        await screen.until("document.querySelector('tbody a')")
        seen = []
        for place in ("#/sessions/s1?agent=clerk", "#/approvals", "#/schedules"):
            await screen.go(place)
            await screen.until("!document.querySelector('main').innerText.includes('Loading')")
            if place.startswith("#/sessions"):
                await screen.until("document.querySelectorAll('.turn').length === 2")
            seen.append(f"{await screen.run(BUTTONS)} {await screen.run(labels)}")
        assert {each: each in " ".join(seen) for each in controls} == dict.fromkeys(controls, has)
        assert ("Journal" in await screen.run("document.querySelector('nav').innerText")) == has


@pytest.mark.parametrize(("name", "may_chat"), [("watcher", False), ("ada", True), ("root", True)])
async def test_owner_and_scopes_of_the_token_are_shown(serving, screen, name, may_chat):
    """The header names the owner, and the key dialog has scopes and expiry. `n` and links to new sessions require `chat`."""
    async with serving(agents=agents()) as served:
        async with served.client(name) as client:
            token = (await client.get("/v1/me")).json()
        await screen.open(link_of(served, name))
        await screen.until("document.querySelector('main .empty b')")
        assert await screen.run("document.querySelector('header .owner').textContent") == token["owner"]
        await screen.press("?")
        facts = (await screen.until("document.querySelector('dialog .me')?.innerText")).split("\n")
        assert dict(zip(facts[::2], facts[1::2], strict=True)) == {
            "Owner": token["owner"],
            "Token": token["name"],
            "Scopes": ", ".join(token["scopes"]),
            "Expires": "never",
        }
        await screen.press("Escape")
        await screen.until("!document.querySelector('dialog')")
        for place in ("#/sessions", "#/agents"):
            await screen.go(place)
            assert (
                await screen.run("document.querySelector('main a[href^=\"#/new\"]') !== null")
            ) == may_chat
        await screen.press("n")
        expected = "#/new" if may_chat else "#/agents"
        await screen.until(f"location.hash === '{expected}' && !document.querySelector('dialog')")


async def test_journal_without_the_scope_names_it(serving, screen):
    """The journal page names the required scope, and does not load forever."""
    async with serving(agents=agents()) as served:
        await say(served, "s1", "hello")
        await screen.open(link_of(served, "watcher"))
        await screen.until("document.querySelector('tbody a')")
        await screen.run("location.hash = '#/journal/s1?agent=clerk'")
        await screen.until("document.querySelector('main').innerText.includes('scope journal')")
        assert "Loading" not in await screen.run(TEXT)


async def test_unreadable_records_end_the_loading(serving, screen, monkeypatch):
    """If the gateway rejects the request for records, the page shows only the error."""
    from actgent.web.problem_documents import Problem
    from actgent.web.routes import records_forks_and_replays

    async def refuse(call):
        raise Problem("unavailable", "the journal is being moved")

    endpoint = next(
        each for each in records_forks_and_replays.ENDPOINTS if each.path == "/sessions/{id}/records"
    )
    async with serving(agents=agents()) as served:
        await say(served, "s1", "hello")
        monkeypatch.setattr(type(endpoint), "__setattr__", object.__setattr__)
        monkeypatch.setattr(endpoint, "answer", refuse)
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.run("location.hash = '#/journal/s1?agent=clerk'")
        await screen.until("document.querySelector('main').innerText.includes('is being moved')")
        assert "Loading" not in await screen.run(TEXT)
        screen.tab.complaints.clear()  # the browser logs each refusal


@pytest.mark.parametrize("fails", [False, True])
async def test_a_turn_is_timed_while_the_model_works(serving, screen, fails):
    """The badge is `working` when the turn starts. The time of a failed model call counts as model time, not as inbox time."""
    answers = trio.Event()

    async def think(_):
        await answers.wait()
        if fails:
            raise ProviderUnavailable("503")
        return "done"

    async with serving(agents=[BareAgent("clerk", llm=ScriptedLLM(think))]) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until("document.querySelector('main .live:not(.off)')")
        await ada.post("/v1/sessions/s1/messages", json={"input": "hello"})
        await screen.until("document.querySelector('.turn .tag')?.innerText === 'working'")
        await screen.run("new Promise(done => setTimeout(done, 300))")  # duration of the model call
        answers.set()
        await screen.until(
            f"document.querySelector('.turn .tag').innerText === '{'failed' if fails else 'answered'}'"
        )
        rows = (await screen.until("document.querySelector('.tl').innerText")).split("\n")
    spans = dict(zip(rows[::2], rows[1::2], strict=True))
    model = "model · 1 failed" if fails else "model · 1"
    assert set(spans) == {"in the inbox", model}
    assert int(spans[model].removesuffix(" ms")) >= 250
    assert int(spans["in the inbox"].removesuffix(" ms")) < 250
