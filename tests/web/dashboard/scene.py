"""A gateway with data for each page: active and suspended sessions, errors, schedules, budgets and provider limits."""

import json
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from actgent import (
    ApprovalRequest,
    BareAgent,
    Limits,
    LongTermMemory,
    ProviderUnavailable,
    RateLimitedModel,
    RateLimiter,
    ScriptedLLM,
    ToolCall,
    ToolContext,
    handoff,
    open_gateway,
    open_runtime,
    tool,
)
from actgent.evaluation import DatasetFolder, evaluate, load_cases, store_report
from actgent.modes.tool_permissions_by_mode import Modes
from actgent.web.access_tokens import new_token
from actgent.web.gateway_limits import GatewayLimits

PAGES = {
    "agents": "#/agents",
    "sessions": "#/sessions",
    "new": "#/new?agent=clerk",
    "session": "#/sessions/invoice-4711?agent=clerk",
    "trace": "#/sessions/invoice-4711/trace?agent=clerk",
    "compare": "#/compare?a=letter-01&aa=clerk&b=invoice-4711&ba=clerk",
    "compared": "#/compare?a=letter-01&aa=clerk",
    "approvals": "#/approvals",
    "errors": "#/errors",
    "schedules": "#/schedules",
    "budgets": "#/budgets",
    "rate-limiters": "#/rate-limiters",
    "search": "#/search?q=invoice",
    "trends": "#/trends",
    "datasets": "#/evaluations",
    "dataset": "#/evaluations/invoices",
    "evaluation": "#/evaluations/invoices/20261105T090000.000000Z-5",
    "memory-owners": "#/memories",
    "memories": "#/memories?agent=scout&owner=ada",
    "dead-letters": "#/dead-letters",
    "webhooks": "#/webhooks",
    "journals": "#/journal",
    "journal": "#/journal/invoice-4711?agent=clerk&at=12",
}
"""Paths of the dashboard's pages, by the names of their pictures."""


@tool(effect="pure")
async def find_invoice(number: int) -> str:
    """Find an invoice by its number."""
    return f"Invoice {number}: four pallets, 1,200 EUR, <b>to Ada & Sons</b>"


@tool
async def note(text: str, context: ToolContext) -> str:
    """Write something down."""
    notes = (*context.state.get("notes", ()), text)
    context.state.dispatch(("notes", list(notes)))
    return "It is written down."


@tool(approval=ApprovalRequest("Is the credit note right?"))
async def credit(number: int, amount: float) -> str:
    """Write a credit note for an invoice."""
    return f"Invoice {number} was credited with {amount} EUR."


def clerk(chat):
    """Find an invoice, note the result, and credit the invoice after an approval."""
    last = chat.messages[-1]
    results = [part for part in last.parts if type(part).__name__ == "ToolResult"]
    if not results:
        text = "".join(part.text for part in last.parts if type(part).__name__ == "Text")
        if "credit" in text:
            return ToolCall("credit", {"number": 4711, "amount": 600.0})
        return ToolCall("find_invoice", {"number": 4711}) if "4711" in text else f"I have read: {text}"
    if results[0].tool_name == "find_invoice":
        return ToolCall("note", {"text": "4711 counts four pallets"})
    return "The invoice counts four pallets.\nYou say that two have come: shall I write a credit note?"


async def remember(memories):
    """Store memories of ada: one from a web page, one with an earlier version, one that is expired."""
    lives = await memories.remember("Ada lives in London", owner="ada", kind="fact", importance=0.9)
    await memories.remember(
        "Invoice 4711 counts four pallets",
        owner="ada",
        kind="episode",
        agent="clerk",
        session_id="invoice-4711",
        metadata={"actgent.sources": "web, mail:bob"},
    )
    await memories.remember("Ada is on holiday", owner="ada", valid_until=1_700_000_000.0)
    await memories.update(lives.id, "Ada lives in Paris", owner="ada", is_kept=True)
    await memories.remember("Grace writes letters", owner="grace")


CASES = (
    {"input": "Who is the customer of invoice 4711?", "contains": ["Ada", "Sons"], "tags": ["lookup"]},
    {"input": "What does invoice 4711 count?", "expected": "four pallets", "tags": ["lookup"], "calls": []},
    {
        "input": ["Two pallets came.", "Credit the rest."],
        "expected": "600 EUR",
        "tags": ["credit", "approval"],
    },
)
ANSWERS = (
    ("Ada", "two pallets", "I cannot do that.", "I cannot do that."),
    ("Ada", "four pallets", "I cannot do that.", "I cannot do that."),
    ("Ada & Sons", "four pallets", "Which invoice?", "I credited 500 EUR."),
    ("The customer is Ada & Sons.", "four pallets", "Which invoice?", "I credited 600 EUR."),
    ("The customer is Ada.", "It counts four pallets.", "Shall I?", "I credited 600 EUR."),
)
"""Answers to the messages of the cases in each evaluation, oldest first."""


async def store_evaluations(folder):
    """Write a dataset with five evaluations, and an empty dataset."""
    path = folder / "invoices.jsonl"
    source = {"session": {"agent": "clerk", "id": "invoice-4711"}}
    lines = [json.dumps({"name": f"invoice-{n}", **each, **source}) for n, each in enumerate(CASES, 1)]
    path.write_text("\n".join(lines), encoding="utf-8")
    (folder / "empty.jsonl").write_text("", encoding="utf-8")
    for number, answers in enumerate(ANSWERS, 1):
        agent = BareAgent("clerk", llm=ScriptedLLM(answers))
        report = await evaluate(load_cases(path), {"clerk": agent}, concurrency=1)
        document = json.loads(report.to_json())
        (row,) = document["variants"]
        row["p50"], row["p95"], row["usage"]["cost"] = 2.1 - number / 10, 3.4 - number / 5, number / 1000
        stored = store_report(path, json.dumps(document))
        stored.rename(stored.with_name(f"2026110{number}T090000.000000Z-{number}.json"))


def agents(memories):
    rate_limiter = RateLimiter(requests_per_minute=600, tokens_per_minute=200_000)
    clerk_agent = BareAgent(
        "clerk",
        llm=RateLimitedModel(ScriptedLLM(clerk, name="clerk-model"), rate_limiter),
        tools=[find_invoice, note, credit],
        role="a clerk",
        goal="keep the invoices right",
        modes=Modes(commands=False),
        limits=Limits(model_calls=25, seconds=300),
    )
    return [
        clerk_agent,
        BareAgent(
            "scout", llm=ScriptedLLM([ProviderUnavailable("503")], repeat=True), long_term_memory=memories
        ),
        BareAgent(
            "lead",
            llm=ScriptedLLM(lambda chat: ToolCall("find_invoice", {"number": len(chat.messages)})),
            tools=[find_invoice, clerk_agent.as_tool(), handoff(to=clerk_agent)],
            limits=Limits(model_calls=3),
        ),
    ]


async def play(client):
    """Send the messages that create the scene."""

    async def make(session_id, agent, **more):
        answer = await client.put(f"/v1/sessions/{session_id}", json={"agent": agent, **more})
        assert answer.status_code == 201, answer.text

    async def say(session_id, words):
        path, body = f"/v1/sessions/{session_id}/messages", {"input": words}
        answer = await client.post(path, json=body, headers={"prefer": "wait=30"})
        assert answer.status_code in (200, 202), answer.text
        return answer.json()

    for number in range(12):
        await make(f"letter-{number:02}", "clerk", owner="grace")
        await say(f"letter-{number:02}", f"Letter {number} has come.")
    for name in ("north", "south", "west"):
        await make(f"scout-{name}", "scout", owner="ada")
        assert (await say(f"scout-{name}", "What is there?"))["status"] == "failed"
    await make("lead-1", "lead", owner="ada")
    assert (await say("lead-1", "Find them all."))["status"] == "failed"
    await make("invoice-4711", "clerk", owner="ada", mode="act", limits={"tokens": 30_000, "tool_calls": 4})
    await say("invoice-4711", "My invoice 4711 is wrong: <i>two</i> pallets came, not four.")
    assert (await say("invoice-4711", "Yes, please credit the rest."))["status"] == "suspended"
    await make("credit-12", "clerk", owner="grace", mode="act")
    await say("credit-12", "Please credit 12.")
    for what in (
        {"input": "write the report", "cron": "0 9 * * mon", "zone": "Europe/Berlin"},
        {"input": "call the bank", "after": 250},
        {"input": "check the oven", "cron": "*/15 * * * *"},
    ):
        made = await client.post("/v1/sessions/letter-03/schedules", json=what)
        assert made.status_code == 201, json.dumps(made.json())


@asynccontextmanager
async def open_scene(client_of):
    """Yield the address of a gateway with the played scene, and an admin key."""
    secret, token = new_token("root", owner="root", scopes=("admin",))
    async with LongTermMemory() as memories, open_runtime(journal="memory:", index=True) as runtime:
        await remember(memories)
        for agent in agents(memories):
            await runtime.start(agent)
        with tempfile.TemporaryDirectory() as folder:
            await store_evaluations(Path(folder))
            options = {
                "tokens": [token],
                "limits": GatewayLimits(grace=1, rate=1000, burst=1000),
                "datasets": DatasetFolder(folder),
            }
            async with open_gateway(runtime, bind="127.0.0.1:0", **options) as gateway:
                async with client_of(gateway.url, secret) as client:
                    await play(client)
                yield f"{gateway.url}/#key={secret}"
