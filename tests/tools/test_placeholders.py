"""pydantic types, and unions with similar members: their schemas for models, and their conversion from JSON."""

import dataclasses
import datetime as dt
import enum
import json
import subprocess
import sys
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypedDict, TypeVar

import attrs
import msgspec
import pydantic
import pytest
import trio

from actgent import BareAgent, ConfigurationError, InvalidArguments, ScriptedLLM, ToolCall, ToolContext, tool
from actgent.tools.outputs.result_text import to_text
from actgent.tools.schemas import compile_type, schema_of

T = TypeVar("T")


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(description="as it is called", max_length=20)
    born: dt.date | None = None

    @pydantic.field_validator("name")
    @classmethod
    def known(cls, name):
        if name == "Nobody":
            raise ValueError("nobody is nobody " * 100)
        if name == "crash":
            raise KeyError("a mistake in a validator")
        return name


class Movie(pydantic.BaseModel):
    title: str
    cast: list[Person] = []
    part_of: "Movie | None" = None


class Box(pydantic.BaseModel, Generic[T]):
    content: T


@pydantic.dataclasses.dataclass
class Seat:
    row: int = pydantic.Field(gt=0)


@attrs.frozen
class Offer:
    price: int


@dataclasses.dataclass
class Refused:
    reason: str
    instead: "Offer | Refused | None" = None


@dataclasses.dataclass
class Left:
    name: str
    next: "Left | Right | None" = None


@dataclasses.dataclass
class Right:
    name: str
    next: "Left | Right | None" = None


@attrs.frozen
class Showing:
    movie: Movie
    at: dt.datetime
    seat: Seat | None = None


class Base(TypedDict):
    title: str


class Listing(Base, total=False):
    """A line of a list."""

    director: str
    people: list[Person]


class Note(TypedDict):
    text: str
    at: NotRequired[dt.date]


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


class Plain:
    """A class without a JSON Schema."""


def read(annotation, value):
    """Convert JSON text to the type like arguments and answers, and validate it with the schema."""
    return compile_type(annotation).convert(json.loads(json.dumps(value)))


def reason(annotation, value):
    with pytest.raises(ValueError, match=r".") as caught:
        read(annotation, value)
    return str(caught.value)


FITS = [
    (Person, {"name": "Ada", "born": "1815-12-10"}, Person(name="Ada", born=dt.date(1815, 12, 10))),
    (list[Person], [{"name": "Ada"}], [Person(name="Ada")]),
    (dict[str, Person], {"a": {"name": "Ada"}}, {"a": Person(name="Ada")}),
    (Optional[Person], None, None),  # noqa: UP045 - as it is written in older programs
    (Movie, {"title": "a", "part_of": {"title": "b"}}, Movie(title="a", part_of=Movie(title="b"))),
    (Box[int], {"content": 5}, Box[int](content=5)),
    (Box[int], {"content": 5.0}, Box[int](content=5)),
    (Seat, {"row": 3}, Seat(row=3)),
    (Annotated[int, pydantic.Field(gt=3)], 4, 4),
    (pydantic.HttpUrl, "https://example.org/a", pydantic.HttpUrl("https://example.org/a")),
    (
        Showing,
        {"movie": {"title": "a", "cast": [{"name": "Ada"}]}, "at": "2020-01-01T10:00:00Z"},
        Showing(Movie(title="a", cast=[Person(name="Ada")]), dt.datetime(2020, 1, 1, 10, tzinfo=dt.UTC)),
    ),
    (Listing, {"title": "a"}, {"title": "a"}),
    (Listing, {"title": "a", "people": [{"name": "Ada"}]}, {"title": "a", "people": [Person(name="Ada")]}),
    (Note, {"text": "a", "at": "2020-01-01"}, {"text": "a", "at": dt.date(2020, 1, 1)}),
    (Point, [1, 2], Point(1, 2)),
    (Offer | Refused, {"price": 5}, Offer(5)),
    (Offer | Refused, {"reason": "sold"}, Refused("sold")),
    (
        Offer | Refused,
        {"reason": "a", "instead": {"reason": "b", "instead": {"price": 1}}},
        Refused("a", Refused("b", Offer(1))),
    ),
    (list[Offer | Refused | None], [{"price": 5}, None], [Offer(5), None]),
    (Offer | Person | str, "text", "text"),
    (Offer | Person | str, {"name": "Ada"}, Person(name="Ada")),
    (Offer | Note, {"text": "a"}, {"text": "a"}),
    (dict[str, Offer] | Offer, {"a": {"price": 5}}, {"a": Offer(5)}),
    (dt.date | str, "2020-01-01", dt.date(2020, 1, 1)),
    (dt.date | str, "soon", "soon"),
    (Literal["red", "blue"] | int, "red", "red"),
    (Literal["red"] | str, "any", "any"),  # noqa: PYI051 - as a program may have it
    (Color | str, "red", Color.RED),
    (Point | list[str], ["a"], ["a"]),
    (Any | Offer, {"price": "any"}, {"price": "any"}),
]


@pytest.mark.parametrize(("annotation", "value", "expected"), FITS)
def test_matching_values_are_converted(annotation, value, expected):
    """The schema accepts the value, and the value is converted to the type."""
    compiled = compile_type(annotation)
    from actgent.tools.schemas.schema_validation import compile_schema

    assert compile_schema(compiled.schema, owner="test").reason(value) is None
    built = read(annotation, value)
    assert (built, type(built)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (Person, {"name": 5}, "/name: Input should be a valid string"),
        (Person, {"name": "Ada", "born": 5}, "/born: Input should be"),
        (list[Movie], [{"title": "a", "cast": [{"name": "Ada"}, {}]}], "/0/cast/1/name: Field required"),
        (Box[int], {"content": "5"}, "/content: Input should be a valid integer"),
        (Box[int], {"content": True}, "/content: Input should be a valid integer"),
        (Seat, {"row": 0}, "/row: Input should be greater than 0"),
        (Showing, {"movie": {}, "at": "2020-01-01T10:00:00Z"}, "/movie/title: Field required"),
        (Listing, {}, "title"),
        (
            Offer | Refused,
            {"price": "5"},
            "the value has none of the permitted types: Offer (/price: Expected `int`, got `str`); Refused (",
        ),
        (list[Offer | Refused], [{"price": 5}, 5], "/1: the value has none of the permitted types: Offer"),
        (Offer | Refused, None, "the value has none of the permitted types"),
    ],
)
def test_mismatch_error_names_the_location(annotation, value, expected):
    """Values are not coerced: text is not converted to a number, and true is not a number."""
    assert expected in reason(annotation, value)


def test_validator_messages_are_bounded():
    """The error has at most five messages of 300 characters, also if a validator has a bug."""
    said = reason(list[Person], [{"name": "Nobody"}])
    assert said.startswith("/0/name: Value error, nobody is nobody")
    assert len(said) < 400
    assert "KeyError" in reason(Person, {"name": "crash"})
    many = reason(Movie, {"title": "a", "cast": [{"name": "Nobody"}] * 50})
    assert "and 45 more" in many
    assert len(many) < 2000


def test_value_that_matches_no_branch_fails_fast():
    """Each part is read once per type, although every level has two branches."""
    value: dict[str, Any] = {"name": 5}
    for _ in range(60):
        value = {"name": "a", "next": value}
    assert "none of the permitted types: Left" in reason(Left | Right, value)


def test_schemas_have_descriptions_and_bounds():
    """The schema has descriptions and bounds. References are local, and equal names are distinguished."""

    def other():
        class Person(pydantic.BaseModel):
            """Another person."""

            age: int

        class Club(pydantic.BaseModel):
            head: Person

        return Club

    assert schema_of(Person)["properties"]["name"] == {
        "type": "string",
        "description": "as it is called",
        "maxLength": 20,
        "title": "Name",
    }
    assert schema_of(Listing)["required"] == ["title"]
    both = json.dumps(schema_of(tuple[Movie, other(), Offer | Refused]))
    assert '"age"' in both
    assert '"born"' in both
    assert {choice["$ref"].rpartition("/")[2] for choice in schema_of(Offer | Refused)["anyOf"]} == {
        "Offer",
        "Refused",
    }


def test_unusable_type_error_names_usable_types():
    """The type is rejected as an output and as a parameter, also within a union."""
    for annotation in (Plain, Plain | Offer, list[Plain]):
        with pytest.raises(
            ConfigurationError, match=r"dataclasses, attrs classes, TypedDict.*pydantic models"
        ):
            compile_type(annotation)

    def buy(what: Plain) -> str:
        return str(what)

    with pytest.raises(ConfigurationError, match=r"parameter 'what'.*pydantic models.*pass parameters="):
        tool(buy)

    class Broken(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        plain: Plain

    with pytest.raises(ConfigurationError, match=r"Broken.*has no JSON Schema"):
        compile_type(Broken)


async def test_an_agent_answers_with_a_model():
    """A union is also accepted. An answer that a validator rejects is retried with the validator's message."""
    script = ScriptedLLM(['{"name": "Nobody"}', '{"name": "Ada"}', '{"price": 5}'])
    async with BareAgent("clerk", llm=script, output=Person) as agent:
        assert (await agent.run("Who?")).data == Person(name="Ada")
        assert "nobody is nobody" in str(script.chats[1].messages)
        assert (await agent.run("What?", output=Offer | Refused)).data == Offer(5)


async def test_tools_take_and_return_models():
    """Models are parameters with defaults and results. Invalid arguments are an error with text for the model."""

    @tool
    async def book(who: Person, seat: Seat | None = None, what: Movie | Offer = Offer(3)) -> Movie:
        """Book a seat.

        Args:
            who: The one who sits.
            seat: Where.
            what: Which.
        """
        await trio.lowlevel.checkpoint()
        assert isinstance(what, Offer | Movie)
        return Movie(title=f"{who.name} in {seat and seat.row}", cast=[who])

    assert book.parameters["required"] == ["who"]
    assert book.parameters["properties"]["who"]["description"] == "The one who sits."
    arguments = {"who": {"name": "Ada", "born": "1815-12-10"}, "seat": {"row": 2}, "what": {"title": "a"}}
    result = await book.execute(book.argument_validator.validate(arguments), ToolContext())
    value = json.loads(to_text(result))
    assert (value["title"], value["cast"][0]["born"]) == ("Ada in 2", "1815-12-10")
    with pytest.raises(InvalidArguments, match="/who/name: Value error, nobody"):
        await book.execute({"who": {"name": "Nobody"}}, ToolContext())
    with pytest.raises(InvalidArguments, match="/who"):
        book.argument_validator.validate({"who": {"name": 5}})
    script = ScriptedLLM([ToolCall("book", {"who": {"name": "Nobody"}}), "done"])
    async with BareAgent("clerk", llm=script, tools=[book]) as agent:
        await agent.run("Book.")
    assert "nobody is nobody" in str(script.chats[1].messages[-1].parts)


def test_non_json_results_are_written_like_pydantic():
    """Values that are not JSON are written like pydantic writes them, with secrets as asterisks."""

    class Login(pydantic.BaseModel):
        name: str
        password: pydantic.SecretStr
        at: dt.date

    login = Login(name="ada", password="secret", at=dt.date(2020, 1, 1))
    assert json.loads(to_text([login])) == [{"name": "ada", "password": "**********", "at": "2020-01-01"}]
    assert to_text(Point(1, 2)) == "[1, 2]"
    assert to_text(msgspec.defstruct("S", [("a", int)])(1)) == '{"a": 1}'


def test_pydantic_is_imported_on_demand():
    """Neither the import of actgent nor other types import pydantic."""
    program = (
        "import sys, dataclasses, actgent; from actgent import Agent, tool\n"
        "from actgent.tools.schemas import compile_type\n"
        "A = dataclasses.make_dataclass('A', [('a', int)]); B = dataclasses.make_dataclass('B', [('b', int)])\n"
        "compile_type(A | B)\n"
        "print('pydantic' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
