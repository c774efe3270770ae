"""The pages Search and Trends on the dashboard."""

import pytest


@pytest.fixture
async def shown(stage, screen):
    """Return a function that opens a page of the scene by its address."""
    link, _ = stage
    await screen.open(link)
    await screen.until("document.querySelector('tbody a')")
    return screen


def texts(selector):
    return f"[...document.querySelectorAll({selector!r})].map(each => each.textContent)"


async def test_hits_mark_matches_and_open_the_session_at_the_message(shown):
    await shown.go("#/search")
    await shown.until("document.querySelector('main form[aria-label=Search] input[name=q]')")
    await shown.fill("main form[aria-label=Search] input[name=q]", "invoi*")
    await shown.press("Enter")
    await shown.until("document.querySelectorAll('.hit mark').length > 1")
    marks = await shown.run(texts(".hit mark"))
    assert {each.lower()[:5] for each in marks} == {"invoi"}
    assert await shown.run("location.hash") == "#/search?q=invoi*"
    words = await shown.run("document.querySelector('.hit .snippet').innerText")
    await shown.run("document.querySelector('.hit a').click()")
    await shown.until("location.hash.startsWith('#/sessions/')")
    turn = await shown.until("document.querySelector('.turn.target')?.innerText")
    assert words[:25] in turn


async def test_address_contains_the_filters(shown):
    await shown.go("#/search?q=invoice&role=user&agent=clerk")
    await shown.until("document.querySelector('.hit')")
    chosen = await shown.run(
        "[...document.querySelectorAll('form[aria-label=Search] input, form[aria-label=Search] select')]"
        ".filter(each => each.value).map(each => each.name + '=' + each.value)"
    )
    assert chosen == ["q=invoice", "role=user", "agent=clerk"]
    assert await shown.run("document.querySelector('.hits').innerText.includes('answer,')") is False
    await shown.go("#/search?q=nothinglikethis")
    await shown.until("document.querySelector('main .empty')")


async def test_upper_limits_are_filters(shown):
    """The form has upper limits of the cost and duration of a session. They reach the server."""
    await shown.go("#/search?q=invoice")
    await shown.until("document.querySelector('.hit')")
    await shown.fill("main input[name=max_cost]", "0.5")
    await shown.fill("main input[name=max_seconds]", "0.000001")
    await shown.run("document.querySelector('form[aria-label=Search]').requestSubmit()")
    await shown.until("document.querySelector('main .empty')")
    assert await shown.run("location.hash") == "#/search?q=invoice&max_cost=0.5&max_seconds=0.000001"
    assert shown.asked("max_cost=0.5&min_seconds") + shown.asked("max_cost=0.5&max_seconds=0.000001") == 1


async def test_filters_alone_find_messages(shown):
    """A search needs no words: the empty form shows no hits, and a filter alone shows the messages that match."""
    await shown.go("#/search")
    await shown.until("document.querySelector('main form[aria-label=Search] input[name=agent]')")
    assert not await shown.run("document.querySelector('.hits')")
    await shown.fill("main form[aria-label=Search] input[name=agent]", "clerk")
    await shown.press("Enter")
    await shown.until("document.querySelectorAll('.hit').length > 1")
    assert await shown.run("location.hash") == "#/search?agent=clerk"
    assert not await shown.run("document.querySelector('.hit mark')")


async def test_an_invalid_query_shows_the_reason(shown):
    await shown.go("#/search?q=...")
    await shown.until("document.querySelector('main .err')?.innerText.includes('has no word')")
    shown.tab.complaints.clear()  # the browser logs each 422


async def test_trends_show_a_chart_and_a_table(shown):
    await shown.go("#/trends")
    await shown.until("document.querySelector('.chart rect')")
    text = await shown.run("document.querySelector('.chart').getAttribute('aria-label')")
    assert text.startswith("Turns by day, from 20")
    (total,) = await shown.run(
        "[...document.querySelectorAll('tfoot tr')].map(each => each.cells[2].innerText)"
    )
    assert int(total) > 0
    columns = await shown.run(texts("thead th"))
    assert columns[5:8] == ["Duration p50", "Duration p95", "Duration p99"]
    button = "[...document.querySelectorAll('.seg button')].find(each => each.textContent === '{}')"
    await shown.run(button.format("Agent") + ".click()")
    await shown.until(
        "[...document.querySelectorAll('tbody td')].some(each => each.innerText.startsWith('clerk'))"
    )
    await shown.run(button.format("Cost") + ".click()")
    await shown.until("document.querySelector('.chart').getAttribute('aria-label').startsWith('Cost by day')")
    assert "by=agent" in await shown.run("location.hash")


async def test_trends_are_filtered_by_name(shown):
    """A filter by agent, model or owner counts only their turns. The address has the filter."""
    await shown.go("#/trends?by=owner")
    total = "Number(document.querySelector('tfoot tr')?.cells[2].innerText)"
    everything = int(await shown.until(total))
    await shown.fill("main input[name=agent]", "lead")
    await shown.run("document.querySelector('form[aria-label=Filter]').requestSubmit()")
    await shown.until("location.hash.includes('agent=lead')")
    await shown.until(f"{total} === 1")
    assert everything > 1
    names = await shown.run(
        "[...document.querySelectorAll('tbody td.wide')].map(each => each.firstChild.data)"
    )
    assert names == ["ada"]
    await shown.go("#/trends?by=model")
    named = "[...document.querySelectorAll('tbody td.wide')].map(each => each.firstChild.data).filter(each => !each.includes(' '))[0]"
    model = await shown.until(f"document.querySelector('thead th').textContent === 'Model' && {named}")
    await shown.go(f"#/trends?by=agent&owner=grace&model={model}")
    await shown.until(f"document.querySelector('main input[name=model]')?.value === '{model}'")
    await shown.until("document.querySelector('tbody td.wide')?.firstChild.data === 'clerk'")
    await shown.go("#/trends?by=agent&owner=eve")
    await shown.until("document.querySelector('main .empty')?.innerText.includes('fewer filters')")
