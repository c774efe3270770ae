"""The steps in which tables come to be: SQL as text or files, each applied once, and known again by its digest."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from actgent.errors import ConfigurationError


@attrs.frozen
class Migration:
    """One step, which never changes once it was applied somewhere."""

    name: str
    """For people: the file's, or its number."""
    sql: str
    """Statements, each ended by `;`."""

    @property
    def digest(self) -> str:
        """By which the same step is known again; ends of lines do not count."""
        text = "\n".join(line.rstrip() for line in self.sql.strip().splitlines())
        return hashlib.blake2s(text.encode(), digest_size=16).hexdigest()


def read_migrations(given: Iterable[str | Path]) -> tuple[Migration, ...]:
    """Read the steps: a text is SQL, a path a file of SQL, or a folder whose `*.sql` are taken in the order of their names.

    Raises:
        ConfigurationError: a file cannot be read, or a step says nothing.
    """
    if isinstance(given, str | Path) or not isinstance(given, Iterable):
        raise ConfigurationError(f"migrations= takes a list of SQL texts and paths, not {given!r:.100}")
    steps: list[Migration] = []
    for each in given:
        if isinstance(each, Path):
            steps += [_of_file(path) for path in _files(each)]
        elif isinstance(each, str):
            steps.append(Migration(f"migration {len(steps) + 1}", each))
        else:
            raise ConfigurationError(f"a migration is SQL as text or a Path, not {each!r:.100}")
    if empty := next((step.name for step in steps if not step.sql.strip()), None):
        raise ConfigurationError(f"{empty} is empty: leave it out")
    return tuple(steps)


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return (path,)
    if found := sorted(path.glob("*.sql")):
        return found
    raise ConfigurationError(f"the folder {path.name!r} of migrations has no files *.sql")


def _of_file(path: Path) -> Migration:
    try:
        return Migration(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the migration {path.name!r} cannot be read: {error}") from error
