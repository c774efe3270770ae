"""The page of memories."""

import pytest

from actgent import BareAgent, LongTermMemory, ScriptedLLM

TEXTS = "[...document.querySelectorAll('.hit .snippet')].map(each => each.textContent)"
BUTTONS = "[...document.querySelectorAll('main button')].map(each => each.innerText.trim())"


@pytest.fixture
async def memories():
    async with LongTermMemory() as opened:
        yield opened


@pytest.fixture
async def remembering(serving, memories):
    """Yield a gateway with an agent that has memories."""
    agent = BareAgent("clerk", llm=ScriptedLLM(["Noted."]), long_term_memory=memories)
    async with serving(agents=[agent]) as served:
        yield served


async def enter(served, screen, name, place):
    """Open a page of the dashboard with a token."""
    await screen.open(f"{served.gateway.url}/#key={served.tokens[name]}")
    await screen.until("document.querySelector('nav')")
    await screen.go(place)


async def test_memories_are_corrected_and_forgotten_by_keys(remembering, memories, screen):
    """An owner opens the page, corrects the memory, and forgets it, without a mouse."""
    await memories.remember("Ada lives in London", owner="ada", kind="home")
    await enter(remembering, screen, "ada", "#/sessions")
    await screen.press("g", "m")
    await screen.until("document.querySelector('.hit')")
    assert await screen.run("document.querySelector('main').innerText.includes('Owner')") is False
    await screen.run("document.querySelector('.hit .btn').focus()")
    await screen.press("Enter")
    await screen.until("document.activeElement.name === 'text'")
    await screen.run("document.activeElement.select()")
    await screen.tab.call("Input.insertText", text="Ada lives in Paris")
    for _ in range(20):  # a field of a date has several stops
        await screen.press("Tab")
        if await screen.run("document.activeElement.name") == "is_kept":
            break
    await screen.press(" ")
    await screen.press("Enter")
    await screen.until("document.querySelector('.hit .snippet')?.textContent === 'Ada lives in Paris'")
    (memory,) = await memories.page(owner="ada")
    assert (memory.text, memory.kind, memory.is_kept) == ("Ada lives in Paris", "home", True)
    assert "pinned" in await screen.run("document.querySelector('.hit').innerText")
    await screen.run("document.querySelector('.hit .link').click()")
    await screen.until("document.querySelector('.hit').innerText.includes('Ada lives in London')")
    await screen.run("document.querySelector('.hit .btn.bad').focus()")
    await screen.press("Enter")
    await screen.until("document.querySelector('dialog[open]')")
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")
    assert len(await memories.page(owner="ada")) == 1
    await screen.press("Enter")
    await screen.until("document.querySelector('dialog[open]')")
    await screen.run("document.querySelector('dialog .bad').focus()")
    await screen.press("Enter")
    await screen.until("document.querySelector('main .empty')")
    assert await memories.export("ada") == []


async def test_address_contains_the_search(remembering, memories, screen):
    """A search finds words. Its address opens the same list again, and the list continues in pages."""
    for number in range(60):
        await memories.remember(f"fact {number}", owner="ada")
    await memories.remember("Ada drinks tea", owner="ada", kind="habit")
    await enter(remembering, screen, "ada", "#/memories")
    await screen.until("document.querySelectorAll('.hit').length === 50")
    await screen.run("[...document.querySelectorAll('main > .btn')].at(-1).click()")
    await screen.until("document.querySelectorAll('.hit').length === 61")
    await screen.fill("main input[name=q]", "tea")
    await screen.press("Enter")
    await screen.until("document.querySelectorAll('.hit').length === 1")
    assert await screen.run("location.hash") == "#/memories?q=tea&agent=clerk"
    await screen.reload()
    await screen.until("document.querySelectorAll('.hit').length === 1")
    assert await screen.run(TEXTS) == ["Ada drinks tea"]
    await screen.go("#/memories?agent=clerk&kind=nothing")
    await screen.until("document.querySelector('main .empty')")


async def test_a_memory_that_was_replaced_meanwhile_keeps_the_input(remembering, memories, screen):
    """The second of two editors gets the reason, and keeps the text."""
    made = await memories.remember("Ada lives in London", owner="ada")
    await enter(remembering, screen, "ada", "#/memories")
    await screen.until("document.querySelector('.hit')")
    await screen.run("document.querySelector('.hit .btn').click()")
    await screen.until("document.querySelector('.hit textarea')")
    await memories.update(made.id, "Ada lives in Rome", owner="ada")
    await screen.fill(".hit textarea", "No: ")
    await screen.run("document.querySelector('.hit .btn.main').click()")
    await screen.until("document.querySelector('.hit .err')?.innerText.includes('already replaced')")
    assert "No: " in await screen.run("document.querySelector('.hit textarea').value")
    assert [each.text for each in await memories.page(owner="ada")] == ["Ada lives in Rome"]
    screen.tab.complaints.clear()  # the browser logs the 409


async def test_all_memories_are_forgotten_after_a_confirmation(remembering, memories, screen):
    """An admin selects an owner, and erases its memories and sessions. The button needs the name of the owner."""
    await memories.remember("secret", owner="ada", metadata={"actgent.sources": "web"})
    await memories.remember("of Bob", owner="bob")
    async with remembering.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "clerk"})
    await enter(remembering, screen, "root", "#/memories")
    await screen.until("document.querySelectorAll('tbody a').length === 2")
    await screen.run("document.querySelector('tbody a').click()")
    await screen.until("document.querySelector('.hit')?.innerText.includes('from web')")
    await screen.run("document.querySelector('main > .row .bad').click()")
    await screen.until("document.querySelector('dialog[open]')")
    await screen.fill("dialog input:not([type])", "ad")
    assert await screen.run("document.querySelector('dialog .bad').disabled") is True
    await screen.fill("dialog input:not([type])", "a")
    await screen.run("document.querySelector('dialog input[type=checkbox]').click()")
    await screen.press("Enter")
    await screen.until(
        "document.querySelector('main').innerText.includes('Erased: 1 memory, 1 session with their child sessions')"
    )
    assert [owner.name for owner, _ in await memories.owners()] == ["bob"]
    async with remembering.client("root") as root:
        assert (await root.get("/v1/sessions")).json()["items"] == []


async def test_controls_need_their_scopes(remembering, memories, screen):
    """A token with `read` has no buttons that change memories."""
    await memories.remember("secret", owner="ada")
    await enter(remembering, screen, "watcher", "#/memories")
    await screen.until("document.querySelector('.hit')")
    assert await screen.run(BUTTONS) == ["Find", "History and links"]


async def test_an_owner_cannot_erase_sessions(remembering, memories, screen):
    """The confirmation of a token without `admin` has no box for sessions."""
    await memories.remember("secret", owner="ada")
    await enter(remembering, screen, "ada", "#/memories")
    await screen.until("document.querySelector('.hit')")
    await screen.run("document.querySelector('main > .row .bad').click()")
    await screen.until("document.querySelector('dialog[open]')")
    assert await screen.run("document.querySelector('dialog input[type=checkbox]')") is None
