"""Migrations of a database: SQL texts or files, each applied once and identified by its digest."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr


@attrs.frozen(repr=False)
class Migration(FieldRepr):
    """One migration of a database: SQL that must not change after it was applied."""

    name: str
    """Name of the file, or `migration N`; only for display."""
    sql: str
    """SQL statements of the migration, each ended by `;`."""

    @property
    def digest(self) -> str:
        """Digest that identifies the migration, ignoring trailing whitespace and line endings."""
        text = "\n".join(line.rstrip() for line in self.sql.strip().splitlines())
        return hashlib.blake2s(text.encode(), digest_size=16).hexdigest()


def read_migrations(migrations: Iterable[str | Path]) -> tuple[Migration, ...]:
    """Read migrations: a text is SQL, a path is a file, or a folder whose `*.sql` files are read in order of their names.

    Raises:
        ConfigurationError: A file cannot be read, or a migration is empty.
    """
    if isinstance(migrations, str | Path) or not isinstance(migrations, Iterable):
        raise ConfigurationError(
            f"migrations= must be a list of SQL strings and paths, not {migrations!r:.100}"
        )
    steps: list[Migration] = []
    for each in migrations:
        if isinstance(each, Path):
            steps += [_read_file(path) for path in _sql_files(each)]
        elif isinstance(each, str):
            steps.append(Migration(f"migration {len(steps) + 1}", each))
        else:
            raise ConfigurationError(f"a migration must be SQL text or a Path, not {each!r:.100}")
    if empty := next((step.name for step in steps if not step.sql.strip()), None):
        raise ConfigurationError(f"{empty} is empty: write SQL statements in it, or remove it")
    return tuple(steps)


def _sql_files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return (path,)
    if found := sorted(path.glob("*.sql")):
        return found
    raise ConfigurationError(f"the folder {path.name!r} of migrations has no files *.sql")


def _read_file(path: Path) -> Migration:
    try:
        return Migration(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the migration {path.name!r} cannot be read: {error}") from error
