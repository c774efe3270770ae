"""Leads from a word that a newcomer types to the one that is meant, in the error that Python raises for it.

Type checkers see nothing of this: to them an unknown name stays one.
"""

import difflib
import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, _AsyncGeneratorContextManager
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

C = TypeVar("C", bound=type)
T = TypeVar("T")
P = ParamSpec("P")
_POSITIONAL = "*"
"""Among keywords: what to write where arguments were given without their names."""
_NONE: Mapping[str, str] = MappingProxyType({})


def leads(
    names: Mapping[str, str] = _NONE,
    *,
    keywords: Mapping[str, str] = _NONE,
    methods: Mapping[str, str] = _NONE,
) -> Callable[[C], C]:
    """Word the errors of a class: for `names` that it has not, `keywords` that it does not take, `methods` it cannot have.

    Each value says what to write instead. Unknown keywords without one are led to the nearest known, and unknown names by
    Python itself.
    """

    def decorate(cls: C) -> C:
        if names:
            _add_names(cls, names)
        if keywords:
            _add_keywords(cls, keywords)
        for name, text in methods.items():
            setattr(cls, name, _refusal(text))
        return cls

    return decorate


class _Missing:
    """Stands in a class for a name that it has not, and whose error says what to write instead.

    No `__getattr__`: a class that has one pays for it with each of its attributes, which Python looks up the long way then.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    def __get__(self, instance: object, owner: type) -> object:
        text = f"{owner.__name__!r} object has no attribute {self.name!r}: {self.text}"
        # With names of its own, so that Python's search for a similar one adds none.
        raise AttributeError(text, name=self.name, obj=None)


def _add_names(cls: Any, names: Mapping[str, str]) -> None:
    """Word the errors of `names`; where Python suggests a similar name for another one, it is a public one."""
    for name, text in names.items():
        if not hasattr(cls, name):
            setattr(cls, name, _Missing(name, text))
    cls.__dir__ = _public


def _public(self: object) -> list[str]:
    kept = (name for name in object.__dir__(self) if not name.startswith("_") or name.endswith("__"))
    return [name for name in kept if type(getattr_static(self, name, None)) is not _Missing]


def _add_keywords(cls: Any, keywords: Mapping[str, str]) -> None:
    inner = cls.__init__

    @functools.wraps(inner)
    def start(self: Any, *args: Any, **options: Any) -> None:
        try:
            inner(self, *args, **options)
        except TypeError as error:
            reworded = _reworded(error, type(self).__name__, keywords, _parameters(inner))
            if reworded is None or _depth(error) > 1:  # it comes from within
                raise
            raise reworded from None

    cls.__init__ = start


def _depth(error: BaseException) -> int:
    trace, depth = error.__traceback__, 0
    while trace is not None:
        trace, depth = trace.tb_next, depth + 1
    return depth


def _parameters(function: Any) -> list[str]:
    code = function.__code__
    return list(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


def _reworded(error: TypeError, name: str, keywords: Mapping[str, str], known: list[str]) -> TypeError | None:
    text = str(error)
    wrong = (
        text.rpartition("unexpected keyword argument ")[2].strip("'") if "unexpected keyword" in text else ""
    )
    if wrong:
        return TypeError(f"{name}() has no argument {wrong!r}{_advice(wrong, keywords, known, '=')}")
    if "positional argument" in text and "were given" in text and _POSITIONAL in keywords:
        return TypeError(f"{text.partition(' takes ')[0].partition('.')[0]}: {keywords[_POSITIONAL]}")
    missing = text.rpartition(" ")[2].strip("'") if "missing 1 required" in text else ""
    if missing in keywords:
        return TypeError(f"{name}() needs {missing}=: {keywords[missing]}")
    return None


def _advice(word: str, meant: Mapping[str, str], known: list[str], end: str = "") -> str:
    if text := meant.get(word):
        return f": {text}"
    close = difflib.get_close_matches(word, known, 1)
    return f": did you mean {close[0]}{end}?" if close else ""


def _refusal(text: str) -> Callable[..., object]:
    def refuse(*_: object) -> object:
        raise TypeError(text)

    return refuse


class _Block(_AsyncGeneratorContextManager[T]):
    """What `async with` enters, and nothing else does."""

    def __aiter__(self) -> Any:
        raise TypeError(_NOT_ENTERED.format(self.func.__qualname__))

    __enter__ = __aiter__

    def __exit__(self, *_: object) -> None:
        raise TypeError(_NOT_ENTERED.format(self.func.__qualname__))


_NOT_ENTERED = "{0}() is an async block: write `async with {0}(...) as ...:`, and what it gives inside of it"


def async_block(
    function: Callable[P, AsyncGenerator[T, None]],
) -> Callable[P, AbstractAsyncContextManager[T]]:
    """Make an async block of a generator, as `asynccontextmanager` does; what uses it in another way is told so."""

    @functools.wraps(function)
    def enter(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[T]:
        return _Block(function, args, options)

    return enter


# --- by class ----------------------------------------------------------------------------------

for_agents = leads(
    {
        "chat": "a session is talked to: session = await agent.create_session(owner), then await session.chat(text); "
        "or await agent.run(text) for one answer",
        **dict.fromkeys(
            ("on_conversation", "on_reply", "on_response"),
            "attach it to a session: session.on_conversation(fn)",
        ),
        **dict.fromkeys(
            ("on_exception", "on_error", "on_failure"), "attach it to a session: session.on_exception(fn)"
        ),
        **dict.fromkeys(
            ("on_token", "on_tool_result", "on_event", "on_routing", "on_approval"), "attach it to a session"
        ),
        **dict.fromkeys(
            ("invoke", "ask", "generate", "complete", "arun", "kickoff", "query"),
            "write await agent.run(text)",
        ),
        **dict.fromkeys(
            ("start", "open", "close", "aclose", "stop"),
            "an agent lives as long as its block: async with agent:",
        ),
        **dict.fromkeys(("session", "new_session"), "write await agent.create_session(owner)"),
        "get_or_create_session": "write await agent.ensure_session(owner, session_id)",
        "add_tool": "write Agent(..., tools=[...]), or agent.tools.add(tool)",
    },
    keywords={
        "model": "write llm='openai:gpt-5.2'",
        "llm": "write llm='openai:gpt-5.2' or llm='anthropic:MODEL'; without a key, llm=ScriptedLLM(['Hello.']) answers",
        "system": "write system_prompt=",
        **dict.fromkeys(
            ("instruction", "system_message", "backstory", "description"),
            "write system_prompt=, or role= and goal=",
        ),
        **dict.fromkeys(("functions", "toolkits"), "write tools=[...]"),
        **dict.fromkeys(
            ("output_type", "output_schema", "response_format", "result_type", "response_model"),
            "write output=",
        ),
        **dict.fromkeys(("max_turns", "max_iterations", "max_steps"), "write limits=Limits(model_calls=...)"),
        **dict.fromkeys(
            ("timeout", "max_retries", "retries"),
            "write limits=Limits(model_timeout=...), or give it to the model's client",
        ),
        **dict.fromkeys(
            ("handoffs", "agents"),
            "write tools=[handoff(to=agent)], tools=[agent.as_tool()], or RouterAgent(routes={action: agent})",
        ),
        **dict.fromkeys(
            ("api_key", "base_url"), "give it to the client: llm=OpenAI(model, api_key=..., base_url=...)"
        ),
        "journal": "a runtime has it: async with open_runtime(journal='sqlite:///agents.db') as runtime, await runtime.start(agent)",
        **dict.fromkeys(("verbose", "logging"), "write debug=True"),
    },
    methods=dict.fromkeys(("__enter__", "__exit__"), "an agent's block is async: write `async with agent:`"),
)
for_sessions = leads(
    {
        **dict.fromkeys(
            ("on_message", "on_reply", "on_response", "on_answer"), "write session.on_conversation(fn)"
        ),
        **dict.fromkeys(("on_error", "on_failure"), "write session.on_exception(fn)"),
        **dict.fromkeys(("on_tool", "on_tool_call"), "write session.on_tool_result(fn)"),
        **dict.fromkeys(("on_stream", "on_chunk", "on_delta"), "write session.on_token(fn)"),
        **dict.fromkeys(
            ("send", "say", "ask", "post", "tell", "send_message", "message"),
            "write await session.chat(text)",
        ),
        "run": "write await agent.run(text, session=session)",
        "stream": "write async with agent.stream(text, session=session) as events",
        **dict.fromkeys(("close", "end", "delete"), "write await session.aclose()"),
        **dict.fromkeys(("conversation", "transcript"), "read session.history"),
        **dict.fromkeys(("cancel", "stop", "abort"), "write await session.interrupt()"),
        **dict.fromkeys(("wait", "join"), "write await session.wait_idle()"),
        **dict.fromkeys(("approve", "reject"), "write await session.answer(approval, Approve()) or Reject()"),
        **dict.fromkeys(("user", "user_id"), "read session.owner"),
    },
    methods=dict.fromkeys(
        ("__enter__", "__exit__", "__aenter__", "__aexit__"),
        "a session is not a block: it lasts until await session.aclose(), or until its agent's block ends",
    ),
)
_DISPATCH = "a session's state changes by actions: state.dispatch([(key, value)]), or state.dispatch(lambda state: [(key, value)])"
for_states = leads(
    dict.fromkeys(("update", "set", "put", "setdefault", "pop"), _DISPATCH),
    methods=dict.fromkeys(("__setitem__", "__delitem__"), _DISPATCH),
)
for_limits = leads(
    keywords={
        **dict.fromkeys(
            ("max_tokens", "total_tokens"), "write tokens=; the longest answer is max_tokens= of the agent"
        ),
        **dict.fromkeys(("max_turns", "max_iterations", "requests", "turns", "calls"), "write model_calls="),
        **dict.fromkeys(("retries", "max_retries", "output_retries"), "write repairs="),
        **dict.fromkeys(
            ("timeout", "deadline"), "write seconds= for a turn, model_timeout= or tool_timeout="
        ),
        **dict.fromkeys(("max_cost", "usd", "budget"), "write cost="),
    }
)
for_media = leads(
    keywords={
        "*": "write Image(media_type='image/png', data=pathlib.Path('picture.png').read_bytes()), or url= for data=; File takes "
        "the same",
        **dict.fromkeys(
            ("path", "file", "filename"), "write data=pathlib.Path(...).read_bytes() and media_type="
        ),
        **dict.fromkeys(("mime_type", "type", "content_type"), "write media_type="),
        **dict.fromkeys(("content", "bytes"), "write data="),
    }
)
for_replies = leads(
    {
        **dict.fromkeys(("content", "message", "output_text"), "read reply.text"),
        **dict.fromkeys(("output", "result", "value", "parsed"), "read reply.data, or reply.text"),
    }
)
for_tokens = leads(dict.fromkeys(("content", "delta", "token", "data"), "read token.text"))
for_failures = leads(
    dict.fromkeys(
        ("message", "exception", "reason", "text"), "read failure.error, the exception, and failure.kind"
    )
)
for_results = leads(
    {
        **dict.fromkeys(
            ("result", "output", "text", "data", "value"), "read result.content, or result.error"
        ),
        "name": "read result.tool_name",
    }
)
