"""The diagram of the agents of a team."""

from actgent import BareAgent, Pipeline, PipelineStep, RouterAgent, ScriptedLLM, handoff, tool

from .test_dashboard import link_of


@tool
async def weigh(what: str) -> str:
    """Weigh a thing."""
    return f"{what}: 2 kg"


def team():
    def agent(name, **more):
        return BareAgent(
            name, llm=ScriptedLLM(["yes"], name=f"{name}-model"), goal=f"help with {name}", **more
        )

    billing, packer = agent("billing"), agent("packer", tools=[weigh])
    desk = agent("desk", tools=[handoff(to=billing), packer.as_tool(), weigh])
    alone = agent("<b>alone</b>")
    router = RouterAgent("front", llm=ScriptedLLM(["yes"]), routes={"pack": packer})
    steps = Pipeline("line", steps=[PipelineStep("weigh", agent=packer, message="weigh it")])
    return [desk, alone, router, steps]


async def test_links_between_agents_are_drawn(serving, screen):
    """Each handoff, agent as a tool, route and step is a labelled line. Boxes have the model and tools, and each agent has a card."""
    async with serving(agents=team()) as served:
        async with served.client() as ada:
            items = {each["name"]: each for each in (await ada.get("/v1/agents")).json()["items"]}
            one = (await ada.get("/v1/agents/desk")).json()
        assert items["desk"]["links"] == one["links"]
        assert {name: each["links"] for name, each in items.items() if each["links"]} == {
            "desk": [
                {"agent": "billing", "kind": "handoff", "name": "handoff_to_billing"},
                {"agent": "packer", "kind": "tool", "name": "packer"},
            ],
            "front": [{"agent": "packer", "kind": "route", "name": "pack"}],
            "line": [{"agent": "packer", "kind": "step", "name": "weigh"}],
        }
        await screen.open(link_of(served))
        await screen.until("document.querySelector('main a.btn.main')")
        await screen.go("#/agents")
        await screen.until("document.querySelectorAll('.team path.edge').length === 4")
        boxes = await screen.run(
            "[...document.querySelectorAll('.team .name')].map(each => each.textContent)"
        )
        assert sorted(boxes) == ["billing", "desk", "front", "line", "packer"]
        content = await screen.run("document.querySelector('.team').textContent")
        for each in ("hands over to", "calls", "routes to", "runs", "weigh"):
            assert each in content
        text = await screen.run("document.querySelector('.view ul').textContent")
        assert "desk hands over to billing as handoff_to_billing" in text
        assert await screen.run("document.querySelectorAll('.cards .panel').length") == 6
        assert "desk-model" in content
        card = await screen.run("document.querySelector('.cards [aria-label=\"<b>alone</b>\"]').textContent")
        assert "Model<b>alone</b>-model" in card.replace(" ", "")
        await screen.run("document.querySelector('.team a').focus()")
        await screen.press("Enter")
        await screen.until("location.hash.startsWith('#/sessions?agent=')")


CYCLE = """(() => {
  const before = fetch;
  const item = (name, ...others) => ({ name, models: { default: "m" }, tools: [], inbox: {}, links: others.map(agent => ({ agent, kind: "handoff", name: "give" })) });
  const items = [item("one", "two", "one"), item("two", "three"), item("three", "one")];
  window.fetch = (url, ...more) => String(url).startsWith("v1/agents") ? Promise.resolve(Response.json({ items })) : before(url, ...more);
})()"""


async def test_agents_that_call_each_other_are_drawn(serving, screen):
    """A cycle of handoffs and an agent with a handoff to itself have a finite diagram."""
    async with serving() as served:
        await screen.open(link_of(served))
        await screen.until("document.querySelector('main a.btn.main')")
        await screen.run(CYCLE)
        await screen.go("#/agents")
        await screen.until("document.querySelectorAll('.team path.edge').length === 4")
        assert await screen.run("document.querySelector('.team svg').getBoundingClientRect().width < 900")
