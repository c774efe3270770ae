"""Evaluation: run cases with two prompts, check the answers in Python, and print a table of the results.

`actgent eval examples/evaluation.py --runs 3 --html report.html` runs these cases and writes an HTML report.
"""

import trio

from actgent import BareAgent, Limits, ScriptedLLM, ToolCall, tool
from actgent.evaluation import Case, Trial, calls, contains, evaluate
from actgent.llm.model_interface import ModelRequest


@tool(thread=False, effect="pure")
def price(item: str) -> str:
    """Return the price of an item.

    Args:
        item: Name of the item.
    """
    return {"lamp": "40 crowns", "chair": "120 crowns"}.get(item, "not for sale")


BRIEF = 40


def is_brief(trial: Trial) -> bool:
    return len(trial.text) <= BRIEF


cases = [
    Case(
        name="lamp",
        input="What is a lamp?",
        expected="40 crowns",
        checks=[contains(), calls("price", item="lamp")],
    ),
    Case(name="brief", input="What is a chair?", checks=[is_brief], limits=Limits(model_calls=4)),
]


def clerk(chat: ModelRequest) -> str | ToolCall:
    """Answer as a model would: call the tool, then state the price. The prompt decides the form of the sentence."""
    last = chat.messages[-1].parts[0]
    words = getattr(last, "text", "")
    if chat.messages[-1].role == "user":
        return ToolCall("price", {"item": "lamp" if "lamp" in words else "chair"})
    return (
        words
        if "brief" in chat.system
        else f"Thank you very much for asking! It costs {words}. Anything else?"
    )


variants = {
    "brief": BareAgent("clerk", llm=ScriptedLLM(clerk), role="a clerk who is brief", tools=[price]),
    "polite": BareAgent("clerk", llm=ScriptedLLM(clerk), role="a polite clerk", tools=[price]),
}


async def main() -> None:
    report = await evaluate(cases, variants, runs=3)
    for name in report.variants:
        row = report.row(name)
        print(f"{name}: {row.passed} of {row.trials} passed, score {row.score:.2f}")
    for trial in report.trials:
        if not trial.passed and trial.run == 1:
            print(f"  {trial.variant} failed {trial.case.title}: {trial.text}")


if __name__ == "__main__":
    trio.run(main)
