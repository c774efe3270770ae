"""Line numbers of the tools that a Python file defines, without running the file."""

import ast
import re
import warnings
from collections.abc import Iterable, Iterator

_FACTORIES = re.compile(r"(.*\.)?(tool|FunctionTool|HTTPTool)")
_GENERATOR = re.compile(r"(.*\.)?AgentGenerator")


def tool_lines(code: str) -> dict[str, int]:
    """Return the tools that a module defines at its top level, with their line numbers, without running it.

    Recognized are functions with `@tool`, `FunctionTool("name", ...)`, `HTTPTool("name", ...)` or `AgentGenerator(...)` that is
    assigned, and classes with a `name`.

    Raises:
        SyntaxError: The code is not valid Python.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about invalid escapes appear when the code runs
        tree = ast.parse(code)
    return {name: node.lineno for node in tree.body for name in _names_of(node)}


def _names_of(node: ast.stmt) -> Iterator[str]:
    """Yield the names of the tools that a statement at module level defines."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _decorated_name(node)
        case ast.ClassDef():
            yield from _class_name(node)
        case ast.Assign(value=ast.Call() as call) | ast.AnnAssign(value=ast.Call() as call):
            yield from _called_name(call)


def _decorated_name(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        function = decorator.func if isinstance(decorator, ast.Call) else decorator
        if _FACTORIES.fullmatch(ast.unparse(function)):
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            yield next(_literals(keyword.value for keyword in keywords if keyword.arg == "name"), node.name)


def _class_name(node: ast.ClassDef) -> Iterator[str]:
    for statement in node.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="name")], value=value):
                yield from _literals([value])
            case ast.AnnAssign(target=ast.Name(id="name"), value=ast.expr() as value):
                yield from _literals([value])


def _called_name(call: ast.Call) -> Iterator[str]:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    if _GENERATOR.fullmatch(ast.unparse(call.func)):
        yield next(_literals(named), "AgentGenerator")
    elif _FACTORIES.fullmatch(ast.unparse(call.func)):
        yield from _literals([*call.args[:1], *named])


def _literals(nodes: Iterable[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
