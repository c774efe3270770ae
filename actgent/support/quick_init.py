"""attrs classes whose objects are made often, in a third of the time.

A frozen class sets each field by a call of `object.__setattr__`, which takes longer than all else in its `__init__`: `quick_init`.
A call of a class with arguments by their names packs these in a dict, and unpacks it again, which takes longer than to set the
fields: `maker`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Never, ParamSpec, TypeVar

import attrs

P = ParamSpec("P")
T = TypeVar("T")
Fields = tuple["attrs.Attribute[Any]", ...]
EXACT = "exact"
"""In the `metadata` of a field: what is of exactly this type already is not given to the field's converter."""
_become: Any = object.__dict__["__class__"].__set__
"""Changes an object's class whatever the class says of it."""
_FACTORY: Any = attrs.Factory  # a class, which its types call a function


def quick_init(frozen: type[T]) -> type[T]:
    """Let a new object of a frozen attrs class be open until it is whole; decorate the class above `@attrs.frozen`.

    It is of an open subclass while its fields are set as those of any other, and nobody else has it before it is of its own.
    That pays from four fields on. A subclass has what attrs writes for it.

    Raises:
        TypeError: the class has what this cannot write, such as `__attrs_post_init__`, or a default that looks at the object.
    """
    opened = _open(frozen)
    begin = ("if self.__class__ is not frozen: refuse(self)", "become(self, opened)")
    init = _written("__init__", frozen, begin, "self.__class__ = frozen", is_method=True)
    init.__globals__.update(frozen=frozen, opened=opened, become=_become, refuse=_refuse)
    made: Any = frozen  # for checkers no attrs class, and its methods are not to be replaced
    init.__annotations__, init.__qualname__ = made.__init__.__annotations__, f"{frozen.__qualname__}.__init__"
    made.__init__ = init
    return frozen


def maker(made: Callable[P, T]) -> Callable[P, T]:
    """A function that makes objects of an attrs class, frozen or not, and takes what the class takes.

    Raises:
        TypeError: as `quick_init`.
    """
    cls: Any = made
    opened = cls if cls.__setattr__ is object.__setattr__ else _open(cls)
    end = "return self" if opened is cls else "self.__class__ = cls; return self"
    make = _written(f"make {cls.__name__}", cls, ("self = new(opened)",), end, is_method=False)
    make.__globals__.update(new=object.__new__, opened=opened, cls=cls)
    result: Callable[P, T] = make
    return result


def _open(frozen: type[T]) -> type[T]:
    """The same class, whose objects can be changed and can become of that class."""
    members = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(frozen.__name__, (frozen,), members)


def _written(name: str, cls: Any, begin: tuple[str, ...], end: str, *, is_method: bool) -> Any:
    """Write a function that sets the fields of an object between these lines."""
    if any(hasattr(cls, f"__attrs_{part}_init__") for part in ("pre", "post")):
        raise TypeError(f"{cls.__name__} has a step of its own before or after its __init__")
    names: dict[str, Any] = {"NOTHING": attrs.NOTHING}
    fields: Fields = attrs.fields(cls)
    parameters = ", ".join([*(["self"] if is_method else []), *_parameters(fields, names)])
    body = "\n    ".join([*begin, *_body(fields, names), end])
    exec(compile(f"def made({parameters}):\n    {body}", f"<{name}>", "exec"), names)  # noqa: S102 - as attrs does
    written = names.pop("made")
    written.__name__ = written.__qualname__ = name
    written.__module__ = cls.__module__
    return written


def _parameters(fields: Fields, names: dict[str, Any]) -> Iterator[str]:
    """What it takes, in the order of attrs; defaults go into `names`."""
    is_keyword = False
    for field in sorted([field for field in fields if field.init], key=lambda field: field.kw_only):
        if field.kw_only and not is_keyword:
            is_keyword = True
            yield "*"
        alias = str(field.alias)
        if field.default is attrs.NOTHING:
            yield alias
        else:
            names[f"default_{field.name}"] = attrs.NOTHING if _factory_of(field) else field.default
            yield f"{alias}=default_{field.name}"


def _body(fields: Fields, names: dict[str, Any]) -> Iterator[str]:
    """The lines that set the fields; what they call goes into `names`."""
    for field in fields:
        value, factory = str(field.alias), _factory_of(field)
        if factory is not None:
            names[f"make_{field.name}"] = factory
        if not field.init:
            names[f"default_{field.name}"] = field.default
            value = f"default_{field.name}" if factory is None else f"make_{field.name}()"
        elif factory is not None:
            yield f"if {value} is NOTHING: {value} = make_{field.name}()"
        if field.converter is not None:
            names[f"to_{field.name}"], names[f"exact_{field.name}"] = (
                field.converter,
                field.metadata.get(EXACT),
            )
            yield f"if {value}.__class__ is not exact_{field.name}: {value} = to_{field.name}({value})"
        yield f"self.{field.name} = {value}"
    if any(field.validator is not None for field in fields):
        names["validate"] = attrs.validate
        yield "validate(self)"


def _factory_of(field: "attrs.Attribute[Any]") -> Any:
    """What makes the default of a field; None: it is a value, or there is none."""
    converter: Any = field.converter
    if isinstance(converter, attrs.Converter) or (converter is not None and not field.init):
        raise TypeError(f"{field.name!r} is no field that takes its value as it is, or from a function of it")
    if not field.init and field.default is attrs.NOTHING:
        raise TypeError(f"{field.name!r} is not set when an object is made")
    default: Any = field.default
    if not isinstance(default, _FACTORY):
        return None
    if default.takes_self:
        raise TypeError(f"the default of {field.name!r} looks at the object, which is not there yet")
    return default.factory


def _refuse(made: object) -> Never:
    name = type(made).__name__
    raise TypeError(
        f"{name} is a subclass of a frozen attrs class, and none itself: decorate it with @attrs.frozen"
    )
