"""actgent.tools.function_tool: tools from functions."""

import functools
import json
import threading
from typing import Annotated, Any

import attrs
import msgspec
import pytest

from actgent.errors import ConfigurationError, InvalidArguments
from actgent.tools import FunctionTool, Threads, ToolContext, ToolHooks, tool

CONTEXT = ToolContext(session_id="s", owner="ada")


@attrs.frozen
class City:
    name: str = attrs.field(converter=str.title)
    size: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@tool
def add(a: int, b: int = 2) -> int:
    """Add two integers.

    The sum may be negative.

    Args:
        a: The first
            number.
        b: The second number.

    Returns:
        The sum.
    """
    return a + b


def test_tool_stays_a_function():
    """A decorated function can be called directly, and has its name and docstring."""
    assert add(2, 3) == 5
    assert add(a=2) == 4
    assert add.__name__ == "add"
    assert add.__doc__.startswith("Add two integers.")


def test_spec_comes_from_signature_and_docstring():
    """Name, description and schema are those of the function."""
    assert add.spec.name == "add"
    assert add.spec.description == "Add two integers.\n\nThe sum may be negative."
    assert add.spec.parameters == {
        "type": "object",
        "properties": {
            "a": {"description": "The first number.", "type": "integer"},
            "b": {"description": "The second number.", "default": 2, "type": "integer"},
        },
        "required": ["a"],
        "additionalProperties": False,
    }


def test_texts_and_bounds_of_annotated():
    """Annotated has a description as text, and bounds as msgspec.Meta."""

    @tool
    def book(seats: Annotated[int, msgspec.Meta(ge=1, le=9), "How many."], untyped=None) -> None: ...

    assert book.parameters["properties"] == {
        "seats": {"description": "How many.", "type": "integer", "minimum": 1, "maximum": 9},
        "untyped": {"default": None},
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Args:",
        "Plain: with a colon.",
        ":param a: A.",
        "Do.\n\na : int\n@param a b:\n:\n  : x",
        "{{ a }} %s <b>",
    ],
)
def test_docstrings_of_any_style_are_accepted(text):
    """A docstring of any style is converted to a description."""

    def work(a: int) -> None: ...

    work.__doc__ = text
    assert tool(work).description


def test_default_none_makes_a_parameter_nullable():
    """`x: int = None` accepts null."""

    @tool
    def find(limit: int = None) -> None:  # noqa: RUF013 - the point of the test
        """Find."""

    assert find.parameters["properties"]["limit"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]


def test_name_describes_a_function_without_docstring():
    """Without a docstring the description is the name as text."""

    @tool
    def open_the_door() -> None: ...

    assert open_the_door.description == "Open the door"


def test_options_of_the_decorator():
    """The decorator accepts all options of FunctionTool."""
    hooks = ToolHooks(on_start=print)

    @tool(
        name="net.fetch",
        description="Fetch.",
        thread=False,
        effect="pure",
        timeout=5,
        retries=2,
        retry_on=OSError,
        retry_delay=0.5,
        cache=3,
        exclusive=True,
        hooks=hooks,
    )
    def fetch() -> str:
        return "x"

    assert (fetch.name, fetch.description, fetch.inline, fetch.effect) == (
        "net.fetch",
        "Fetch.",
        True,
        "pure",
    )
    assert (fetch.timeout, fetch.retries, fetch.retry_on, fetch.retry_delay) == (5, 2, (OSError,), 0.5)
    assert (fetch.cache, fetch.exclusive, fetch.hooks) == (3, True, (hooks,))


async def test_sync_function_runs_in_a_thread():
    """By default a sync function does not block the event loop."""
    where = FunctionTool("where", "Where.", threading.current_thread)
    assert await where.execute({}, ToolContext(threads=Threads())) is not threading.main_thread()
    assert await where.execute({}, CONTEXT) is not threading.main_thread()


async def test_inline_function_runs_in_the_loop():
    """With thread=False a sync function runs in the session's thread."""
    where = FunctionTool("where", "Where.", threading.current_thread, thread=False)
    assert await where.execute({}, CONTEXT) is threading.main_thread()


async def test_async_function_is_awaited():
    """An async function is awaited, and thread=False has no effect."""

    @tool(thread=False)
    async def double(n: int) -> int:
        """Double."""
        return 2 * n

    assert not double.inline
    assert await double.execute({"n": 2}, CONTEXT) == 4
    assert await double(3) == 6


async def test_wrapped_coroutine_is_awaited():
    """The awaitable that a sync function returns is awaited."""

    async def inner() -> str:
        return "done"

    def inner_in_disguise():
        return inner()

    assert await FunctionTool("outer", "Outer.", inner_in_disguise).execute({}, CONTEXT) == "done"


async def test_arguments_are_converted_to_annotated_types():
    """The function gets attrs instances, after the converters of their class."""

    @tool(thread=False)
    def names(cities: list[City], home: City | None = None) -> Any:
        """Names."""
        return cities, home

    assert await names.execute({"cities": [{"name": "rome"}]}, CONTEXT) == ([City("rome")], None)


async def test_rejection_by_a_class_is_invalid_arguments():
    """A value that a validator rejects is an InvalidArguments error with the tool's name."""

    @tool(thread=False)
    def grow(city: City) -> None:
        """Grow."""

    with pytest.raises(InvalidArguments, match='Invalid arguments for tool "grow": City:'):
        await grow.execute({"city": {"name": "rome", "size": 0}}, CONTEXT)


@pytest.mark.parametrize("default", [True, False])
async def test_context_is_injected(default):
    """A parameter with the annotation ToolContext is injected, and is not in the schema."""
    if default:

        def whose(n: int, ctx: ToolContext = None) -> str:
            return f"{ctx.owner}{n}"
    else:

        def whose(ctx: ToolContext | None, n: int) -> str:
            return f"{ctx.owner}{n}"

    made = tool(thread=False)(whose)
    assert list(made.parameters["properties"]) == ["n"]
    assert await made.execute({"n": 1}, CONTEXT) == "ada1"


class Account:
    """An account.

    It holds money.
    """

    def __init__(self, amount: int) -> None:
        self.amount = amount

    def __call__(self, n: int) -> int:
        return self.amount + n

    def pay(self, n: int) -> int:
        """Pay."""
        return self.amount - n

    @tool(thread=False)
    def balance(self, n: int = 0) -> int:
        """Show the balance."""
        return self.amount + n

    @staticmethod
    def rate(n: int) -> int:
        """Rate."""
        return n

    @classmethod
    def make(cls, n: int) -> str:
        """Make."""
        return f"{cls.__name__}{n}"


@pytest.mark.parametrize(
    ("function", "name", "description", "result"),
    [
        (Account(5).pay, "pay", "Pay.", 4),
        (Account(5), "Account", "An account.\n\nIt holds money.", 6),
        (Account.rate, "rate", "Rate.", 1),
        (Account.make, "make", "Make.", "Account1"),
        (functools.partial(Account(5).pay), "pay", "Pay.", 4),
    ],
)
async def test_methods_partials_and_callables_are_tools(function, name, description, result):
    made = tool(thread=False)(function)
    assert (made.name, made.description) == (name, description)
    assert list(made.parameters["properties"]) == ["n"]
    assert await made.execute({"n": 1}, CONTEXT) == result


async def test_method_decorated_in_its_class():
    """Access through an instance returns the tool of that instance."""
    poor, rich = Account(1).balance, Account(9).balance
    assert list(poor.parameters["properties"]) == ["n"]
    assert await poor.execute({"n": 1}, CONTEXT) == 2
    assert await rich.execute({}, CONTEXT) == 9
    assert Account(3).balance() == 3


async def test_fixed_values_stay_fixed_in_a_wrapped_tool():
    """Values that an inner partial fixes are hidden, by position and by name."""

    def search(base: str, query: str, key: str) -> str:
        return f"{base}{query}{key}"

    inner = tool(functools.partial(search, "b", key="secret"))
    for outer in (tool(name="outer")(inner), tool(name="outer")(functools.partial(inner))):
        assert list(outer.parameters["properties"]) == ["query"]
        assert await outer.execute({"query": "q"}, CONTEXT) == "bqsecret"


def test_return_annotation_need_not_resolve():
    """The return annotation can be undefined at run time."""

    def count(n: "int") -> "Nowhere":  # noqa: F821 - the point of the test
        """Count."""

    assert tool(count).parameters["properties"] == {"n": {"type": "integer"}}


def test_instances_have_separate_result_caches():
    class Shop:
        @tool(cache=1, effect="pure")
        def sales(self) -> int:
            """Count the sales."""

    Shop.sales.result_cache.put("{}", "1")
    assert Shop().sales.result_cache.get("{}") is None


async def test_tool_can_wrap_another_tool():
    """A tool can wrap another tool, under another name or with a fixed value."""
    plus = tool(name="plus")(functools.partial(add, b=5))
    assert list(plus.parameters["properties"]) == ["a"]
    assert plus.parameters["properties"]["a"]["type"] == "integer"
    assert await plus.execute({"a": 1}, CONTEXT) == 6


async def test_partial_hides_what_it_fixed():
    """The model neither sees nor changes a value that a partial fixes."""

    def search(query: str, key: str, limit: int) -> str:
        """Search."""
        return f"{query}{key}{limit}"

    made = tool(functools.partial(search, key="secret"))
    assert set(made.parameters["properties"]) == {"query", "limit"}
    assert "secret" not in json.dumps(made.parameters)
    assert await made.execute({"query": "q", "limit": 1}, CONTEXT) == "qsecret1"


async def test_explicit_schema_replaces_the_signature():
    """With `parameters` the arguments are passed unchanged as keywords."""
    schema = {"type": "object", "properties": {"from": {"type": "string"}}}
    made = FunctionTool("go", "Go.", lambda **arguments: arguments, parameters=schema, thread=False)
    schema["properties"].clear()
    assert made.parameters["properties"] == {"from": {"type": "string"}}
    assert await made.execute({"from": "here"}, CONTEXT) == {"from": "here"}


def positional(a, /): ...


def variadic(*values): ...


def keywords(**values): ...


def unfillable(a: int, callback: threading.Lock): ...


def unresolved(a: "Nowhere"): ...  # noqa: F821 - the point of the test


def generator():
    yield 1


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (positional, "'a' is positional-only"),
        (variadic, r"\*values accepts unnamed arguments"),
        (keywords, r"\*\*values accepts unnamed arguments"),
        (unfillable, "'unfillable': parameter 'callback' has no JSON Schema for its type"),
        (unresolved, "'unresolved': an annotation cannot be resolved"),
        (generator, "'generator' is a generator"),
        (lambda: 1, "its name must have 1 to 64"),
        (5, "not from 5: write @tool"),
        (Account, "not from the class Account"),
        (max, "'max' has no signature"),
    ],
)
def test_uncallable_function_is_rejected(function, reason):
    """The decorator raises an error that names the function and the parameter."""
    with pytest.raises(ConfigurationError, match=reason):
        tool(function)


def test_cache_of_a_tool_with_context_is_rejected():
    """Results that depend on a session must not be cached for other sessions."""
    with pytest.raises(ConfigurationError, match="has a ToolContext parameter"):

        @tool(cache=1, effect="pure")
        def whoami(ctx: ToolContext) -> str:
            """Tell."""
            return ctx.owner
