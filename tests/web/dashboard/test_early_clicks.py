"""Input before the first drawing, and responses that arrive out of order."""

from .test_live import say
from .test_pages import shown  # noqa: F401 - a fixture

AS_SOON_AS = """(() => {
  const seen = new MutationObserver(() => {
    if (!document.querySelector(%r)) return;
    seen.disconnect();
    %s;
  });
  seen.observe(document, { childList: true, subtree: true });
})()"""
PRESS = "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '%s', bubbles: true }))"
HELD = """(() => {
  const real = window.fetch;
  window.fetch = async (...asked) => {
    const answer = await real(...asked);
    if (!window.letGo && String(asked[0]).includes("v1/approvals")) await new Promise(done => (window.letGo = done));
    return answer;
  };
})()"""


def link_of(served):
    return f"{served.gateway.url}/#key={served.tokens['root']}"


async def test_link_works_before_the_first_drawing(serving, screen):
    """A link opens its page before the first drawing."""
    async with serving() as served:
        follow = "document.querySelector('nav a[href=\"#/agents\"]').click()"
        opened = await screen.open_another(link_of(served), AS_SOON_AS % ("nav", follow))
        await screen.until("document.querySelector('main h1')?.textContent === 'Agents'")
        await screen.close(opened)


async def test_key_works_before_the_first_drawing(shown, screen):  # noqa: F811
    """A key has its effect before the first drawing."""
    await shown("agents")
    await screen.run(AS_SOON_AS % (".scrub", PRESS % "F"))
    await shown("journal")
    await screen.until("document.querySelector('dialog[open] #fork-id')")


async def test_outdated_response_is_not_shown(serving, screen):
    """The response to the first request arrives last, and is older than the shown data."""
    async with serving() as served:
        opened = await screen.open_another(link_of(served), HELD)
        await screen.until("window.letGo && document.querySelector('header .live:not(.off)')")
        async with served.client() as client:
            await client.put("/v1/sessions/s1", json={"agent": "clerk", "mode": "act"})
        await say(served, "s1", "deploy")
        await screen.until("document.querySelector('.n.hot')?.textContent === '1'")
        await screen.run("letGo(); new Promise(done => setTimeout(done, 500))")
        assert await screen.run("document.querySelector('.n.hot')?.textContent") == "1"
        await screen.close(opened)
