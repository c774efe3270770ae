"""The dashboard's pages of errors, schedules, budgets, provider limits and the journal."""

import pytest


@pytest.fixture
async def shown(stage, screen):
    """Return a function that opens a page of the scene by name."""
    link, pages = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")

    async def show(name):
        await screen.go(pages[name])
        return screen

    return show


def text_of(selector):
    return f"[...document.querySelectorAll({selector!r})].map(each => each.innerText)"


async def test_errors_are_grouped(shown):
    """Each error kind appears once, the newest first, with its count, remedy and sessions."""
    screen = await shown("errors")
    heads = await screen.run(text_of("main section h2"))
    assert [each.split() for each in heads] == [
        ["limit", "1", "LimitReached"],
        ["model", "3", "ProviderUnavailable"],
    ]
    assert "raise Limits(model_calls=...)" in await screen.run(
        "document.querySelector('main .err').innerText"
    )
    await screen.run("document.querySelectorAll('main summary')[1].click()")
    links = await screen.run(
        "[...document.querySelectorAll('main section')[1].querySelectorAll('a')].map(each => each.textContent)"
    )
    assert links == ["scout-west", "scout-south", "scout-north"]
    await screen.run("document.querySelectorAll('main section')[1].querySelector('a').click()")
    await screen.until("document.querySelector('main h1').textContent === 'scout-west'")
    await screen.until("document.querySelector('.turn .err').innerText.includes('503')")


async def test_removed_schedule_can_be_restored(shown):
    """A removed schedule is struck out and disappears after a delay. Until then, *Keep* restores it."""
    screen = await shown("schedules")
    button = "document.querySelector('button[aria-label=\"{} call the bank\"]')"
    await screen.run(button.format("Remove") + ".click()")
    await screen.until(button.format("Keep"))
    await screen.run(button.format("Keep") + ".click()")
    await screen.until(button.format("Remove"))
    await screen.run(button.format("Remove") + ".click()")
    await screen.until(f"document.querySelectorAll('tbody tr').length === 2 && !{button.format('Keep')}")
    await screen.run("document.querySelectorAll('.seg button')[2].click()")
    await screen.until("document.querySelector('main').innerText.includes('No schedules of this kind')")


async def test_budgets_are_sorted_by_remaining_share(shown):
    """Each limit has a row with a bar. The label of the bar is the used share in percent."""
    screen = await shown("budgets")
    rows = await screen.run("[...document.querySelectorAll('tbody tr')].map(each => [each.cells[1].innerText, each.querySelector('svg').getAttribute('aria-label')])")  # fmt: skip
    shares = [int(expected.split(" %")[0]) for _, expected in rows]
    assert [name for name, _ in rows[:2]] == ["tokens", "tool calls"]
    assert (rows[1][1], shares) == ("75 % used", sorted(shares, reverse=True))


async def test_provider_limits_are_drawn_live(shown):
    """Windows and buckets show their figures. A plot draws the current values and has a text alternative."""
    screen = await shown("rate-limiters")
    assert "0 of a window of 100" in await screen.run("document.querySelector('main dl').innerText")
    await screen.until("document.querySelector('.plot canvas')")
    drawn = """(() => { const c = document.querySelector(".plot canvas");
      return c.getContext("2d").getImageData(0, 0, c.width, c.height).data.some(each => each > 0); })()"""
    await screen.until(drawn)
    assert "a window of 100, 0 at the provider" in await screen.run("document.querySelector('.plot [role=img]').getAttribute('aria-label')")  # fmt: skip


async def test_journal_page_shows_past_states(shown):
    """Keys move through the records. The page shows the state, its changes and the conversation at the selected record."""
    screen = await shown("journal")
    at = "document.querySelector('.scrub .mono').textContent"
    assert await screen.run(at) == "12 / 47"
    await screen.until("document.querySelector('.diff').innerText.includes('_mode')")
    assert await screen.run("document.querySelectorAll('.diff .add, .diff .del').length") == 0
    for number in range(13, 24):
        await screen.press("]")
        await screen.until(f"{at} === '{number} / 47'")
    await screen.until("document.querySelector('.diff .add')?.innerText.includes('4711 counts four pallets')")
    await screen.until("document.querySelector('.chat.bounded').innerText.includes('<b>to Ada & Sons</b>')")
    assert await screen.run("document.querySelectorAll('.chat.bounded b b').length") == 0
    await screen.press("[")
    await screen.until("document.querySelectorAll('.diff .add').length === 0")
    assert "at=22" in await screen.run("location.hash")
    kinds = "[...document.querySelectorAll('.records .tag')].map(each => each.textContent)"
    assert "spent" not in await screen.run(kinds)
    await screen.run("document.querySelectorAll('.seg button')[1].click()")
    await screen.until(f"{kinds}.filter(each => each === 'spent').length > 10")


async def test_fork_is_independent_of_the_original(shown):
    """A fork from a record gets another message and answers it. The original session does not change."""
    screen = await shown("journal")
    await screen.run("document.querySelectorAll('.records button')[2].click()")  # before the first turn
    await screen.until("document.querySelector('.scrub .mono').textContent === '3 / 47'")
    await screen.press("F")
    await screen.fill("#fork-message", "Hello from elsewhere")
    await screen.fill("#fork-id", "copy-1")
    await screen.press("Enter")
    await screen.until("document.querySelector('main h1').textContent === 'copy-1'")
    await screen.until("document.body.innerText.includes('I have read: Hello from elsewhere')")
    assert await screen.run("document.querySelectorAll('.turn').length") == 1
    await screen.go("#/sessions/invoice-4711?agent=clerk")
    await screen.until("document.querySelectorAll('.turn').length === 2")


async def test_session_is_compared_with_the_current_code(shown):
    """The dialog reports that the replay is equal, or names the first difference."""
    screen = await shown("journals")
    await screen.go("#/journal/letter-01?agent=clerk")
    await screen.run("document.querySelector('.head .btn').click()")
    same = "document.querySelector('dialog .compared p')?.innerText.includes('gives the same results up to record 9')"
    await screen.until(same)
    await screen.press("Escape")
    await screen.until("!document.querySelector('dialog')")


async def test_rejected_fork_keeps_the_input(shown):
    """The dialog reports that the id exists."""
    screen = await shown("journal")
    await screen.press("F")
    await screen.fill("#fork-id", "letter-01")
    await screen.press("Enter")
    await screen.until("document.querySelector('dialog .err')")
    assert await screen.run("document.querySelector('#fork-id').value") == "letter-01"
    screen.tab.complaints.clear()  # the browser logs the 409


async def test_expired_key_keeps_the_input(shown):
    """A dialog above the page requests another key, and the page keeps its input."""
    screen = await shown("session")
    await screen.fill("textarea[name=text]", "half a senten")
    key = await screen.run("sessionStorage.getItem('actgent.key')")
    await screen.run("sessionStorage.setItem('actgent.key', 'act_wrong')")
    await screen.run(
        "document.dispatchEvent(new Event('visibilitychange'))"
    )  # a page that becomes visible sends requests
    await screen.until("document.querySelector('dialog[open] #key')")
    assert "has expired" in await screen.run("document.querySelector('dialog .err').innerText")
    await screen.fill("#key", key)
    await screen.press("Enter")
    await screen.until("!document.querySelector('dialog')")
    assert await screen.run("document.querySelector('textarea[name=text]').value") == "half a senten"
    screen.tab.complaints.clear()  # the browser logs each 401


@pytest.mark.parametrize(
    "place", ["errors", "schedules", "budgets", "rate-limiters", "evaluations", "memories", "journal"]
)
async def test_unreachable_server_keeps_the_page(serving, screen, place):
    """The page keeps its content, marks it as outdated, and reconnects automatically or by a click."""
    async with serving() as served:
        address = served.gateway.url
        await screen.open(f"{address}/#key={served.tokens['root']}")
        await screen.until("document.querySelector('nav')")
        await screen.go(f"#/{place}")
        await screen.until("document.querySelector('main .empty')")
    await screen.until("document.querySelector('main .err')?.innerText.includes('What you see is from')")
    await screen.until("document.querySelector('header .live').textContent.includes('reconnecting')")
    assert await screen.run("document.querySelector('main .empty') !== null")
    async with serving(bind=address.partition("//")[2]) as served:
        await screen.run(f"sessionStorage.setItem('actgent.key', {served.tokens['root']!r})")
        await screen.run("document.querySelector('main .err button').click()")
        await screen.until("!document.querySelector('main .err')")
    screen.tab.complaints.clear()  # of requests while the server was down


async def test_several_calls_are_approved_after_a_confirmation(shown):
    """The conversation is shown below the oldest call. One confirmation approves all calls. A call that cannot be approved remains with the reason."""
    screen = await shown("approvals")
    assert "Yes, please credit the rest." in await screen.until("document.querySelector('.before').innerText")
    button = "[...document.querySelectorAll('main section button')].find(each => each.textContent.startsWith('Approve all 2'))"
    await screen.run(f"{button}.click()")
    await screen.until("document.querySelectorAll('dialog[open] li').length === 2")
    await screen.press("a")  # is not a key of this dialog
    assert await screen.run("document.querySelectorAll('dialog[open] li').length") == 2
    await screen.run(
        "[...document.querySelectorAll('dialog button')].find(each => each.textContent === 'Approve all').click()"
    )
    await screen.until("document.body.innerText.includes('No pending approvals')")
    await screen.go("#/sessions/credit-12?agent=clerk")
    await screen.until("document.querySelector('main').innerText.includes('answered')")


async def test_next_model_request_is_shown(shown):
    """The request is loaded when its section is opened. It is the request that follows the selected record."""
    screen = await shown("journal")
    await screen.until("document.querySelector('.view')")
    assert screen.asked("/request") == 0
    await screen.run("document.querySelector('.view summary').click()")
    await screen.until("document.querySelector('.view .chat').innerText.includes('pallets came, not four')")
    assert "find_invoice" in await screen.run("document.querySelector('.view').innerText")
    assert "tokens" in await screen.run("document.querySelector('.view summary').innerText")
    await screen.run("document.querySelector('[aria-label=\"The last record\"]').click()")
    await screen.until(
        "document.querySelector('.view').innerText.includes('No model call follows this record.')"
    )
