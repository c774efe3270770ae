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


async def test_hits_mark_matches_and_link_to_their_session(shown):
    await shown.go("#/search")
    await shown.until("document.querySelector('main form[aria-label=Search] input[name=q]')")
    await shown.fill("main form[aria-label=Search] input[name=q]", "invoi*")
    await shown.press("Enter")
    await shown.until("document.querySelectorAll('.hit mark').length > 1")
    marks = await shown.run(texts(".hit mark"))
    assert {each.lower()[:5] for each in marks} == {"invoi"}
    assert await shown.run("location.hash") == "#/search?q=invoi*"
    await shown.run("document.querySelector('.hit a').click()")
    await shown.until("location.hash.startsWith('#/sessions/')")


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
    button = "[...document.querySelectorAll('.seg button')].find(each => each.textContent === '{}')"
    await shown.run(button.format("Agent") + ".click()")
    await shown.until(
        "[...document.querySelectorAll('tbody td')].some(each => each.innerText.startsWith('clerk'))"
    )
    await shown.run(button.format("Cost") + ".click()")
    await shown.until("document.querySelector('.chart').getAttribute('aria-label').startsWith('Cost by day')")
    assert "by=agent" in await shown.run("location.hash")
