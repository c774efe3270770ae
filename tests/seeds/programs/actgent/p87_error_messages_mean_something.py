"""Error messages are meaningful, and the system stays stable: the error of a wrong configuration names the value and the remedy.

Document: Best Practices, Error Handling.
"""

from actgent import ActgentError, Agent, BareAgent, ReActAgent, SchemaBuilder, ScriptedLLM, tool


@tool(thread=False)
def search(name: str) -> str:
    """Search."""
    return name


def llm():
    return ScriptedLLM([])


WRONG = [
    (lambda: BareAgent("", llm=llm()), ["name"]),
    (lambda: BareAgent("clerk", llm="unknown:model"), ["unknown"]),
    (lambda: BareAgent("clerk", llm=llm(), tools=[search, search]), ["search"]),
    (lambda: BareAgent("clerk", llm=llm(), tools=["search"]), ["search"]),
    (lambda: ReActAgent("clerk", llm=llm(), instructions=["a", "A"]), ["a", "A"]),
    (lambda: ReActAgent("clerk", llm=llm(), instructions=[{"name": "a", "tol": "x"}]), ["tol", "tool"]),
    (lambda: Agent("clerk", llm=llm(), assistant_prompt="{{ session.ownr }}"), ["ownr"]),
    (lambda: SchemaBuilder(["greeting"]).remove("greting").build(), ["greting"]),
]


def main() -> None:
    for wrong, parts in WRONG:
        try:
            wrong()
        except (ActgentError, TypeError) as error:
            assert all(part in str(error) for part in parts), (parts, str(error))
            assert len(str(error).split()) > 4, error
        else:
            raise AssertionError(parts)


main()
