"""Fast constructors for attrs classes whose objects are created often; they take a third of the time.

`fast_init`: the generated `__init__` of a frozen class calls `object.__setattr__` for each field, which dominates its time.
`fast_constructor`: calling a class with keyword arguments packs and unpacks a dict, which takes longer than setting the fields.
"""

from collections.abc import Callable, Iterator
from typing import Any, Never, ParamSpec, TypeVar

import attrs

P = ParamSpec("P")
T = TypeVar("T")
Fields = tuple["attrs.Attribute[Any]", ...]
EXACT = "exact"
"""Key in the `metadata` of a field whose converter is skipped for values of exactly this type."""
STORED_AS = "stored as"
"""Metadata key of a field whose name in stored bytes differs from its attribute name; the value is the stored name."""
DERIVED = "derived"
"""Key in the `metadata` of a field whose value follows from other fields. `TaggedCodec` stores only values that do not.

The value of the key is a function that takes the stored fields by name, without those that have their default.
"""
_set_class: Any = object.__dict__["__class__"].__set__
"""Set the class of an object, even if the class redefines `__setattr__`."""
_FACTORY: Any = attrs.Factory  # attrs types it as a function, but it is a class


def fast_init(frozen: type[T]) -> type[T]:
    """Give a frozen attrs class a fast `__init__`; decorate the class above `@attrs.frozen`.

    A new object temporarily belongs to a mutable subclass while its fields are set, and then becomes an object of the frozen
    class. This is faster for classes with at least four fields. Subclasses are not changed: attrs generates their `__init__`.

    Raises:
        TypeError: The class uses an unsupported feature, such as `__attrs_post_init__` or a default that takes `self`.
    """
    opened = _mutable_subclass(frozen)
    begin = ("if self.__class__ is not frozen: refuse(self)", "become(self, opened)")
    init = _compile_function("__init__", frozen, begin, "self.__class__ = frozen", is_method=True)
    init.__globals__.update(frozen=frozen, opened=opened, become=_set_class, refuse=_refuse)
    made: Any = frozen  # typed as Any, because type checkers forbid replacing methods
    init.__annotations__, init.__qualname__ = made.__init__.__annotations__, f"{frozen.__qualname__}.__init__"
    made.__init__ = init
    return frozen


def fast_constructor(made: Callable[P, T]) -> Callable[P, T]:
    """Return a function that creates objects of the attrs class `made`, with the parameters of the class, but faster.

    Raises:
        TypeError: The class uses a feature that the fast constructor does not support.
    """
    cls: Any = made
    opened = cls if cls.__setattr__ is object.__setattr__ else _mutable_subclass(cls)
    end = "return self" if opened is cls else "self.__class__ = cls; return self"
    make = _compile_function(f"make {cls.__name__}", cls, ("self = new(opened)",), end, is_method=False)
    make.__globals__.update(new=object.__new__, opened=opened, cls=cls)
    result: Callable[P, T] = make
    return result


def _mutable_subclass(frozen: type[T]) -> type[T]:
    """Return a mutable subclass of a frozen class with the same memory layout."""
    members = {"__slots__": (), "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    return type(frozen.__name__, (frozen,), members)


def _compile_function(name: str, cls: Any, begin: tuple[str, ...], end: str, *, is_method: bool) -> Any:
    """Generate and compile a function that sets the fields of an object between the lines `begin` and `end`."""
    if any(hasattr(cls, f"__attrs_{part}_init__") for part in ("pre", "post")):
        raise TypeError(
            f"{cls.__name__} has __attrs_pre_init__ or __attrs_post_init__, which is not supported"
        )
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
    """Yield the source text of each constructor parameter in the order of attrs, and add their defaults to `names`."""
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
    """Yield the source lines that set the fields of an object, and add the functions that they call to `names`."""
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
    """Return the factory of a field's default; None if the default is a value or missing."""
    converter: Any = field.converter
    if isinstance(converter, attrs.Converter) or (converter is not None and not field.init):
        raise TypeError(
            f"{field.name!r} has a converter that is not supported: an attrs.Converter, or the converter of a field with init=False"
        )
    if not field.init and field.default is attrs.NOTHING:
        raise TypeError(f"{field.name!r} has neither a parameter nor a default")
    default: Any = field.default
    if not isinstance(default, _FACTORY):
        return None
    if default.takes_self:
        raise TypeError(f"the default of {field.name!r} takes self, which is not supported")
    return default.factory


def _refuse(made: object) -> Never:
    name = type(made).__name__
    raise TypeError(
        f"{name} is an undecorated subclass of a frozen attrs class: decorate it with @attrs.frozen"
    )
