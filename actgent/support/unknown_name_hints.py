"""Hints in errors about wrong names: the error for an unknown attribute or argument names the right one.

Type checkers are not affected: for them an unknown name stays unknown.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, _AsyncGeneratorContextManager
from inspect import getattr_static, signature
from types import MappingProxyType, MethodType
from typing import Any, ParamSpec, TypeVar

from actgent.errors import closest

C = TypeVar("C", bound=type)
T = TypeVar("T")
P = ParamSpec("P")
_POSITIONAL = "*"
"""Key in `keywords` of the hint about arguments that were passed without their names."""
_NONE: Mapping[str, str] = MappingProxyType({})
_MAX_LISTED_NAMES = 16
"""Maximum number of argument names that an error lists."""


def with_hints(
    names: Mapping[str, str] = _NONE,
    *,
    keywords: Mapping[str, str] = _NONE,
    methods: Mapping[str, str] = _NONE,
    setters: Mapping[str, str] = _NONE,
) -> Callable[[C], C]:
    """Return a class decorator that adds hints to errors about wrong names.

    Args:
        names: Hints by unknown attribute.
        keywords: Hints by unknown argument of the constructor.
        methods: Hints by special method that the class does not support, such as `__iter__`.
        setters: Hints by read-only property that a program tries to set.
    """

    def decorate(cls: C) -> C:
        if names:
            _add_names(cls, names)
        if keywords:
            _add_keywords(cls, keywords)
        for name, text in methods.items():
            setattr(cls, name, _refusal(text))
        for name, text in setters.items():
            setattr(cls, name, vars(cls)[name].setter(_refusal(text, AttributeError)))
        return cls

    return decorate


def lists_arguments(cls: C) -> C:
    """Add the names of the constructor's arguments to the error for an unknown argument. A class decorator."""
    _add_keywords(cls, _NONE)
    return cls


class _Missing:
    """Descriptor for an attribute that a class does not have; reading it raises an error with a hint.

    It is used instead of `__getattr__`, which would slow down every attribute of the class.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text

    def __get__(self, instance: object, owner: type) -> object:
        text = f"{owner.__name__!r} object has no attribute {self.name!r}: {self.text}"
        # obj=None disables Python's own "Did you mean", which would add a second hint.
        raise AttributeError(text, name=self.name, obj=None)


def _add_names(cls: Any, names: Mapping[str, str]) -> None:
    """Add the hints for unknown attributes to a class."""
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
            error_with_text = _add_hint(error, type(self).__name__, keywords, _parameters(inner))
            if (
                error_with_text is None or _depth(error) > 1
            ):  # the error was raised inside the called function
                raise
            raise error_with_text from None

    cls.__init__ = start


def _depth(error: BaseException) -> int:
    trace, depth = error.__traceback__, 0
    while trace is not None:
        trace, depth = trace.tb_next, depth + 1
    return depth


def _parameters(function: Any) -> list[str]:
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name != "self"]


def _add_hint(error: TypeError, name: str, keywords: Mapping[str, str], known: list[str]) -> TypeError | None:
    text = str(error)
    wrong = (
        text.rpartition("unexpected keyword argument ")[2].strip("'") if "unexpected keyword" in text else ""
    )
    if wrong:
        return TypeError(f"{name}() has no argument {wrong!r}{_suggestion_text(wrong, keywords, known, '=')}")
    if "positional argument" in text and text.endswith("given") and _POSITIONAL in keywords:
        return TypeError(f"{text.partition(' takes ')[0].partition('.')[0]}: {keywords[_POSITIONAL]}")
    missing = text.rpartition(" ")[2].strip("'") if "missing 1 required" in text else ""
    if missing in keywords:
        return TypeError(f"{name}() needs {missing}=: {keywords[missing]}")
    return None


def _suggestion_text(word: str, meant: Mapping[str, str], known: list[str], end: str = "") -> str:
    """Return the end of an error text about the unknown name `word`.

    It is the hint in `meant`, else the most similar name in `known`, else the list of all known names if it is short.
    """
    if text := meant.get(word):
        return f": {text}"
    if close := closest(word, known):
        return f": did you mean {close}{end}?"
    listed = ", ".join(f"{name}{end}" for name in known if not name.startswith("_"))
    return f": its arguments are {listed}" if listed and len(known) <= _MAX_LISTED_NAMES else ""


def unknown_argument(
    function: Callable[..., Any], unknown: Mapping[str, object], keywords: Mapping[str, str]
) -> TypeError:
    """Build the error for keyword arguments that a method does not have.

    Args:
        function: The method.
        unknown: The unknown arguments of the call. The error names the first one.
        keywords: Advice by argument name. For other names, the error names the most similar parameter of the method.
    """
    word = next(iter(unknown))
    return TypeError(
        f"{function.__qualname__}() has no argument {word!r}{_suggestion_text(word, keywords, _parameters(function), '=')}"
    )


def _refusal(text: str, kind: type[Exception] = TypeError) -> Callable[..., object]:
    def refuse(*_: object) -> object:
        raise kind(text)

    return refuse


class _Block(_AsyncGeneratorContextManager[T]):
    """Async context manager that explains itself if it is awaited, iterated or entered with plain `with`."""

    def __aiter__(self) -> Any:
        raise TypeError(_NOT_ENTERED.format(self.func.__qualname__))

    __enter__ = __await__ = __aiter__

    def __exit__(self, *_: object) -> None:
        raise TypeError(_NOT_ENTERED.format(self.func.__qualname__))


_NOT_ENTERED = (
    "{0}() is an async block: write `async with {0}(...) as value:`, and use the value inside the block"
)


class _BlockFunction:
    """Function that returns an async context manager. If the uncalled function is used in `async with`, the error shows the correct call."""

    def __init__(
        self,
        function: Callable[..., Any],
        make: Callable[..., Any],
        keywords: Mapping[str, str],
        *,
        is_async: bool,
    ) -> None:
        functools.update_wrapper(self, function)
        self._make = make
        self._keywords = keywords
        self._is_async = is_async

    __wrapped__: Callable[..., Any]
    __qualname__: str

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            return self._make(*args, **options)
        except TypeError as error:
            known = _parameters(self.__wrapped__)
            error_with_text = _add_hint(error, self.__qualname__, self._keywords, known)
            if error_with_text is None or _can_be_called_with(self.__wrapped__, args, options):
                raise
            raise error_with_text from None

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        method, make = MethodType(self.__wrapped__, instance), functools.partial(self._make, instance)
        return _BlockFunction(method, make, self._keywords, is_async=self._is_async)

    def _refuse(self, *_: object, word: str = "async with") -> Any:
        raise TypeError(
            f"{self.__qualname__} is a function that makes a block: call it, as in "
            f"`{word} {self.__qualname__}(...) as ...:`"
        )

    def __enter__(self) -> Any:
        self._refuse(word="async with" if self._is_async else "with")

    __exit__ = __aenter__ = __aexit__ = __aiter__ = __iter__ = __await__ = _refuse


def _can_be_called_with(function: Callable[..., Any], args: Any, options: Any) -> bool:
    try:
        signature(function).bind(*args, **options)
    except TypeError:
        return False
    return True


def block_function(keywords: Mapping[str, str] = _NONE) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for functions that return an async context manager.

    Using the function itself as a block raises an error that explains the call. `keywords` are hints by unknown argument.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        return _BlockFunction(function, function, keywords, is_async=False)

    return decorate


def async_block(
    keywords: Mapping[str, str] = _NONE,
) -> Callable[[Callable[P, AsyncGenerator[T, None]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Return a decorator that makes an async context manager of a generator, like `asynccontextmanager`.

    Any other use of the result raises an error with a hint. `keywords` are hints by unknown argument.
    """

    def decorate(
        function: Callable[P, AsyncGenerator[T, None]],
    ) -> Callable[P, AbstractAsyncContextManager[T]]:
        def make(*args: P.args, **options: P.kwargs) -> AbstractAsyncContextManager[T]:
            return _Block(function, args, options)

        return _BlockFunction(function, make, keywords, is_async=True)

    return decorate
