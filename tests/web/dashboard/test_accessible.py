"""Accessibility of each page: WCAG 2.2 A and AA as far as axe-core can check, and operation by keyboard."""


async def test_each_page_is_accessible(stage, screen, axe):
    """No page and no dialog has a finding, in both widths and in both themes."""
    link, pages = stage
    await screen.open(link)
    await screen.until("document.querySelector('nav')")
    for name, place in pages.items():
        await screen.go(place)
        assert await axe() == [], name
    await screen.go(pages["memories"])
    await screen.until("document.querySelector('.hit')")
    await screen.run("document.querySelectorAll('.hit .btn')[0].click()")
    await screen.until("document.querySelector('.hit textarea')")
    assert await axe() == [], "correct a memory"
    for place in ("main > .row .bad", ".hit .btn.bad"):
        await screen.run(f"document.querySelector('{place}').click()")
        await screen.until("document.querySelector('dialog[open]')")
        assert await axe() == [], place
        await screen.press("Escape")
        await screen.until("!document.querySelector('dialog')")
    await screen.go(pages["session"])
    await screen.until("document.querySelectorAll('.feedback .btn').length === 3")
    await screen.run("document.querySelector('.feedback .btn').click()")
    await screen.until("document.querySelector('dialog[open] textarea')")
    assert await axe() == [], "add to dataset"
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")
    await screen.go(pages["journal"])
    await screen.press("F")
    await screen.until("document.querySelector('dialog[open] textarea')")
    assert await axe() == [], "fork"
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")
    await screen.press("?")
    await screen.until("document.querySelector('dialog[open]')")
    assert await axe() == [], "keys"


async def test_empty_pages_are_accessible(serving, screen, axe):
    """Pages without data and the sign-in page have no finding."""
    async with serving(agents=[]) as served:
        await screen.open(served.gateway.url)
        await screen.until("document.querySelector('#key')")
        assert await axe() == []
        await screen.fill("#key", served.tokens["root"])
        await screen.press("Enter")
        for place in (
            "agents",
            "sessions",
            "approvals",
            "errors",
            "schedules",
            "budgets",
            "rate-limiters",
            "evaluations",
            "memories",
            "dead-letters",
            "webhooks",
            "toolsets",
            "journal",
        ):
            await screen.go(f"#/{place}")
            await screen.until("document.querySelector('main .empty')")
            assert await axe() == [], place


async def test_keyboard_focus_starts_at_the_skip_link(stage, screen):
    """The first tab stop is the link to the content. Each focused control has a visible focus."""
    link, _ = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    await screen.press("Tab")
    assert await screen.run("document.activeElement.className") == "skip"
    await screen.press("Enter")
    assert await screen.run("document.activeElement.id") == "main"
    seen = set()
    for _ in range(60):
        await screen.press("Tab")
        at = await screen.run(
            "(() => { const e = document.activeElement, s = getComputedStyle(e); return e === document.body ? ['', true] :"
            " [e.outerHTML.slice(0, 120), s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]; })()"
        )
        assert at[1], at[0]
        seen.add(at[0])
    assert len(seen) > 20


async def test_shortcuts_open_pages(stage, screen):
    """Two keys open each page. In a text field the keys are typed as letters, until Escape."""
    link, _ = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    letters = {"a": "agents", "s": "sessions", "p": "approvals", "e": "errors", "t": "schedules", "b": "budgets", "l": "rate-limiters", "f": "search", "r": "trends", "v": "evaluations", "m": "memories", "d": "dead-letters", "w": "webhooks", "o": "toolsets", "j": "journal"}  # fmt: skip
    for letter, place in letters.items():
        await screen.press("g", letter)
        await screen.until(f"document.querySelector('nav [aria-current]').hash === '#/{place}'")
        if place == "search":
            await screen.until(
                "document.activeElement.name === 'q'"
            )  # the page loads, then its field has the focus
            await screen.press("g", "r")
            assert await screen.run("document.activeElement.value") == "gr"
            await screen.press("Escape")
    await screen.press("/")
    await screen.until("document.activeElement.id === 'find'")
    await screen.press("g", "s")
    assert await screen.run("[document.activeElement.value, location.hash]") == ["gs", "#/journal"]


async def test_session_is_found_and_opened_by_keys(stage, screen):
    """`/`, a filter, Enter. `j` and `k` move in the list, Enter opens."""
    link, _ = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    await screen.press("/", *"owner:ada", "Enter")
    await screen.until("document.querySelectorAll('tbody tr').length === 5")
    await screen.press("Escape")
    await screen.run("document.activeElement.blur()")
    await screen.press("j", "j", "k", "Enter")
    expected = "document.querySelector('main h1').textContent === 'invoice-4711'"
    await screen.until(expected)
    await screen.until("document.querySelectorAll('.turn').length === 2")


async def test_dialog_traps_and_restores_the_focus(stage, screen):
    """While the dialog is open, the focus stays in it. Escape returns the focus to the previous control."""
    link, _ = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    await screen.run("document.querySelector('button[aria-label=Keys]').focus()")
    await screen.press("Enter")
    await screen.until("document.querySelector('dialog[open]')")
    for _ in range(4):
        await screen.press("Tab")
        inside = (
            "document.activeElement === document.body || document.activeElement.closest('dialog') !== null"
        )
        assert await screen.run(inside)
    await screen.press("g", "a")
    assert await screen.run("document.querySelector('nav [aria-current]').hash") == "#/sessions"
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")
    await screen.until("document.activeElement.getAttribute('aria-label') === 'Keys'")
