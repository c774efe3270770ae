"""Live lists, which all tabs update from one shared stream."""

import pytest

STREAM = "/v1/events?watch="
POLLS = ("/v1/statistics", "/v1/sessions?", "/v1/approvals", "/v1/errors")
ROWS = "[...document.querySelectorAll('tbody tr')].map(each => each.querySelector('a').textContent).join()"
LIVE = "document.querySelector('header .live:not(.off)')"
ALONE = "delete window.BroadcastChannel; Object.defineProperty(navigator, 'locks', { value: undefined });"


def link_of(served):
    return f"{served.gateway.url}/#key={served.tokens['root']}"


async def make(served, session_id, words=None):
    async with served.client() as client:
        await client.put(f"/v1/sessions/{session_id}", json={"agent": "clerk", "mode": "act"})
        if words is not None:
            await say(served, session_id, words)


async def say(served, session_id, words):
    async with served.client() as client:
        body = {"input": words}
        await client.post(f"/v1/sessions/{session_id}/messages", json=body, headers={"prefer": "wait=20"})


async def test_rows_keep_their_position(serving, screen):
    """A change updates its row in place. New rows and the new order appear after a click."""
    async with serving() as served:
        for name in ("s1", "s2", "s3"):
            await make(served, name, "hello")
        await screen.open(link_of(served))
        await screen.until(f"{ROWS} === 's3,s2,s1' && {LIVE}")
        await say(served, "s1", "deploy")
        await screen.until(
            "document.querySelectorAll('tbody tr')[2].innerText.includes('waits for an approval')"
        )
        assert await screen.run(ROWS) == "s3,s2,s1"
        await screen.until("document.querySelector('.head button.fresh').textContent === 'Newest first'")
        await make(served, "s4", "hello")
        await screen.until("document.querySelector('.head button.fresh').textContent === 'Show 1 new'")
        assert await screen.run(ROWS) == "s3,s2,s1"
        await screen.run("document.querySelector('.head button.fresh').click()")
        await screen.until(f"{ROWS} === 's4,s1,s3,s2'")
        assert await screen.run("document.querySelector('.head button.fresh')") is None


async def test_idle_page_sends_no_requests(serving, screen):
    """A page with an open stream sends no requests. After an event, each page shows the new state within a moment."""
    async with serving() as served:
        await make(served, "s1", "hello")
        await screen.open(link_of(served))
        await screen.until(f"{ROWS} === 's1' && {LIVE}")
        await screen.run(
            "new Promise(done => setTimeout(done, 3000))"
        )  # the requests after the connection end
        asked = [screen.asked(each) for each in POLLS]
        await screen.run("new Promise(done => setTimeout(done, 7000))")
        assert [screen.asked(each) for each in POLLS] == asked
        await say(served, "s1", "deploy")
        await screen.until("document.querySelector('.n.hot').textContent === '1'")
        assert screen.asked("/v1/approvals") > asked[2]


async def test_tabs_share_a_stream(serving, screen):
    """The second tab gets the events from the first tab. When the first tab closes, the second tab opens a stream and misses no event."""
    async with serving() as served:
        await make(served, "s1", "hello")
        first = await screen.open_another(link_of(served))
        await screen.until(f"{ROWS} === 's1' && {LIVE}")
        second = await screen.open_another(link_of(served))
        await screen.until(f"{ROWS} === 's1' && {LIVE}")
        await say(served, "s1", "deploy")
        for tab in (second, first):
            await screen.turn_to(tab)
            await screen.until("document.querySelector('.n.hot')?.textContent === '1'")
        assert screen.asked(STREAM) == 1
        await screen.turn_to(second)
        await screen.close(first)
        await make(served, "s2", "deploy")
        await screen.until("document.querySelector('.n.hot').textContent === '2'")
        await screen.until(LIVE)
        assert screen.asked(STREAM) == 2
        third = await screen.open_another(f"{served.gateway.url}/#key={served.tokens['ada']}")
        await screen.until(LIVE)  # another key can see other events
        assert screen.asked(STREAM) == 3
        for each in (third, second):
            await screen.close(each)


async def test_hanging_tab_is_replaced_as_reader(serving, screen):
    """A tab that blocks while it reads the shared stream is skipped."""
    async with serving() as served:
        await make(served, "s1", "hello")
        first = await screen.open_another(link_of(served))
        await screen.until(f"{ROWS} === 's1' && {LIVE}")
        second = await screen.open_another(link_of(served))
        await screen.until(f"{ROWS} === 's1' && {LIVE}")
        await screen.turn_to(first)
        await screen.run(
            "setTimeout(() => { const end = Date.now() + 40000; while (Date.now() < end); }, 50); 0"
        )
        await screen.turn_to(second)
        await screen.run("new Promise(done => setTimeout(done, 1000))")
        await make(served, "s2", "deploy")
        await screen.until("document.querySelector('.n.hot')?.textContent === '1'")
        await screen.close(first)
        await screen.close(second)


@pytest.mark.parametrize("before", [ALONE, "delete window.BroadcastChannel"])
async def test_tabs_without_channels_read_separately(serving, screen, before):
    """If the browser has no channels or locks, each tab opens its own stream and shows the same content."""
    async with serving() as served:
        await make(served, "s1", "hello")
        opened = [await screen.open_another(link_of(served), before) for _ in range(2)]
        for tab in opened:
            await screen.turn_to(tab)
            await screen.until(f"{ROWS} === 's1' && {LIVE}")
        await say(served, "s1", "deploy")
        for tab in opened:
            await screen.turn_to(tab)
            await screen.until("document.querySelector('.n.hot')?.textContent === '1'")
        assert screen.asked(STREAM) == 2
        for tab in opened:
            await screen.turn_to(tab)
            await screen.close(tab)
