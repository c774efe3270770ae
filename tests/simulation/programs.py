"""Programs that the tests simulate, as texts of Python files."""

PLAIN = 'from actgent import BareAgent\n\nclerk = BareAgent("clerk", llm="openai:gpt-5.2")\n'
"""An agent without tools."""

CLERK = '''
from actgent import BareAgent, ToolContext, tool


@tool(effect="once")
async def refund(order: str, euros: int, context: ToolContext) -> str:
    """Refund an order."""
    return f"refunded {euros} euros"


@tool(effect="idempotent")
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


@tool(effect="pure")
def look(order: str) -> str:
    """Look up an order."""
    return f"seen {order}"


helper = BareAgent("helper", llm="openai:gpt-5.2", tools=[book])
clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[refund, book, sign, look, helper.as_tool()])
'''
"""Two agents with tools of each effect, one in a thread, one that needs an approval. Nothing is wrong with them."""

DOUBLE_REFUND = '''
from actgent import BareAgent, tool
from actgent.simulation import Story, invariant


@tool(effect="idempotent")  # wrong: the bank does not know the key of the call
async def refund(order: int, euros: int) -> str:
    """Refund an order."""
    return f"refunded {euros} euros"


clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[refund])


@invariant
def each_call_pays_once(story: Story) -> None:
    for session in story.sessions("clerk"):
        calls = [run.call_id for run in session.effects("refund")]
        assert len(calls) == len(set(calls)), f"{session.id} was refunded {len(calls)} times for {len(set(calls))} calls"
'''
"""A tool that is declared idempotent, and pays again after a crash."""

NETWORK = '''
import socket

from actgent import BareAgent, tool
from actgent.simulation import simulated


@tool(effect="pure")
async def fetch(page: str) -> str:
    """Fetch a page."""
    socket.create_connection(("127.0.0.1", 9))
    return "never"


clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[fetch])
'''
"""A tool that uses the network."""

SIMULATED_NETWORK = (
    NETWORK
    + """

@simulated(fetch)
async def fetch_without_network(page: str) -> str:
    return f"the text of {page}"
"""
)
"""The same with a body for simulations."""

WORKSHOP = '''
import time

from actgent import ApprovalRequest, BareAgent, ToolContext, tool

IS_STRICT = int(time.time()) % 3 == 0
"""True if this process asks for more approvals than others, as after a change of the program."""


@tool(effect="once")
async def refund(order: str, euros: int, context: ToolContext) -> str:
    """Refund an order."""
    return f"refunded {euros} euros"


@tool(effect="idempotent", approval=IS_STRICT)
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


@tool(effect="idempotent", approval=ApprovalRequest(timeout=20))
async def seal(order: str) -> str:
    """Seal an order, if an approver agrees in time."""
    return "sealed"


clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[refund, sign, seal, book])
helper = BareAgent("helper", llm="openai:gpt-5.2", tools=[book, sign, clerk.as_tool(name="ask_clerk")])
desk = BareAgent("desk", llm="openai:gpt-5.2", tools=[sign, book, seal, helper.as_tool()])
'''
"""Three agents of which two ask others, with approvals that expire. The search for planted faults runs it."""

COUNTER = '''
import time

from actgent import ApprovalRequest, BareAgent, tool

IS_STRICT = int(time.time()) % 2 == 0
"""True if this process asks for more approvals than others, as after a change of the program."""


@tool(effect="idempotent", approval=IS_STRICT)
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


@tool(effect="idempotent", approval=ApprovalRequest(timeout=20))
async def seal(order: str) -> str:
    """Seal an order, if an approver agrees in time."""
    return "sealed"


counter = BareAgent("counter", llm="openai:gpt-5.2", tools=[book, seal])
'''
"""One agent with few tools, so that most turns wait for approvals that expire. The search for planted faults runs it, too."""

TEAM = '''
from actgent import BareAgent, delegation_tools, hand_back, handoff, scheduling_tools, tool


@tool(effect="once")
async def refund(order: str) -> str:
    """Refund an order."""
    return "refunded"


@tool(effect="idempotent", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


billing = BareAgent("billing", llm="openai:gpt-5.2", tools=[refund, sign, hand_back()])
repairs = BareAgent("repairs", llm="openai:gpt-5.2", tools=[sign, hand_back(), *scheduling_tools()])
desk = BareAgent(
    "desk",
    llm="openai:gpt-5.2",
    tools=[handoff(billing), handoff(repairs), refund, *delegation_tools(["repairs"]), *scheduling_tools()],
)
'''
"""Agents that hand conversations over and back, delegate tasks, and set schedules."""

ISOLATED = '''
from actgent import BareAgent, Policy, tool


@tool(effect="pure", untrusted=True)
async def read_page(page: str) -> str:
    """Read a page."""
    return f"the page {page}"


@tool(effect="once")
async def pay(order: str) -> str:
    """Pay an order."""
    return "paid"


policy = Policy(untrusted="isolate")
helper = BareAgent("helper", llm="openai:gpt-5.2", tools=[read_page], policy=policy)
clerk = BareAgent("clerk", llm="openai:gpt-5.2", tools=[read_page, pay, helper.as_tool()], policy=policy)
'''
"""Two agents that withhold untrusted texts from their models."""

OWN_TASKS = '''
from actgent import BareAgent, ToolContext, tool
from actgent.messages import Image


@tool(effect="pure")
async def picture(name: str) -> object:
    """Return a picture."""
    return Image(b"\\x89PNG\\r\\n\\x1a\\n" + b"0" * 20, "image/png")


@tool(effect="idempotent")
async def hand_out(text: str, context: ToolContext) -> str:
    """Delegate a task."""
    return await context.session.delegate("other", text, task_id=f"own-{context.call_id}")


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


other = BareAgent("other", llm="openai:gpt-5.2", tools=[sign, picture])
main = BareAgent("main", llm="openai:gpt-5.2", tools=[picture, hand_out, sign])
'''
"""An agent whose tool delegates tasks, and tools that return pictures."""

PIPELINE = '''
from actgent import BareAgent, Pipeline, PipelineStep, tool


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


@tool(effect="idempotent")
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


finder = BareAgent("finder", llm="openai:gpt-5.2", tools=[book])
writer = BareAgent("writer", llm="openai:gpt-5.2", tools=[sign, book, finder.as_tool()])
line = Pipeline(
    "line",
    steps=[
        PipelineStep("find", agent=finder, message="Find it", retries=1, timeout=60),
        PipelineStep("past", agent=writer, message="The history"),
        PipelineStep("page", agent=writer, message="Join: {past} {find?}"),
    ],
)
desk = BareAgent("desk", llm="openai:gpt-5.2", tools=[line.as_tool(), book])
'''
"""A pipeline whose steps ask for approvals and other agents, and an agent that has it as a tool."""

MODES = '''
from actgent import BareAgent, Instruction, Mode, Modes, PlanAgent, RouterAgent, tool


@tool(effect="pure")
async def look(order: str) -> str:
    """Look up an order."""
    return "seen"


@tool(effect="once", approval=True)
async def sign(order: str) -> str:
    """Sign an order."""
    return "signed"


@tool(effect="idempotent")
async def book(order: str) -> str:
    """Book an order."""
    return "booked"


modes = Modes(Mode("review", [sign]), universal=[look], execution=[book], initial="plan")
operator = BareAgent("operator", llm="openai:gpt-5.2", modes=modes)
planner = PlanAgent("planner", llm="openai:gpt-5.2", tools=[book, sign])
desk = RouterAgent(
    "desk",
    llm="openai:gpt-5.2",
    instructions=[Instruction("SIGN", "signatures"), Instruction("BOOK", "bookings")],
    routes={"SIGN": operator, "BOOK": planner},
)
'''
"""An agent with modes, an agent that plans, and an agent that routes messages to them."""
