"""The agent of the nodes: `actgent serve clerk.py --cluster NAME`. It names the node that answers, after the delay of a typical model."""

import os

from actgent import BareAgent, ModelRequest, ScriptedLLM, Text


def answer(chat: ModelRequest) -> str:
    text = "".join(part.text for part in chat.messages[-1].parts if isinstance(part, Text))
    return f"{os.environ['CLERK_NODE']}: {text}"


clerk = BareAgent("clerk", role="a clerk", llm=ScriptedLLM(answer, delay=0.2))
