"""Arrays in PostgreSQL's binary format: the server reads the same values as from psycopg's own adaptation."""

import pytest
from hypothesis import given, strategies as st

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

import psycopg

from actgent.journal.group_commit.row_format import Head
from actgent.journal.journal_url import open_journal
from actgent.journal.postgres import sql_statements
from actgent.journal.postgres.array_encoding import encode_array, encode_columns

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
OF_KIND = {
    "text": TEXTS,
    "bytea": st.binary(max_size=30),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "integer": st.integers(-(2**31), 2**31 - 1),
    "smallint": st.integers(-(2**15), 2**15 - 1),
    "float8": st.floats(allow_nan=False) | st.integers(-(2**53), 2**53).map(float),
    "boolean": st.booleans(),
}
KINDS = sorted(OF_KIND)


@pytest.fixture
def server(postgres_url):
    """Yield a connection."""
    with psycopg.connect(postgres_url.partition("?")[0], autocommit=True) as connection:
        yield connection


def read_back(server, kind, *values):
    """Return the server's view of each array: type, bounds, and values as text and as the driver reads them."""
    asked = ", ".join(
        f"pg_typeof(a{number})::text, array_dims(a{number}), a{number}::text, a{number}"
        for number in range(len(values))
    )
    given = ", ".join(f"%s::{kind}[] AS a{number}" for number in range(len(values)))
    row = server.execute(f"SELECT {asked} FROM (SELECT {given}) AS given", values).fetchone()
    return [row[begin : begin + 4] for begin in range(0, len(row), 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_equal_those_of_the_driver(server, kind):
    """Both arrays agree for each column type, with and without NULL."""

    @given(st.lists(OF_KIND[kind]) | st.lists(st.none() | OF_KIND[kind]))
    def check(values):
        ours, theirs = read_back(server, kind, encode_array(kind, values), values)
        assert ours == theirs
        assert ours[3] == values

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_is_an_empty_array(server, kind):
    """An array without values has no dimension and keeps its type."""
    ours, theirs = read_back(server, kind, encode_array(kind, []), [])
    assert ours == theirs == (f"{kind if kind != 'float8' else 'double precision'}[]", None, "{}", [])


@pytest.mark.parametrize("size", [1, 1000, 20_000_000])
def test_long_values_are_stored_completely(server, size):
    """Bytes and texts are long, and the texts have more bytes than characters."""
    data, text = bytes(range(256)) * (size // 256 + 1), "ü" * size
    assert read_back(server, "bytea", encode_array("bytea", [data, b""]))[0][3] == [data, b""]
    assert read_back(server, "text", encode_array("text", ["", text]))[0][3] == ["", text]


def test_nan_is_stored_as_nan(server):
    """Zero also keeps its sign."""
    values = [float("nan"), -0.0, float("inf")]
    ours, theirs = read_back(server, "float8", encode_array("float8", values), values)
    assert ours[:3] == theirs[:3] == ("double precision[]", "[1:3]", "{NaN,-0,Infinity}")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(("text", text) for text in ("\0", "a\0b", "ü\0")),
        *(("bigint", number) for number in (2**63, -(2**63) - 1)),
        ("integer", 2**31),
        ("smallint", -(2**15) - 1),
        ("float8", 10**400),
    ],
)
@pytest.mark.parametrize("beside", [[], [None]])
def test_values_that_do_not_fit_the_type_raise_data_error(server, kind, value, beside):
    """The error has the same class as the error of the driver or the server."""
    with pytest.raises(psycopg.DataError):
        encode_array(kind, [value, *beside])
    with pytest.raises(psycopg.DataError):
        read_back(server, kind, [value, *beside])


def test_lone_surrogates_are_rejected_like_the_driver_does(server):
    """A lone surrogate, as programs of Windows or JavaScript may produce, raises the driver's error."""
    for encode in (encode_array, lambda _, values: values):
        with pytest.raises(UnicodeEncodeError):
            read_back(server, "text", encode("text", ["\ud800"]))


def test_a_group_without_rows_has_all_columns(server):
    """A step that changes only a head has empty arrays for all columns."""
    assert encode_columns(sql_statements.ROW_TYPES, []) == [
        encode_array(kind, []) for kind in sql_statements.ROW_TYPES.values()
    ]


def test_arrays_have_the_order_of_the_column_names():
    heads = [Head("s1", "clerk", "ada"), Head("s2", "clerk", parent_id="s1", parent_agent="clerk")]
    columns = dict(
        zip(sql_statements.FIELD_TYPES, encode_columns(sql_statements.FIELD_TYPES, heads), strict=True)
    )
    assert columns["session_id"] == encode_array("text", ["s1", "s2"])
    assert columns["parent_id"] == encode_array("text", [None, "s1"])
    assert columns["closed"] == encode_array("boolean", [False, False])


async def test_texts_are_stored_with_any_client_encoding(postgres_url, make_writer, monkeypatch):
    """Characters outside of the environment's client encoding are stored and read."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    async with open_journal(postgres_url) as journal:
        writer = make_writer(journal, await journal.acquire(), "Łódź")
        await writer.open()
        await writer.turn("więcej")
    async with open_journal(postgres_url) as again:
        await again.acquire()
        head = await again.head("a", "Łódź")
        assert head is not None
        assert await again.load("Łódź") == writer.confirmed
