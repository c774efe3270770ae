"""Tools that are found: in files of folders, in modules, and in entry points of packages that are installed.

Only what is named is looked at, and nothing else is imported. A file that is broken is reported with its line, and the
others load.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

import attrs

from actgent.errors import ConfigurationError, InvalidFile
from actgent.errors.printable import shown
from actgent.support.logs import logger_of
from actgent.tools.base import Tool, WrappedTool
from actgent.tools.registry import to_tool
from actgent.tools.state import state_tool, takes_state

from .toolset import Toolset

FILES = ("actgent_tools.py", "tagent.tools.py")
"""The files of a folder that tools are looked for in, beside all others that end in `ENDING`."""
ENDING = ".tools.py"
OUTPUT = "output_schema"
"""The variable that says the form of an answer, in files that end in `OUTPUT_ENDING`."""
OUTPUT_ENDING = ".output.py"
GROUP = "actgent.tools"
"""The entry points that packages offer tools by: a module, a tool, a toolset, or a list of them."""
_NOT_ENTERED = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
_log = logger_of(__name__)


@attrs.frozen
class Discovery:
    """The result of `discover`. Iterating over it yields the tools: `Agent(tools=discover("tools"))`."""

    tools: tuple[Tool | Toolset, ...] = ()
    """Tools and toolsets that were found."""
    places: Mapping[str, str] = attrs.field(factory=dict)
    """Origin of each tool, by tool name: `file:line`, a module, or an entry point."""
    problems: tuple[InvalidFile, ...] = ()
    """Files, modules and entry points that could not be loaded: `file:line: reason`."""
    skipped: tuple[InvalidFile, ...] = ()
    """Objects that look like tools but are not usable: private names, wrong signatures, duplicate names."""

    def __iter__(self) -> Iterator[Tool | Toolset]:
        return iter(self.tools)


def discover(
    *folders: str | os.PathLike[str],
    recursive: bool = True,
    files: Iterable[str | os.PathLike[str]] = (),
    modules: Iterable[str] = (),
    entry_points: Iterable[str] = (),
) -> Discovery:
    """Load the tools and toolsets of folders, files, modules and entry points. Broken files are logged and skipped.

    A tool is an object made by `@tool`, a `Tool` or `Toolset` in a variable, a subclass of `Tool`, or a function
    `(state, args)`. Names that begin with `_` are private.

    Args:
        folders: Folders with files called `actgent_tools.py`, `tagent.tools.py` or `NAME.tools.py`. The files are run.
        recursive: Also search subfolders, except hidden ones.
        files: Files with any name. The files are run.
        modules: Names of modules to import, e.g. `myshop.tools`.
        entry_points: Entry points of installed packages in the group `actgent.tools`.

    Raises:
        ConfigurationError: A folder does not exist.
    """
    found = _Finding()
    found.load_files((*map(Path, _listed(files, "files")), *_files(folders, recursive=recursive)))
    for name in _listed(modules, "modules"):
        found.load(name, lambda name=name: _import(name))  # type: ignore[misc]
    for name in _listed(entry_points, "entry_points"):
        found.load(f"entry point {name}", lambda name=name: _enter(name))  # type: ignore[misc]
    for problem in found.problems:
        _log.warning("tools cannot be loaded: %s", shown(str(problem)))
    return found.done()


def load_files(files: Iterable[str | os.PathLike[str]]) -> Discovery:
    """Find tools in files that have to be there: what is wrong with one is for the caller to tell, and not in the log."""
    found = _Finding()
    found.load_files(map(Path, files))
    return found.done()


def output_in(
    *folders: str | os.PathLike[str], recursive: bool = True, files: Iterable[str | os.PathLike[str]] = ()
) -> Any:
    """Return what the variable `output_schema` of a file says, a type or JSON Schema: the first that is found wins.

    Args:
        folders: Folders with files called `tagent.output.py` or `NAME.output.py`, which are run; a broken one is a warning.
        recursive: Look into the folders below them, too, but not into hidden ones.
        files: Files that have to be there, and to have it.

    Raises:
        InvalidFile: one of `files` cannot be run, or does not have it.
        ConfigurationError: there is no such folder.
    """
    for path in map(Path, _listed(files, "files")):
        module = _run_path(path)
        if not hasattr(module, OUTPUT):
            raise InvalidFile(str(path), 1, f"it has no variable {OUTPUT}: a type, or a JSON Schema")
        return getattr(module, OUTPUT)
    for path in _files(folders, recursive=recursive, names=(), ending=OUTPUT_ENDING):
        try:
            module = _run_path(path)
        except InvalidFile as error:
            _log.warning("the form of the answer cannot be loaded: %s", shown(str(error)))
            continue
        if hasattr(module, OUTPUT):
            return getattr(module, OUTPUT)
    return None


_Named = TypeVar("_Named", bound=str | os.PathLike[str])


def _listed(names: Iterable[_Named], argument: str) -> Iterable[_Named]:
    if isinstance(names, str):
        raise ConfigurationError(f"{argument}= takes a list of names: {argument}=[{names!r}]")
    return names


@attrs.define
class _Finding:
    """What was found so far."""

    tools: dict[str, Tool | Toolset] = attrs.field(factory=dict)
    places: dict[str, str] = attrs.field(factory=dict)
    problems: list[InvalidFile] = attrs.field(factory=list)
    skipped: list[InvalidFile] = attrs.field(factory=list)

    def done(self) -> Discovery:
        return Discovery(tuple(self.tools.values()), self.places, tuple(self.problems), tuple(self.skipped))

    def load_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.load(str(path), lambda path=path: _run_path(path))  # type: ignore[misc]

    def load(self, label: str, load: Callable[[], object]) -> None:
        """Take what one file, module or entry point has."""
        try:
            loaded = load()
        except InvalidFile as error:
            self.problems.append(error)
            return
        for made in self._made(loaded, label):
            self._take(made, label)

    def _made(self, loaded: object, label: str) -> Iterator[Tool | Toolset]:
        if isinstance(loaded, ModuleType):
            yield from members(loaded, lambda line, reason: self._skip(label, line, reason))
            return
        for each in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if isinstance(each, Tool | Toolset):
                yield each
            else:
                self._skip(label, 1, f"{type(each).__name__} is neither a tool nor a toolset")

    def _take(self, made: Tool | Toolset, label: str) -> None:
        file, line = defined_at(made) or (label, 1)
        if self.tools.setdefault(made.name, made) is made:
            self.places[made.name] = label if file == label and line == 1 else f"{file}:{line}"
        else:
            self._skip(file, line, f"{made.name!r} is there already: {self.places[made.name]}")

    def _skip(self, file: str, line: int, reason: str) -> None:
        self.skipped.append(InvalidFile(file, line, reason))
        _log.warning("not a tool: %s", shown(str(self.skipped[-1])))


# --- what a module has -------------------------------------------------------------------------


def members(module: ModuleType, skip: Callable[[int, str], object]) -> Iterator[Tool | Toolset]:
    """Yield the tools and toolsets of a module; `skip` gets line and reason of what only looks like one."""
    seen: set[int] = set()
    for name, value in list(vars(module).items()):
        is_own = getattr(value, "__module__", None) == module.__name__
        if id(value) in seen or not _looks_like_one(value, is_own=is_own):
            continue
        seen.add(id(value))
        if name.startswith("_"):
            if not inspect.isfunction(value) or takes_state(value):
                skip(_line_of(value), f"{name!r} is private: a tool's name does not begin with _")
            continue
        try:
            yield _tool_of(name, value)
        except Exception as error:  # noqa: BLE001 - the edge to foreign code: a constructor
            reason = str(error) if isinstance(error, ConfigurationError) else type(error).__name__
            skip(_line_of(value), f"{name!r}: {reason}")


def _looks_like_one(value: object, *, is_own: bool) -> bool:
    """Return True for tools, toolsets, and what the module itself defines of functions and of classes of tools."""
    if isinstance(value, type):
        return is_own and issubclass(value, Tool) and not inspect.isabstract(value)
    return isinstance(value, Tool | Toolset) or (is_own and inspect.isfunction(value))


def _tool_of(name: str, value: Any) -> Tool | Toolset:
    if isinstance(value, type):
        value = value()
    if isinstance(value, Toolset):
        return value
    if not isinstance(value, Tool):
        if not takes_state(value):
            raise ConfigurationError("a tool has @tool, or the parameters (state, args)")
        value = state_tool(value, name=name)
    return to_tool(value)


def defined_at(made: Tool | Toolset) -> tuple[str, int] | None:
    """Tell the file and line of a tool's function; None where it is made of something else."""
    while isinstance(made, WrappedTool):
        made = made.inner
    code = _code_of(made)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _line_of(value: object) -> int:
    code = _code_of(value)
    return 1 if code is None else code.co_firstlineno


def _code_of(value: object) -> CodeType | None:
    function = inspect.unwrap(getattr(value, "func", value))  # type: ignore[arg-type]
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


# --- files, modules, entry points --------------------------------------------------------------


def _files(
    folders: Sequence[str | os.PathLike[str]],
    *,
    recursive: bool,
    names: Sequence[str] = FILES,
    ending: str = ENDING,
) -> Iterator[Path]:
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigurationError(f"no such folder to look for tools in: {folder}")
        for place, below, files in os.walk(folder):
            below[:] = sorted(b for b in below if not b.startswith(".") and b not in _NOT_ENTERED)
            if not recursive:
                below.clear()
            others = sorted(name for name in files if name.endswith(ending) and name not in names)
            yield from (Path(place, name) for name in (*names, *others) if name in files)


def _run_path(path: Path) -> ModuleType:
    try:
        code = path.read_bytes()
    except OSError as error:
        raise InvalidFile(str(path), 1, error.strerror or "it cannot be read") from error
    return run_code(code, str(path), name=f"actgent tools of {path.absolute()}")


def run_code(code: str | bytes, path: str, *, name: str) -> ModuleType:
    """Run the code of a file as a module of this name.

    Raises:
        InvalidFile: it cannot be run; with the line.
    """
    # Registered, because dataclasses and attrs look their own module up there.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    try:
        exec(compile(code, path, "exec"), module.__dict__)  # noqa: S102 - the developer's own code
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(path, error) from error
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _broken(_file_of(name), error) from error


def _enter(name: str) -> object:
    found = list(importlib.metadata.entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(sorted(importlib.metadata.entry_points(group=GROUP).names)) or "none"
        raise InvalidFile(f"entry point {name}", 1, f"no package has it in {GROUP} (there are: {known})")
    try:
        return found[0].load()
    except (Exception, SystemExit) as error:
        raise _broken(_file_of(found[0].module), error) from error


def _file_of(module: str) -> str:
    """The file of a module, without importing it; else its name."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return module
    return module if spec is None or spec.origin is None else spec.origin


def _broken(path: str, error: BaseException) -> InvalidFile:
    if isinstance(error, SyntaxError) and error.filename == path:
        return InvalidFile(path, error.lineno or 1, f"syntax error: {error.msg}")
    lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == path]
    says = isinstance(error, ConfigurationError | ImportError)  # no values of a program's stand in these
    reason = str(error) if says else type(error).__name__
    return InvalidFile(path, (lines and lines[-1]) or 1, f"the code cannot be run: {reason}")
