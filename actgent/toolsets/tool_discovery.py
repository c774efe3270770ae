"""Discovery of tools in files, modules and entry points of installed packages.

Only the named locations are examined, and no other module is imported. A broken file is reported with its line; the other
files are loaded.
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
from actgent.errors.text_escaping import shown
from actgent.support.safe_logging import logger_of
from actgent.support.unknown_name_hints import lists_arguments
from actgent.tools.state_tools import state_tool, takes_state
from actgent.tools.tool_interface import Tool, WrappedTool
from actgent.tools.tool_registry import to_tool

from .toolset import Toolset

FILES = ("actgent_tools.py", "tagent.tools.py")
"""Names of files in which `discover` looks for tools, in addition to files that end with `ENDING`."""
ENDING = ".tools.py"
OUTPUT_VARIABLE = "output_schema"
"""Variable that contains the output schema, in files that end with `OUTPUT_ENDING`."""
OUTPUT_ENDING = ".output.py"
GROUP = "actgent.tools"
"""Entry point group for tools: a module, a tool, a toolset, or a list of tools and toolsets."""
_SKIPPED_FOLDERS = frozenset(("__pycache__", "node_modules", "site-packages", "venv"))
_log = logger_of(__name__)


@lists_arguments
@attrs.frozen
class Discovery:
    """Result of `discover`. Iterating over it yields the tools: `Agent(tools=discover("tools"))`."""

    tools: tuple[Tool | Toolset, ...] = ()
    """Usable tools and toolsets that `discover` found in the files, modules and entry points."""
    locations: Mapping[str, str] = attrs.field(factory=dict)
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
    found = _Collector()
    found.load_files((*map(Path, _require_list(files, "files")), *_files(folders, recursive=recursive)))
    for name in _require_list(modules, "modules"):
        found.load(name, lambda name=name: _import_module(name))  # type: ignore[misc]
    for name in _require_list(entry_points, "entry_points"):
        found.load(f"entry point {name}", lambda name=name: _load_entry_point(name))  # type: ignore[misc]
    for problem in found.problems:
        _log.warning("tools cannot be loaded: %s", shown(str(problem)))
    return found.done()


def load_files(files: Iterable[str | os.PathLike[str]]) -> Discovery:
    """Load tools from files. Each file must exist.

    Errors are collected in `Discovery.problems` and not logged, so that the caller reports them.
    """
    found = _Collector()
    found.load_files(map(Path, files))
    return found.done()


def load_output_schema(
    *folders: str | os.PathLike[str], recursive: bool = True, files: Iterable[str | os.PathLike[str]] = ()
) -> Any:
    """Return the variable `output_schema` of the first file that defines the variable: a type or a schema; None without one.

    Args:
        folders: Folders with files named `tagent.output.py` or `NAME.output.py`. The files are run; a broken file is
            logged.
        recursive: Also search subfolders, except hidden ones.
        files: Files that must exist and must define the variable.

    Raises:
        InvalidFile: A file of `files` cannot be run, or does not define the variable.
        ConfigurationError: A folder does not exist.
    """
    for path in map(Path, _require_list(files, "files")):
        module = _run_path(path)
        if not hasattr(module, OUTPUT_VARIABLE):
            raise InvalidFile(
                str(path), 1, f"the variable {OUTPUT_VARIABLE} is missing: assign a type or a JSON Schema"
            )
        return getattr(module, OUTPUT_VARIABLE)
    for path in _files(folders, recursive=recursive, names=(), ending=OUTPUT_ENDING):
        try:
            module = _run_path(path)
        except InvalidFile as error:
            _log.warning("the output schema cannot be loaded: %s", shown(str(error)))
            continue
        if hasattr(module, OUTPUT_VARIABLE):
            return getattr(module, OUTPUT_VARIABLE)
    return None


_Named = TypeVar("_Named", bound=str | os.PathLike[str])


def _require_list(names: Iterable[_Named], argument: str) -> Iterable[_Named]:
    """Return the names passed as `argument`, or raise `ConfigurationError` if a single string was passed."""
    if isinstance(names, str):
        raise ConfigurationError(f"{argument}= must be a list of names: {argument}=[{names!r}]")
    return names


@attrs.define
class _Collector:
    """Collects the tools, origins and problems of one discovery."""

    tools: dict[str, Tool | Toolset] = attrs.field(factory=dict)
    locations: dict[str, str] = attrs.field(factory=dict)
    problems: list[InvalidFile] = attrs.field(factory=list)
    skipped: list[InvalidFile] = attrs.field(factory=list)

    def done(self) -> Discovery:
        return Discovery(
            tuple(self.tools.values()), self.locations, tuple(self.problems), tuple(self.skipped)
        )

    def load_files(self, paths: Iterable[Path]) -> None:
        for path in paths:
            self.load(str(path), lambda path=path: _run_path(path))  # type: ignore[misc]

    def load(self, label: str, load: Callable[[], object]) -> None:
        """Load one file, module or entry point with `load`, and add its tools.

        `label` is its name in errors. A broken file is recorded as a problem.
        """
        try:
            loaded = load()
        except InvalidFile as error:
            self.problems.append(error)
            return
        for tool in self._tools_of(loaded, label):
            self._add(tool, label)

    def _tools_of(self, loaded: object, label: str) -> Iterator[Tool | Toolset]:
        """Yield the tools and toolsets of a loaded module or entry point."""
        if isinstance(loaded, ModuleType):
            yield from tools_in_module(loaded, lambda line, reason: self._skip(label, line, reason))
            return
        for each in loaded if isinstance(loaded, list | tuple) else [loaded]:
            if isinstance(each, Tool | Toolset):
                yield each
            else:
                self._skip(label, 1, f"{type(each).__name__} is neither a tool nor a toolset")

    def _add(self, tool: Tool | Toolset, label: str) -> None:
        """Add a tool or toolset to the result. If its name is already used, record the new tool as skipped."""
        file, line = definition_of(tool) or (label, 1)
        if self.tools.setdefault(tool.name, tool) is tool:
            self.locations[tool.name] = label if file == label and line == 1 else f"{file}:{line}"
        else:
            self._skip(file, line, f"the name {tool.name!r} is taken: {self.locations[tool.name]}")

    def _skip(self, file: str, line: int, reason: str) -> None:
        """Record and log an object that looks like a tool but is not usable."""
        self.skipped.append(InvalidFile(file, line, reason))
        _log.warning("not a tool: %s", shown(str(self.skipped[-1])))


# --- tools of a module -------------------------------------------------------------------------


def tools_in_module(module: ModuleType, skip: Callable[[int, str], object]) -> Iterator[Tool | Toolset]:
    """Yield the tools and toolsets of a module. For each object that is not usable, call `skip` with its line and the reason."""
    seen: set[int] = set()
    for name, value in list(vars(module).items()):
        is_own = getattr(value, "__module__", None) == module.__name__
        if id(value) in seen or not _is_candidate(value, is_own=is_own):
            continue
        seen.add(id(value))
        if name.startswith("_"):
            if not inspect.isfunction(value) or takes_state(value):
                skip(_line_of(value), f"{name!r} is private: rename it without the leading _")
            continue
        try:
            yield _to_tool(name, value)
        except Exception as error:  # noqa: BLE001 - a constructor is user code
            reason = str(error) if isinstance(error, ConfigurationError) else type(error).__name__
            skip(_line_of(value), f"{name!r}: {reason}")


def _is_candidate(value: object, *, is_own: bool) -> bool:
    """Return True if a variable of a module may be a tool: a tool, a toolset, or a function or tool class of this module.

    `is_own` is True if the module defines the value itself.
    """
    if isinstance(value, type):
        return is_own and issubclass(value, Tool) and not inspect.isabstract(value)
    return isinstance(value, Tool | Toolset) or (is_own and inspect.isfunction(value))


def _to_tool(name: str, value: Any) -> Tool | Toolset:
    if isinstance(value, type):
        value = value()
    if isinstance(value, Toolset):
        return value
    if not isinstance(value, Tool):
        if not takes_state(value):
            raise ConfigurationError("a tool must have the decorator @tool or the parameters (state, args)")
        value = state_tool(value, name=name)
    return to_tool(value)


def definition_of(tool: Tool | Toolset) -> tuple[str, int] | None:
    """Return the file and line of the function from which a tool was made; None if the tool was not made from a function."""
    while isinstance(tool, WrappedTool):
        tool = tool.inner
    code = _code_of(tool)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def _line_of(value: object) -> int:
    code = _code_of(value)
    return 1 if code is None else code.co_firstlineno


def _code_of(value: object) -> CodeType | None:
    """Return the code object of a function, also of the function inside a tool; None for other values."""
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
    """Yield the files in folders whose name is in `names` or ends with `ending`, in sorted order.

    Hidden folders are skipped. Raise `ConfigurationError` for a missing folder.
    """
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ConfigurationError(f"the folder to search for tools must exist: {folder}")
        for place, below, files in os.walk(folder):
            below[:] = sorted(b for b in below if not b.startswith(".") and b not in _SKIPPED_FOLDERS)
            if not recursive:
                below.clear()
            others = sorted(name for name in files if name.endswith(ending) and name not in names)
            yield from (Path(place, name) for name in (*names, *others) if name in files)


def _run_path(path: Path) -> ModuleType:
    try:
        code = path.read_bytes()
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise InvalidFile(str(path), 1, f"{reason}; expected a Python file that defines tools") from error
    return run_code(code, str(path), name=f"actgent tools of {path.absolute()}")


def run_code(code: str | bytes, path: str, *, name: str) -> ModuleType:
    """Run the code of a file as a new module, and return the module.

    Raises:
        InvalidFile: The code raised an exception; the error has the line.
    """
    # Registered, because dataclasses and attrs look up the module of a class there.
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    try:
        exec(compile(code, path, "exec"), module.__dict__)  # noqa: S102 - trusted code of the developer
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _load_error(path, error) from error
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _load_error(_file_of(name), error) from error


def _load_entry_point(name: str) -> object:
    found = list(importlib.metadata.entry_points(group=GROUP, name=name))
    if not found:
        known = ", ".join(sorted(importlib.metadata.entry_points(group=GROUP).names)) or "none"
        raise InvalidFile(
            f"entry point {name}",
            1,
            f"no installed package defines this entry point in the group {GROUP} (entry points: {known})",
        )
    try:
        return found[0].load()
    except (Exception, SystemExit) as error:
        raise _load_error(_file_of(found[0].module), error) from error


def _file_of(module: str) -> str:
    """Return the path of a module's file without importing the module, or the module's name if the file is unknown."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return module
    return module if spec is None or spec.origin is None else spec.origin


def _load_error(path: str, error: BaseException) -> InvalidFile:
    """Convert the exception of a failed import to an error with file and line.

    The texts of exceptions of unknown classes are left out, because they may contain secrets.
    """
    if isinstance(error, SyntaxError) and error.filename == path:
        return InvalidFile(path, error.lineno or 1, f"syntax error: {error.msg}")
    lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == path]
    has_message = isinstance(
        error, ConfigurationError | ImportError
    )  # texts of other exceptions may contain secrets
    reason = str(error) if has_message else type(error).__name__
    return InvalidFile(path, (lines and lines[-1]) or 1, f"the code cannot be run: {reason}")
