"""Pages on slow and lost connections: responses that arrive after the user went on, and requests that fail."""

import json

from .test_dashboard import link_of, waiting_for_a_person
from .test_live import make

HOLDING = """(() => {
  const real = window.fetch;
  const held = [];
  Object.assign(window, { asked: [], delays: [], holds: null, loses: null });
  window.letGo = () => { holds = null; held.splice(0).forEach(each => each()); };
  window.heldCount = () => held.length;
  window.fetch = async (address, options) => {
    const words = `${options?.method || "GET"} ${address}`;
    asked.push(words);
    if (loses && words.includes(loses)) throw new TypeError("Failed to fetch");
    const isHeld = holds && words.includes(holds);
    const answer = await real(address, options);
    if (isHeld) await new Promise(done => held.push(done));
    return answer;
  };
  const timer = window.setTimeout;
  window.setTimeout = (run, delay, ...more) => (delays.push(delay), timer(run, delay, ...more));
})()"""
"""Script that holds the responses to requests with the words `holds` until `letGo()`, and fails those with the words `loses`."""
HELD = "heldCount() > 0"
ROWS = "document.querySelectorAll('tbody tr').length"
A_MOMENT = "new Promise(done => setTimeout(done, 300))"


async def open_holding(screen, link):
    """Open the dashboard with the script that holds responses."""
    await screen.open_another(link, HOLDING)
    await screen.until("document.querySelector('main h1')")
    return screen


async def hold(screen, words):
    await screen.run(f"holds = {json.dumps(words)}; 0")


async def let_go(screen):
    """Let the held responses arrive, and wait until the page has handled them."""
    await screen.run(f"letGo(); {A_MOMENT}")


async def count_of(screen, words):
    """Return the number of requests of the page that contain the words."""
    return await screen.run(f"asked.filter(each => each.includes({json.dumps(words)})).length")


async def test_text_that_is_typed_during_the_request_stays(serving, screen):
    """The accepted message leaves the field, and the beginning of the next message stays."""
    async with serving() as served:
        await make(served, "s1")
        await open_holding(screen, link_of(served))
        await screen.go("#/sessions/s1?agent=clerk")
        await hold(screen, "POST v1/sessions/s1/messages")
        await screen.fill(".say textarea", "one")
        await screen.run("document.querySelector('.say textarea').form.requestSubmit()")
        await screen.until(HELD)
        await screen.fill(".say textarea", "two")
        await let_go(screen)
        await screen.until("document.querySelector('.say textarea').value === 'two'")
        await screen.until("document.body.innerText.includes('you said: one')")


async def test_second_key_press_does_not_decide_again(serving, screen):
    """The key for Approve is pressed twice before the response. One request is sent, and the card leaves."""
    async with serving() as served:
        await waiting_for_a_person(served)
        await open_holding(screen, link_of(served))
        await screen.go("#/approvals")
        await screen.until("document.querySelector('.ask')")
        await hold(screen, "/decision")
        await screen.press("a")
        await screen.until(HELD)
        await screen.press("a")
        await let_go(screen)
        await screen.until("document.querySelector('main').innerText.includes('No pending approvals')")
        assert await count_of(screen, "/decision") == 1


async def test_late_response_does_not_open_its_page(serving, screen):
    """The user leaves a form or the trace during its request. The response does not navigate."""
    async with serving() as served:
        await make(served, "s1", "hello")
        await open_holding(screen, link_of(served))
        await screen.go("#/new?agent=clerk")
        await hold(screen, "POST v1/sessions")
        await screen.run("document.querySelector('form.new').requestSubmit()")
        await screen.until(HELD)
        await screen.go("#/agents")
        await let_go(screen)
        assert await screen.run("location.hash") == "#/agents"
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until("document.querySelector('.edit')")
        await screen.run("document.querySelector('.edit').click()")
        await screen.until("document.querySelector('form[aria-label=\"Edit and resend\"]')")
        await hold(screen, "/fork")
        await screen.run("document.querySelector('form[aria-label=\"Edit and resend\"]').requestSubmit()")
        await screen.until(HELD)
        await screen.go("#/agents")
        await let_go(screen)
        assert await screen.run("location.hash") == "#/agents"


async def test_previous_turn_that_fails_to_load_is_reported(serving, screen):
    """A lost request for the previous turn shows an error. Its late response does not navigate."""
    async with serving() as served:
        await make(served, "s1", "hello")
        await make(served, "s1", "again")
        await open_holding(screen, link_of(served))
        await screen.go("#/sessions/s1/trace?agent=clerk")
        await screen.until("document.querySelector('.span')")
        await screen.run("loses = '/events?'; 0")
        await screen.press("[")
        await screen.until(
            "document.querySelector('main').innerText.includes('could not be loaded: The server')"
        )
        await screen.run("loses = null; 0")
        await hold(screen, "/events?")
        await screen.press("[")
        await screen.until(HELD)
        await screen.go("#/agents")
        await let_go(screen)
        assert await screen.run("location.hash") == "#/agents"


async def test_next_page_of_sessions_is_loaded_once(serving, screen):
    """A second click on *Show more* during the request loses no row. A page of another filter is not shown."""
    async with serving() as served:
        clerk = served.runtime.agents.agent("clerk")
        for number in range(130):
            await clerk.create_session("ada", session_id=f"s{number:03}")
        await open_holding(screen, link_of(served))
        more = "[...document.querySelectorAll('main .btn')].find(each => each.textContent === 'Show more')"
        await screen.until(f"{ROWS} === 100 && {more}")
        await hold(screen, "after=")
        await screen.run(f"{more}.click()")
        await screen.run(f"{more}.click()")
        await screen.until(HELD)
        await let_go(screen)
        await screen.until(f"{ROWS} === 130")
        await screen.run("location.hash = '#/sessions?q=s12'")
        await screen.until(f"{ROWS} === 10")
        await screen.run("location.hash = '#/sessions?q=s'")
        await screen.until(f"{ROWS} === 100 && {more}")
        await hold(screen, "after=")
        await screen.run(f"{more}.click()")
        await screen.until(HELD)
        await screen.run("location.hash = '#/sessions?q=s12'")
        await screen.until(f"{ROWS} === 10")
        await let_go(screen)
        assert await screen.run(ROWS) == 10


async def test_rows_of_another_choice_are_not_shown(stage, screen):
    """Until the response, a page does not show the memories, hits, statistics or sessions of the choice before."""
    link, pages = stage
    await open_holding(screen, link)
    for first, second, requested, shown in (
        ("#/memories?agent=scout&owner=ada", "#/memories?agent=scout&owner=grace", "/memories?owner=grace", ".hit"),
        ("#/search?q=invoice", "#/search?q=letter", "/search?q=letter", ".hit"),
        ("#/trends", "#/trends?by=agent", "/trends?by=agent", "tbody tr"),
        (pages["compare"], "#/compare?a=letter-02&aa=clerk&b=letter-03&ba=clerk", "sessions/letter-02", ".figures"),
    ):  # fmt: skip
        await screen.go(first)
        await screen.until(f"document.querySelector('main {shown}')")
        await hold(screen, requested)
        await screen.run(f"location.hash = {json.dumps(second)}")
        await screen.until(HELD)
        assert await screen.run(f"document.querySelectorAll('main {shown}').length") == 0
        await let_go(screen)
        await screen.until(f"document.querySelector('main {shown}')")


async def test_comment_stays_after_a_failed_request(serving, screen):
    """A comment on an answer is not saved: the error is shown, and the comment can be sent again."""
    async with serving() as served:
        await make(served, "s1", "hello")
        await open_holding(screen, link_of(served))
        await screen.go("#/sessions/s1?agent=clerk")
        await screen.until("document.querySelector('[aria-label=\"Good answer\"]')")
        await screen.run("document.querySelector('[aria-label=\"Good answer\"]').click()")
        await screen.until("document.querySelector('input[name=comment]')")
        await screen.fill("input[name=comment]", "as expected")
        await screen.run("loses = '/feedback'; 0")
        await screen.press("Enter")
        await screen.until("document.querySelector('.feedback .err')")
        await screen.run("loses = null; 0")
        assert await screen.run("document.querySelector('input[name=comment]').value") == "as expected"
        await screen.run("document.querySelector('input[name=comment]').form.requestSubmit()")
        await screen.until("document.querySelector('.judged').innerText.includes('as expected')")


async def test_failed_request_is_repeated_while_the_stream_is_connected(serving, screen):
    """A lost request is repeated after seconds, also if the event stream does not report the loss."""
    async with serving() as served:
        await make(served, "s1", "hello")
        await open_holding(screen, link_of(served))
        await screen.until("document.querySelector('header .live:not(.off)')")
        await screen.run("loses = 'v1/statistics'; 0")
        await make(served, "s2", "hello")
        await screen.until("document.querySelector('header .live.off')")
        await screen.run("new Promise(done => setTimeout(done, 3000))")  # the requests after the events end
        await screen.run("loses = null; 0")
        await screen.until("document.querySelector('header .live:not(.off)')")


async def test_provider_limits_are_requested_every_two_seconds(stage, screen):
    """The plot has ten minutes in 300 samples."""
    link, pages = stage
    await open_holding(screen, link)
    await screen.go(pages["rate-limiters"])
    await screen.until("document.querySelector('.plot canvas')")
    await screen.until("delays.includes(2000)")


async def test_case_is_added_once(stage, screen):
    """A second click on *Add case* before the response adds no second case."""
    link, _ = stage
    await open_holding(screen, link)
    await screen.go("#/sessions/letter-01?agent=clerk")
    button = "[...document.querySelectorAll('main .head button')].find(each => each.textContent === 'Add to dataset')"
    await screen.until(button)
    await screen.run(f"{button}.click()")
    await screen.until("document.querySelector('dialog input[name=dataset]')")
    await screen.fill("dialog input[name=dataset]", "empty")
    await screen.until("document.querySelector('dialog textarea[name=expected]').value")
    await hold(screen, "/cases")
    form = "document.querySelector('dialog form').requestSubmit()"
    await screen.run(f"{form}; {form}")
    await screen.until(HELD)
    await let_go(screen)
    await screen.until("document.querySelector('dialog').innerText.includes('Added as case')")
    assert await count_of(screen, "/cases") == 1
