"""`DatasetFolder`: a folder with files of cases, and the reports of their evaluations.

`NAME.jsonl` has the cases of the dataset NAME, one per line. The folder `NAME.history` has one JSON report for each evaluation.
Files are replaced as a whole, so a crash leaves the old or the new content. Writers in all processes hold a lock.
"""

import functools
import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent.errors import ConfigurationError, SessionExists, UsageError
from actgent.journal.journal_interface import Journal
from actgent.support.files_shared_by_processes import file_change, write_whole
from actgent.web.gateway_interface import Datasets
from actgent.web.json_response_types import (
    DatasetCase,
    DatasetDocument,
    EvaluatedCase,
    EvaluatedRun,
    Evaluation,
    EvaluationSummary,
    VariantFigures,
)

from .case_files import MAX_BYTES, case_from, parse_case, read_case_file
from .cases_from_journal import case_of_session
from .evaluation_report import FORMAT

SUFFIX, HISTORY_SUFFIX = ".jsonl", ".history"
MAX_REPORT_BYTES = 50_000_000
"""Maximum size of a report that is read, in bytes."""
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
"""Pattern of the names of datasets and evaluations: no path separator, and no dot at the beginning."""
_TIME = "%Y%m%dT%H%M%S.%fZ"


def store_report(cases: Path, text: str) -> Path:
    """Store the JSON report of an evaluation next to its file of cases, and return its path.

    Raises:
        ConfigurationError: The cases are not a file with the suffix `.jsonl`, or the report cannot be written.
    """
    folder = history_folder(cases)
    path = folder / f"{datetime.now(UTC).strftime(_TIME)}-{secrets.token_hex(2)}.json"
    try:
        folder.mkdir(exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
    return path


def history_folder(cases: Path) -> Path:
    """Return the path of the folder with the reports of a file of cases.

    Raises:
        ConfigurationError: The path is not a file with the suffix `.jsonl`.
    """
    if cases.suffix != SUFFIX or not cases.is_file():
        raise ConfigurationError(
            f"a history of reports requires a file of cases with the suffix {SUFFIX}, not {cases}"
        )
    return cases.with_suffix(HISTORY_SUFFIX)


class DatasetFolder(Datasets):
    """The evaluation datasets in a folder, for `open_gateway(datasets=...)`.

    Args:
        path: Folder of the datasets. Other processes may read and write its files concurrently.

    Raises:
        ConfigurationError: The folder does not exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        """Folder of the datasets."""
        if not self.path.is_dir():
            raise ConfigurationError(f"{path} is not a folder: create it, or name the folder of the datasets")

    def __repr__(self) -> str:
        return f"<DatasetFolder {str(self.path)!r}>"

    async def datasets(self) -> Sequence[DatasetDocument]:
        return await trio.to_thread.run_sync(self._datasets)

    async def cases(self, name: str) -> Sequence[DatasetCase] | None:
        path = self._file(name)
        return None if path is None else await trio.to_thread.run_sync(_cases_in, path)

    async def evaluations(self, name: str) -> Sequence[EvaluationSummary] | None:
        path = self._file(name)
        return None if path is None else await trio.to_thread.run_sync(_summaries, path)

    async def evaluation(self, name: str, evaluation_id: str) -> Evaluation | None:
        path = self._file(name)
        return None if path is None else await trio.to_thread.run_sync(_evaluation, path, evaluation_id)

    async def add_session(
        self,
        name: str,
        journal: Journal,
        agent: str,
        session_id: str,
        *,
        message_id: str = "",
        expected: str = "",
    ) -> tuple[DatasetCase, bool]:
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"the name of a dataset must have 1 to 128 characters of A-Z a-z 0-9 . _ -, not {name!r:.80}"
            )
        case = await case_of_session(journal, agent, session_id, message_id=message_id, expected=expected)
        if case is None:
            raise ConfigurationError(
                "a case requires a session that ends with an answer without a bad rating, or set `expected`"
                if not message_id
                else "a case requires a message whose turn ends with an answer without a bad rating, or set `expected`"
            )
        path = self.path / f"{name}{SUFFIX}"
        async with file_change(path):
            is_new = await trio.to_thread.run_sync(_append, path, case, agent)
        return _to_document(str(case["name"]), case), is_new

    async def replace_case(
        self, name: str, case_name: str, version: str, case: Mapping[str, Any] | None
    ) -> DatasetCase | None:
        path = self._file(name)
        if path is None:
            raise LookupError(name)
        async with file_change(path):
            return await trio.to_thread.run_sync(_replace, path, case_name, version, case)

    def _file(self, name: str) -> Path | None:
        """Return the path of the file of a dataset; None if the dataset does not exist."""
        path = self.path / f"{name}{SUFFIX}"
        return path if _NAME.fullmatch(name) and path.is_file() else None

    def _datasets(self) -> list[DatasetDocument]:
        paths = sorted(self.path.glob(f"*{SUFFIX}"))
        return [_of_dataset(path) for path in paths if _NAME.fullmatch(path.stem) and path.is_file()]


# --- cases -------------------------------------------------------------------------------


def _of_dataset(path: Path) -> DatasetDocument:
    found = _summaries(path)
    state = path.stat()
    return {
        "name": path.stem,
        "cases": _count_cases(path, state.st_mtime_ns, state.st_size),
        "changed_at": _to_date(state.st_mtime),
        "evaluations": len(found),
        "last": found[0] if found else None,
    }


@functools.lru_cache(maxsize=256)
def _count_cases(path: Path, _changed: int, size: int) -> int:
    """Return the number of lines with a case in a file. The result is cached until the file's size or change time differs."""
    return 0 if size > MAX_BYTES else sum(bool(line.strip()) for line in path.read_bytes().splitlines())


def _cases_in(path: Path) -> list[DatasetCase]:
    return [
        _to_document(case_from(each, location=f"{path.name}:{number}").title, each)
        for number, each in _lines(path, read_case_file(path, location=path.name))
    ]


def _to_document(name: str, case: Mapping[str, Any]) -> DatasetCase:
    digest = hashlib.sha256(json.dumps(case, sort_keys=True).encode()).hexdigest()
    return {"name": name, "version": digest[:16], "case": dict(case)}


def _lines(path: Path, text: str) -> Iterable[tuple[int, Mapping[str, Any]]]:
    """Parse the text of a file of cases. Yield the line number and the dictionary of each case.

    Raises:
        ConfigurationError: A line is not a JSON object.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            case = parse_case(line, f"{path.name}:{number}")
            if not isinstance(case, Mapping):
                raise ConfigurationError(f"{path.name}:{number} must be a JSON object")
            yield number, case


def _append(path: Path, case: Mapping[str, Any], agent: str) -> bool:
    """Append a case to a file, and return True. Return False if the file has exactly this case.

    The caller holds the lock of the file.

    Raises:
        SessionExists: The file has another case of this name.
        ConfigurationError: The file has an invalid line, would be too large, or cannot be written.
    """
    try:
        text = read_case_file(path, location=path.name) if path.exists() else ""
        for _, each in _lines(path, text):
            if each.get("name") == case["name"]:
                if dict(each) == dict(case):
                    return False
                raise SessionExists(agent, str(case["name"]))
        gap = "" if not text or text.endswith("\n") else "\n"
        _write(path, f"{text}{gap}{json.dumps(case, ensure_ascii=False)}\n")
    except OSError as error:
        raise ConfigurationError(f"{path.name} cannot be written: {error.strerror}") from None
    return True


def _replace(path: Path, name: str, version: str, case: Mapping[str, Any] | None) -> DatasetCase | None:
    """Replace the line of a case, or remove it if `case` is None. Return the new case.

    The caller holds the lock of the file. `Datasets.replace_case` documents arguments and errors.
    """
    try:
        text = read_case_file(path, location=path.name)
        lines = text.splitlines(keepends=True)
        known = [
            (number, _to_document(case_from(each, location=f"{path.name}:{number}").title, each))
            for number, each in _lines(path, text)
        ]
        changed = None if case is None else _to_document(case_from(case).title, case)
        if any(found == changed for _, found in known):
            return changed  # a retry of a request whose response was lost
        versions = {found["version"]: number for number, found in known if found["name"] == name}
        if not versions:
            raise LookupError(name)
        if version not in versions:
            raise UsageError(f"case {name!r:.80} was changed since it was read: read it again")
        line = versions[version]
        if changed and any(found["name"] == changed["name"] and number != line for number, found in known):
            raise UsageError(f"the dataset has another case with the name {changed['name']!r:.80}")
        lines[line - 1] = "" if case is None else f"{json.dumps(case, ensure_ascii=False)}\n"
        _write(path, "".join(lines))
    except OSError as error:
        raise ConfigurationError(f"{path.name} cannot be written: {error.strerror}") from None
    return changed


def _write(path: Path, text: str) -> None:
    """Replace the content of a file of cases.

    Raises:
        ConfigurationError: The content is too large.
    """
    content = text.encode()
    if len(content) > MAX_BYTES:
        raise ConfigurationError(f"{path.name} would be larger than {MAX_BYTES:,} bytes: use another dataset")
    write_whole(path, content, keeps_rights=True)


# --- evaluations -------------------------------------------------------------------------


def _reports(path: Path) -> list[Path]:
    """Return the paths of the reports of a file of cases, the latest first."""
    found = [each for each in path.with_suffix(HISTORY_SUFFIX).glob("*.json") if _NAME.fullmatch(each.stem)]
    return sorted(found, key=lambda each: (_time_of(each), each.name), reverse=True)


def _time_of(report: Path) -> float:
    """Return the time of an evaluation in Unix seconds: the time in the name of its report, else the file's last change."""
    try:
        return datetime.strptime(report.stem.rpartition("-")[0], _TIME).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return report.stat().st_mtime


def _summaries(path: Path) -> list[EvaluationSummary]:
    found = []
    for report in _reports(path):
        state = report.stat()
        summary = _summary(report, state.st_mtime_ns, state.st_size)
        if summary is not None:
            found.append(summary)
    return found


@functools.lru_cache(maxsize=1024)
def _summary(report: Path, _changed: int, _size: int) -> EvaluationSummary | None:
    """Read the summary of a report file; return None if it is not a report. The result is cached until the file changes."""
    found = _load(report)
    return None if found is None else found.summary


@attrs.frozen
class _Report:
    """An evaluation report that was read from its file."""

    summary: EvaluationSummary
    cases: Mapping[tuple[str, str], EvaluatedCase]
    """Results by names of case and variant, in the order of the report file."""


def _load(report: Path) -> _Report | None:
    """Read a report file; return None if it is too large, incomplete, or not a report."""
    try:
        if report.stat().st_size > MAX_REPORT_BYTES:
            return None
        found = json.loads(report.read_bytes())
        if found["format"] != FORMAT:
            return None
        groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for trial in found["trials"]:
            groups.setdefault((trial["case"], trial["variant"]), []).append(trial)
        summary: EvaluationSummary = {
            "id": report.stem,
            "at": _to_date(_time_of(report)),
            "variants": [_of_variant(row) for row in found["variants"]],
        }
        return _Report(summary, {key: _of_case(key, trials) for key, trials in groups.items()})
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def _of_variant(row: Mapping[str, Any]) -> VariantFigures:
    return {
        "name": str(row["name"]),
        "trials": int(row["trials"]),
        "passed": int(row["passed"]),
        "errors": int(row["errors"]),
        "score": float(row["score"]),
        "cost": None if row["usage"]["cost"] is None else float(row["usage"]["cost"]),
        "p50": float(row["p50"]),
        "p95": float(row["p95"]),
    }


def _of_case(key: tuple[str, str], trials: Sequence[Mapping[str, Any]]) -> EvaluatedCase:
    name, variant = key
    return {
        "name": str(name),
        "variant": str(variant),
        "input": [str(each) for each in trials[0]["input"]],
        "expected": trials[0]["expected"],
        "figures": {
            "trials": len(trials),
            "passed": sum(trial["passed"] is True for trial in trials),
            "score": sum(float(trial["score"]) for trial in trials) / len(trials),
        },
        "before": None,
        "runs": [_of_run(trial) for trial in trials],
    }


def _of_run(trial: Mapping[str, Any]) -> EvaluatedRun:
    failed = [each for each in trial["results"] if not each["passed"]]
    return {
        "passed": trial["passed"] is True,
        "text": str(trial["text"]),
        "error": str(trial["error"]),
        "failures": [f"{each['name']}: {each['reason'] or 'failed'}" for each in failed],
        "calls": [str(each["name"]) for each in trial["calls"]],
        "seconds": float(trial["seconds"]),
    }


def _evaluation(path: Path, evaluation_id: str) -> Evaluation | None:
    reports = _reports(path)
    indexes = [index for index, each in enumerate(reports) if each.stem == evaluation_id]
    found = _load(reports[indexes[0]]) if indexes else None
    if found is None:
        return None
    before = next(filter(None, map(_load, reports[indexes[0] + 1 :])), None)
    known = {} if before is None else before.cases
    names = {name for name, _ in found.cases}
    items: list[EvaluatedCase] = [
        {**case, "before": known[key]["figures"] if key in known else None}
        for key, case in found.cases.items()
    ]
    return {
        "summary": found.summary,
        "before": None if before is None else before.summary,
        "items": items,
        "removed": sorted({name for name, _ in known} - names),
    }


def _to_date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
