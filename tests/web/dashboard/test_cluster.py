"""The page of the cluster, and its endpoint."""

from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import trio

from actgent import BareAgent, ScriptedLLM, connect, open_gateway, open_runtime
from actgent.web.access_tokens import new_token

PATIENCE = 120
"""Seconds for a whole test on a loaded machine."""
DIGGER = "<img/src=x/onerror=document.title='pwned'>"
"""Name of the agent without a node."""
TEXT = "document.querySelector('main').innerText"
CUT = """[...document.querySelectorAll('main, main .scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className} ${each.scrollWidth} > ${each.clientWidth}`).join()"""
SECRET, ROOT = new_token("root", owner="root", scopes=("admin",))
READING, WATCHER = new_token("watcher", owner="ada", scopes=("read",))


@asynccontextmanager
async def open_node(journal, name, *agents):
    """Open a node of the cluster `test` with agents of these names. Yield its runtime and its gateway."""
    async with open_runtime(journal=journal, cluster="test", node=name) as runtime:
        for agent in agents:
            await runtime.start(BareAgent(agent, llm=ScriptedLLM(["Good day."], repeat=True)))
        async with open_gateway(runtime, bind="127.0.0.1:0", tokens=[ROOT, WATCHER]) as gateway:
            yield runtime, gateway


async def wait_shared(runtime):
    """Wait until two nodes own all partitions. Return the status of the cluster."""
    while True:
        status = await runtime.cluster_status()
        owners = {each.owner for each in status.partitions if each.is_served}
        if len(status.nodes) == 2 == len(owners) and all(each.is_served for each in status.partitions):
            return status
        await trio.sleep(0.2)


@asynccontextmanager
async def open_cluster(journal):
    """Yield the runtime and gateway of one of two nodes. A third node has left an open session of the agent `DIGGER`."""
    async with open_node(journal, "old", "clerk", DIGGER) as (runtime, _):
        await runtime.agents.agent(DIGGER).create_session(owner="ada", session_id="s1")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(open_node(journal, "first", "clerk"))
        await stack.enter_async_context(open_node(journal, "second", "clerk"))
        await wait_shared(first[0])
        yield first


async def test_status_is_equal_over_http(postgres_url):
    """The Python client returns the status that the runtime returns. Only an admin may read it."""
    with trio.fail_after(PATIENCE):
        async with (
            open_cluster(postgres_url) as (runtime, gateway),
            connect(gateway.url, token=SECRET) as root,
        ):
            known, read = await runtime.cluster_status(), await root.cluster_status()
            assert [each.name.partition("-")[0] for each in read.nodes] == ["first", "second"]
            assert (read.layout, list(read.nodes)) == (known.layout, list(known.nodes))
            assert (read.unhosted, read.is_whole, read.dead) == ({DIGGER: 1}, False, 0)
            assert len(read.partitions) == sum(each.partitions for each in read.nodes) == 256
            headers = {"authorization": f"Bearer {READING}"}
            async with httpx2.AsyncClient(base_url=gateway.url, headers=headers) as ada:
                assert (await ada.get("/v1/cluster")).status_code == 403
                assert "node" not in (await ada.get("/v1/statistics")).json()


async def test_page_shows_nodes_and_partitions(postgres_url, screen):
    """The page lists the nodes, the agent without a node as text, and the partitions of a node. The address has the filter."""
    with trio.fail_after(PATIENCE):
        async with open_cluster(postgres_url) as (runtime, gateway):
            name = runtime.cluster().node
            await screen.open(f"{gateway.url}/#key={SECRET}")
            await screen.until("document.querySelector('nav').innerText.includes('Cluster')")
            await screen.press("g", "c")
            await screen.until("document.querySelectorAll('main tbody tr').length === 2")
            shown = await screen.run(TEXT)
            assert "incomplete" in shown
            assert f"{DIGGER} 1 open session" in " ".join(shown.split())
            assert "0 of 256" in shown
            row = await screen.run("document.querySelector('main tbody tr').innerText")
            assert name in row
            assert "this server" in row
            assert await screen.run("document.querySelectorAll('main img, main script').length") == 0
            await screen.run("document.querySelector('main tbody a').click()")
            await screen.until(f"location.hash.includes('node={name}')")
            await screen.run("document.querySelector('main .seg button:last-child').click()")
            await screen.until("location.hash.includes('all=1')")
            owned = next(
                each.partitions for each in (await runtime.cluster_status()).nodes if each.name == name
            )
            await screen.until(
                f"document.querySelectorAll('main table')[1]?.tBodies[0].rows.length === {owned}"
            )


async def test_page_is_accessible_and_fits_a_phone(postgres_url, screen, axe):
    """The page has no finding of axe, and no column is cut at the width of a phone."""
    with trio.fail_after(PATIENCE):
        async with open_cluster(postgres_url) as (_, gateway):
            await screen.open(f"{gateway.url}/#key={SECRET}")
            await screen.until("document.querySelector('nav').innerText.includes('Cluster')")
            await screen.go("#/cluster?all=1")
            await screen.until("document.querySelectorAll('main table').length === 2")
            assert await axe() == []
            await screen.tab.look(360, "light")
            assert await screen.run(CUT) == ""


async def test_server_outside_of_a_cluster_has_no_page(serving, screen):
    """The endpoint answers null, and the navigation has no link."""
    async with serving() as served, served.client("root") as root:
        answer = await root.get("/v1/cluster")
        assert (answer.status_code, answer.json()) == (200, {"cluster": None})
        assert await served.runtime.cluster_status() is None
        async with connect(served.gateway.url, token=served.tokens["root"]) as client:
            assert await client.cluster_status() is None
        await screen.open(f"{served.gateway.url}/#key={served.tokens['root']}")
        await screen.until("document.querySelector('nav .n')?.innerText === '2'")
        assert "Cluster" not in await screen.run("document.querySelector('nav').innerText")
        await screen.go("#/cluster")
        await screen.until("document.querySelector('main .empty b').innerText.includes('not in a cluster')")
