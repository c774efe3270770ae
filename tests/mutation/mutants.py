"""Mutants: one small wrong step in a module, made in its syntax tree.

A test suite that passes with a mutant does not hold what was changed. The kinds are those of Offutt et al., "An
experimental determination of sufficient mutant operators" (1996), and a statement left out; texts are left as they
are, since words of messages are nobody's contract.
"""

import ast
import copy
from collections.abc import Iterator
from pathlib import Path

import attrs

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
}


@attrs.frozen
class Mutant:
    """A module with one wrong step."""

    path: str
    """Of the module, from the root of the repository."""
    line: int
    place: str
    """The class and function that it is in."""
    before: str
    after: str
    source: str = attrs.field(repr=False)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.place}: {self.before}  ->  {self.after}"


def mutants_of(root: Path, path: str) -> Iterator[Mutant]:
    """All mutants of a module, in the order of its lines."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    for place, body in _functions(tree):
        for node in [each for statement in body for each in _inside(statement)]:
            for wrong in _wrong(node):
                yield Mutant(path, node.lineno, place, _words(node), _words(wrong), _with(tree, node, wrong))


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, list[ast.stmt]]]:
    """The bodies of all functions, without their docstrings."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node.body[1:] if ast.get_docstring(node) is not None else node.body


def _inside(statement: ast.stmt) -> Iterator[ast.stmt | ast.expr]:
    """A statement and all below it that can be changed; annotations, asserts and words of errors cannot."""
    if isinstance(statement, ast.Assert | ast.Raise):
        return
    yield statement
    waiting: list[ast.AST] = [statement]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop(0)):
            if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.arguments):
                continue
            if isinstance(node, ast.stmt | ast.expr):
                yield node
            waiting.append(node)


def _wrong(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=comparators) if type(operator) in _COMPARED:
            yield ast.Compare(left, [_COMPARED[type(operator)]()], comparators)
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=operator, left=left, right=right) if type(operator) in _CALCULATED:
            yield ast.BinOp(left, _CALCULATED[type(operator)](), right)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)


def _with(tree: ast.Module, old: ast.AST, new: ast.AST) -> str:
    """The module's text with another node in a place."""
    changed = copy.deepcopy(tree, {id(old): new})
    return ast.unparse(ast.fix_missing_locations(changed))


def _words(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else f"{text[:87]}..."
