"""Mutants: copies of a module with one small fault, made in its syntax tree.

If a test suite passes with a mutant, it does not test the changed code. The kinds are those of Offutt et al., "An
experimental determination of sufficient mutant operators" (1996), and a deleted statement. Texts do not change,
because no test has to check the text of a message.
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
    """A module with one fault."""

    path: str
    """Path of the module, relative to the root of the repository."""
    line: int
    place: str
    """Class and function of the changed line."""
    before: str
    after: str
    source: str = attrs.field(repr=False)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.place}: {self.before}  ->  {self.after}"


def mutants_of(root: Path, path: str) -> Iterator[Mutant]:
    """Yield all mutants of a module, in the order of its lines."""
    tree = ast.parse((root / path).read_text(encoding="utf-8"))
    for place, body in _functions(tree):
        for node in [each for statement in body for each in _inside(statement)]:
            for wrong in _wrong(node):
                yield Mutant(path, node.lineno, place, _words(node), _words(wrong), _with(tree, node, wrong))


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the name and the body of each function, without its docstring."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + node.name, node.body[1:] if ast.get_docstring(node) is not None else node.body


def _inside(statement: ast.stmt) -> Iterator[ast.stmt | ast.expr]:
    """Yield a statement and all its nodes that may be mutated. Annotations, assertions and texts of errors may not."""
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
    """Yield the faulty replacements of a node."""
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
    """Return the text of the module with one node replaced."""
    changed = copy.deepcopy(tree, {id(old): new})
    return ast.unparse(ast.fix_missing_locations(changed))


def _words(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(node)).split())
    return text if len(text) <= 90 else f"{text[:87]}..."
