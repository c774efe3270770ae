"""The trace of a turn on the dashboard: all its spans, their details, zoom and keys."""

import pytest

from actgent import BareAgent, ProviderUnavailable, Retry, RetryingModel, ScriptedLLM, ToolCall, tool

from .test_dashboard import link_of

SPANS = "[...document.querySelectorAll('.span')].map(each => each.querySelector('.cut').textContent)"
DEPTHS = "[...document.querySelectorAll('.span')].map(each => Number(/ d(\\d)/.exec(each.className)[1]))"
DETAIL = "document.querySelector('.detail').innerText"
CLICK = "[...document.querySelectorAll('.span')].find(each => each.querySelector('.cut').textContent === %r).click()"
OPEN = (
    "[...document.querySelectorAll('.detail summary')].find(each => each.textContent.startsWith(%r)).click()"
)


@tool
async def weigh(what: str) -> str:
    """Weigh a thing."""
    return "2 kg " * 1500


@tool
async def fail(what: str) -> str:
    """Fail."""
    raise RuntimeError(f"no {what}")


@tool(approval=True)
async def send(place: str) -> str:
    """Send it."""
    return f"sent to {place}"


def team():
    packer = BareAgent(
        "packer",
        llm=ScriptedLLM([ToolCall("weigh", {"what": "box"}), "Packed."], repeat=True),
        tools=[weigh],
        goal="pack",
    )
    script = [
        [ToolCall("packer", {"task": "pack it"}), ToolCall("fail", {"what": "tape"})],
        ToolCall("send", {"place": "mars"}),
        "All **done**.",
        "Again.",
        ProviderUnavailable("503"),
    ]
    return [
        BareAgent("lead", llm=ScriptedLLM(script), tools=[packer.as_tool(), fail, send], temperature=0.25)
    ]


@pytest.fixture
async def traced(serving, screen):
    """Open the trace of a turn that waits for an approval. Return a function that sends further messages."""
    async with serving(agents=team()) as served, served.client("root") as client:
        await client.put("/v1/sessions/s1", json={"agent": "lead"})

        async def say(words):
            await client.post(
                "/v1/sessions/s1/messages", json={"input": words}, headers={"prefer": "wait=20"}
            )

        await say("pack and send")
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1/trace?agent=lead")
        await screen.until("document.querySelector('.span')")
        yield client, say


async def approve(client):
    (waiting,) = (await client.get("/v1/approvals")).json()["items"]
    await client.post(f"/v1/approvals/{waiting['id']}/decision", json={"approve": {}})


async def test_all_spans_of_a_turn_are_shown(traced, screen):
    """The trace shows model calls, tools, the turn of the child session, failures, suspension and approval. Open spans become ended ones."""
    client, _ = traced
    begin = ["in the inbox", "model · 1", "packer", "session of packer", "in the inbox", "model · 1", "weigh", "model · 2", "fail, failed", "model · 2"]  # fmt: skip
    waits = ["suspended, not ended", "approval of send, not ended"]
    assert await screen.run(SPANS) == [*begin, *waits]
    assert await screen.run(DEPTHS) == [0, 0, 0, 1, 2, 2, 2, 2, 0, 0, 0, 1]
    await approve(client)
    await screen.until(f"{SPANS}.at(-1) === 'model · 3'")
    assert await screen.run(SPANS) == [*begin, "suspended", "approval of send", "send", "model · 3"]
    await screen.until("document.querySelector('.head .tag').textContent === 'answered'")


async def test_session_and_trace_name_the_time_of_a_turn_in_the_same_words(traced, screen):
    """Both pages show the time from the start of the turn to its end. While the turn runs, the trace shows the time so far."""
    client, _ = traced
    assert (await screen.run("document.querySelector('.facts').textContent")).count(" so far") == 1
    await approve(client)
    await screen.until("document.querySelector('.facts').textContent.includes('took ')")
    facts = (await screen.run("document.querySelector('.facts').textContent")).split(" · ")
    await screen.go("#/sessions/s1?agent=lead")
    await screen.until("document.querySelector('.turn .about').textContent.includes('took ')")
    about = await screen.run(
        "[...document.querySelectorAll('.turn .about span')].map(each => each.textContent)"
    )
    (times,) = (each for each in about if each.startswith("took "))
    assert times in facts


async def test_details_show_what_was_sent_and_received(traced, screen):
    """A model call shows tokens, cost, record, and the request with settings and schemas. A tool call shows arguments and the whole result."""
    await screen.run(CLICK % "model · 1")
    await screen.until(f"{DETAIL}.includes('Input tokens')")
    for expected in ("Model", "Stop reason", "Cost", "Calls packer", '"task": "pack it"', "Calls fail"):
        assert expected in await screen.run(DETAIL), expected
    assert screen.asked("/request") == 0
    await screen.run(OPEN % "Request as")
    await screen.until(f"{DETAIL}.includes('Tool packer')")
    shown = await screen.run(DETAIL)
    for expected in ('"temperature": 0.25', "1. user", "pack and send", '"required": [', "Tool send"):
        assert expected in shown, expected
    await screen.run(OPEN % "Answer as")
    await screen.until(f"{DETAIL}.includes('\"stop\"')")
    await screen.run(CLICK % "weigh")
    await screen.until(f'{DETAIL}.includes(\'"what": "box"\')')
    await screen.run(OPEN % "The whole result")
    await screen.until(f"document.querySelector('.detail').innerText.length > {5 * 1500}")
    await screen.run(CLICK % "fail, failed")
    await screen.until(f"{DETAIL}.includes('no tape')")
    await screen.run(CLICK % "approval of send, not ended")
    await screen.until(f"{DETAIL}.includes('mars') && {DETAIL}.includes('open')")
    await screen.run(CLICK % "session of packer")
    await screen.until(f"{DETAIL}.includes('pack it')")
    await screen.run("[...document.querySelectorAll('.detail a')].at(-1).click()")
    await screen.until(f"{SPANS}.join() === 'in the inbox,model · 1,weigh,model · 2'")


async def test_keys_select_zoom_and_change_the_turn(traced, screen):
    """Arrow keys select spans, + - 0 zoom, and [ ] go to the previous and the next turn."""
    client, say = traced
    await approve(client)
    await say("again")
    await say("and again")
    await screen.until("document.querySelector('.head .tag').textContent === 'answered'")
    await screen.run("document.querySelector('.span').focus()")
    for _ in range(3):
        await screen.press("ArrowDown")
    await screen.until("document.querySelector('.span[aria-pressed=true] .cut').textContent === 'session of packer'")  # fmt: skip
    await screen.press("ArrowUp")
    await screen.until(f"{DETAIL}.startsWith('packer')")
    # The widest span: a short one has the minimum width at several zoom levels.
    width = "Math.max(...[...document.querySelectorAll('.span rect')].map(each => Number(each.getAttribute('width'))))"
    before = await screen.run(width)
    await screen.press("+", "+")
    await screen.until(f"{width} > {before} * 2")
    await screen.press("-")
    await screen.press("0")
    await screen.until(f"Math.abs({width} - {before}) < 0.001")
    await screen.until("![...document.querySelectorAll('.head button')].at(-1).disabled")
    await screen.press("]")
    await screen.until("document.querySelector('.facts .cut').textContent === 'again'")
    await screen.until(f"{SPANS}.join() === 'in the inbox,model · 1'")
    await screen.press("]")
    await screen.until(f"{SPANS}.join() === 'in the inbox,model · 1 failed, failed'")
    await screen.until("document.querySelector('.head .tag').textContent === 'failed'")
    await screen.press("[")
    await screen.until("document.querySelector('.facts .cut').textContent === 'again'")
    await screen.press("[")
    await screen.until(f"{SPANS}.length === 14")
    await screen.press("[")
    await screen.until(
        "document.querySelector('main [role=status]').textContent === 'This is the first turn.'"
    )


async def test_each_turn_links_to_its_trace(traced, screen):
    """The session page links each turn to its trace."""
    client, say = traced
    await approve(client)
    await say("again")
    await screen.go("#/sessions/s1?agent=lead")
    await screen.until("document.querySelectorAll('.turn .about > a').length === 2")
    await screen.run("document.querySelector('.turn .about > a').click()")
    await screen.until(f"{SPANS}.length === 14")
    await screen.run("history.back()")
    await screen.until("document.querySelectorAll('.turn .about > a').length === 2")
    await screen.run("document.querySelectorAll('.turn .about > a')[1].click()")
    await screen.until(f"{SPANS}.join() === 'in the inbox,model · 1'")


async def test_trace_without_the_scope_journal_omits_requests(serving, screen):
    """Without the scope, the trace shows spans and details, without the request and the record."""
    async with serving(agents=team()) as served, served.client() as ada:
        await ada.put("/v1/sessions/s1", json={"agent": "lead"})
        await ada.post("/v1/sessions/s1/messages", json={"input": "go"}, headers={"prefer": "wait=20"})
        await screen.open(link_of(served, "watcher"))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1/trace?agent=lead")
        await screen.until("document.querySelector('.span')")
        await screen.run(CLICK % "model · 1")
        await screen.until(f"{DETAIL}.includes('Input tokens')")
        assert await screen.run("document.querySelectorAll('.detail summary').length") == 0


STORY = """(async () => {
    const { storyOf } = await import(new URL("static/pages/feed.js", document.baseURI).href);
    const at = (seconds) => new Date(Date.UTC(2026, 0, 1) + 1000 * seconds).toISOString();
    const usage = { total: { input_tokens: 1, output_tokens: 1, cost: 0 } };
    const answer = (id, end, calls, seconds) => ({ id, name: "answer", data: { turn: "t", at: at(end), usage, calls, seconds, waited: 0, text: "" } });
    const story = storyOf([
        { id: 1, name: "message", data: { message_id: "t", at: at(0), sender: {}, text: "go", parts: [] } },
        { id: 2, name: "turn", data: { turn: "t", phase: "started", at: at(1) } },
        answer(3, 2, [{ id: "c", name: "weigh" }], 9),
        { id: 4, name: "tools", data: { turn: "t", call_ids: ["c"], at: at(2) } },
        { id: 5, name: "result", data: { turn: "t", call_id: "c", tool: "weigh", status: "success", at: at(3) } },
        answer(6, 4, [], 9),
    ]);
    return story.turns[0].spans.map(each => [each.label, (each.begin - Date.UTC(2026, 0, 1)) / 1000, (each.end - Date.UTC(2026, 0, 1)) / 1000]);
})()"""


async def test_a_model_call_begins_after_the_spans_before_it(traced, screen):
    """Durations and record times come from two clocks. A duration that is too long does not move a call before its inputs."""
    assert await screen.run(STORY) == [
        ["in the inbox", 0, 1],
        ["model · 1", 1, 2],
        ["weigh", 2, 3],
        ["model · 2", 3, 4],
    ]


async def test_a_model_call_shows_its_failed_attempts(serving, screen):
    """The number of attempts that failed before the answer explains why a call took long."""
    model = RetryingModel(
        ScriptedLLM([ProviderUnavailable("503"), ProviderUnavailable("503"), "ok"]), Retry(first_delay=0.01)
    )
    async with serving(agents=[BareAgent("lead", llm=model)]) as served:
        async with served.client("root") as client:
            await client.put("/v1/sessions/s1", json={"agent": "lead"})
            await client.post("/v1/sessions/s1/messages", json={"input": "go"}, headers={"prefer": "wait=20"})
        await screen.open(link_of(served))
        await screen.until("document.querySelector('tbody a')")
        await screen.go("#/sessions/s1/trace?agent=lead")
        await screen.until("document.querySelector('.span')")
        await screen.run(CLICK % "model · 1")
        await screen.until(f"/Failed attempts before the answer\\s+2/.test({DETAIL})")
