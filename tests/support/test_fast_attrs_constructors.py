"""Frozen classes whose new objects are mutable until their initialization is complete."""

import copy
import inspect
import pickle

import attrs
import pytest

from actgent.messages import Message, Sender, Text, ToolCall
from actgent.support.fast_attrs_constructors import fast_constructor, fast_init


def _double(value):
    return value * 2


@fast_init
@attrs.frozen(kw_only=True)
class Point:
    x: int = attrs.field(validator=attrs.validators.instance_of(int))
    y: int = attrs.field(default=1, converter=_double)
    names: list[str] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class Named(Point):
    name: str = ""


def test_made_object_has_its_class_and_is_frozen():
    point = Point(x=1, y=2)
    assert type(point) is Point
    assert (point.x, point.y, point.names) == (1, 4, [])
    for change in (lambda: setattr(point, "x", 2), lambda: delattr(point, "x")):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            change()


def test_made_object_equals_the_attrs_object():
    plain = attrs.frozen(type("Plain", (), {"a": attrs.field(), "b": attrs.field(default=2)}))
    quick = fast_init(attrs.frozen(type("Plain", (), {"a": attrs.field(), "b": attrs.field(default=2)})))
    assert inspect.signature(quick) == inspect.signature(plain)
    assert repr(quick(1)) == repr(plain(1))
    with pytest.raises(TypeError, match="missing 1 required"):
        quick()
    with pytest.raises(TypeError, match=r"'x' must be <class 'int'>"):
        Point(x="1")


def test_subclass_has_the_attrs_methods():
    named = Named(x=1, name="home")
    assert type(named) is Named
    assert (named.x, named.y, named.name) == (1, 2, "home")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        named.name = "away"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_have_the_class(again):
    message = Message(id="m", session_id="s", sender=Sender("ada"), parts=(Text("hi"),), created_at=1.0)
    assert type(again(message)) is Message
    assert again(message) == message
    assert hash(again(message)) == hash(message)
    assert attrs.evolve(message, id="n") == Message(
        id="n", session_id="s", sender=Sender("ada"), parts="hi", created_at=1.0
    )


def test_a_rejected_owner_leaves_no_open_file():
    seen = []

    @attrs.frozen
    class Watched:
        call: ToolCall = attrs.field(validator=lambda made, _, __: seen.append(made) or 1 / 0)

    quick = fast_init(Watched)
    with pytest.raises(ZeroDivisionError):
        quick(ToolCall("a", {}, "1"))
    assert isinstance(seen[0], quick)
    assert type(quick.__new__(quick)) is quick


@attrs.define
class Counted:
    name: str
    seen: list[str] = attrs.field(factory=list)
    _hidden: int = 0
    total: int = attrs.field(default=7, init=False)


@pytest.mark.parametrize(
    ("cls", "value", "named"),
    [
        (Counted, ("a",), {"hidden": 3}),
        (Counted, (), {"name": "a", "seen": ["b"]}),
        (Point, (), {"x": 1, "y": 5}),
        (Text, ("hi",), {}),
        (ToolCall, ("add", {"a": 1}), {"id": "c"}),
        (
            Message,
            (),
            {"id": "m", "session_id": "s", "sender": Sender("ada"), "parts": "hi", "created_at": 1.0},
        ),
    ],
)
def test_maker_equals_the_class_constructor(cls, value, named):
    made, expected = fast_constructor(cls)(*value, **named), cls(*value, **named)
    assert type(made) is cls
    assert made == expected
    assert repr(made) == repr(expected)
    with pytest.raises(TypeError):
        fast_constructor(cls)(*value, **named, unknown=1)


def test_maker_objects_share_no_default_and_are_frozen():
    make = fast_constructor(Counted)
    assert make("a").seen is not make("a").seen
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        fast_constructor(Text)("hi").text = "there"
    with pytest.raises(TypeError, match=r"'x' must be <class 'int'>"):
        fast_constructor(Point)(x="1")


def test_converters_are_skipped_only_for_exact_types():
    class Named(tuple):
        __slots__ = ()

    parts = (Text("hi"),)
    assert Message(session_id="s", sender=Sender("ada"), parts=parts).parts is parts
    assert type(Message(session_id="s", sender=Sender("ada"), parts=Named(parts)).parts) is tuple


def test_non_attrs_subclass_is_rejected():
    class Plain(Message):
        pass

    with pytest.raises(TypeError, match="Plain is an undecorated subclass of a frozen attrs class"):
        Plain(session_id="s", sender=Sender("ada"), parts="hi")


def test_unsupported_class_feature_is_rejected():
    @attrs.define
    class Steps:
        a: int

        def __attrs_post_init__(self):
            raise AssertionError

    @attrs.define
    class Looks:
        a: int = 1
        b: int = attrs.Factory(lambda self: self.a, takes_self=True)

    for cls, expected in (
        (Steps, "__attrs_post_init__, which is not supported"),
        (Looks, "takes self, which is not supported"),
    ):
        with pytest.raises(TypeError, match=expected):
            fast_constructor(cls)
