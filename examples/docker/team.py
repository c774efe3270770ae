"""The agent of the container. Replace the script by a model, e.g. llm="openai:gpt-5.2", and set its key."""

from actgent import BareAgent, ScriptedLLM

clerk = BareAgent("clerk", role="a clerk", llm=ScriptedLLM(["Noted."], repeat=True))
