"""Types, tools and helpers for the translated code blocks of the documents."""

from actgent import (
    ClassificationType,
    Message,
    ModelResponse,
    Profile,
    ReActAgent,
    ScriptedLLM,
    Sender,
    Text,
    TurnView,
    tool,
)

TYPES = (
    ClassificationType("greeting", "General greetings and pleasantries", {"content": "<text>"}),
    ClassificationType("creation", "A new agent", {"name": "<its name>"}, tool="AgentGenerator"),
)


@tool(name="AgentGenerator", thread=False)
def agent_generator(name: str) -> str:
    """Make an agent."""
    return f"made {name}"


@tool(name="FileSearchTool", thread=False)
def file_search(query: str) -> str:
    """Search files."""
    return f"found {query}"


def view(text="hello", **fields):
    """Return the view of a turn at the first message of a session."""
    message = Message(session_id="s", sender=Sender("ada"), parts=(Text(text),))
    profile = Profile(types=TYPES)
    settings = {
        "message": message,
        "record": [message],
        "state": {},
        "profile": profile,
        "tools": (),
        **fields,
    }
    return TurnView(**settings)


def answer(text):
    """Return a response of a model with this text."""
    return ModelResponse(parts=(Text(text),))


def reacting(*script, **options):
    """Return a ReActAgent with the tools of the document."""
    return ReActAgent("smith", llm=ScriptedLLM([*script]), tools=[agent_generator, file_search], **options)
