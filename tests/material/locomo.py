"""LoCoMo: the turns of a long conversation that `LongTermMemory.recall` finds for a question.

Each turn of ten conversations is stored as "SPEAKER: TEXT (shares CAPTION)" in its session, with one owner for each
conversation. The evidence of a question is the turns that its authors named. `recall@k` is the share of the evidence
among the first k memories, averaged over the questions of the kinds 1 to 4. Kind 5 has no answer and has separate rows.

    make material MATERIAL=/folder ARGS="--only locomo"

prints the tables. If /folder/locomo/minilm has the weights of all-MiniLM-L6-v2, recall with vectors is also measured.
"""

import contextlib
import itertools
import json
import os
import random
import re
import tempfile
import time
import zipfile
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import trio

from actgent import LongTermMemory
from actgent.memory.longterm import recall_ranking

from . import minilm
from .tables import Progress, Source, Table

SOURCE = Source(
    title="LoCoMo, snap-research/locomo at e76cdff4 or later",
    files=("locomo10.*",),
    origin="https://github.com/snap-research/locomo, data/locomo10.json or data/locomo10.zip",
    licence="CC BY-NC 4.0: measured only, never copied into the repository",
)
POSTGRES = os.environ.get("MATERIAL_POSTGRES", "postgres://postgres@127.0.0.1:5432/test")
SCHEMA = f"actgent_material_{os.getpid()}"
KINDS = {1: "several turns", 2: "dates", 3: "open", 4: "one turn", 5: "no answer"}
ANSWERED = (1, 2, 3, 4)
PLACES = (1, 5, 10, 20)
LIMIT = 50
"""Memories per recall from which the sessions are collected."""
TIMED = 1_000
"""Number of memories of the owner in the CPU measurement."""
BARS = {"words": {1: 0.30, 10: 0.69}, "vectors": {1: 0.32, 10: 0.70}}
SESSIONS_BAR = 0.94
AGREEMENT, TIE_BAR, CPU_BAR = 0.01, 0.02, 1.0
WEIGHTS = (0.4, 0.6, 0.8, 1.0)
SHARES = ((0.3, 0.15), (0.4, 0.2), (0.5, 0.25), (0.6, 0.3))


@attrs.frozen
class Turn:
    """A message of a conversation."""

    id: str
    session: str
    at: float
    """Unix time in seconds of the session."""
    text: str


@attrs.frozen
class Question:
    """A question with its kind and the ids of the turns that answer it."""

    text: str
    kind: int
    evidence: frozenset[str]


@attrs.frozen
class Conversation:
    """A conversation of two speakers over many sessions."""

    name: str
    turns: Sequence[Turn]
    questions: Sequence[Question]


@attrs.frozen
class Answer:
    """The recalled turns for a question: ids and sessions, best first."""

    conversation: str
    question: Question
    ids: Sequence[str]
    sessions: Sequence[str]
    evidence_sessions: frozenset[str]

    def recall(self, k: int) -> float:
        return len(self.question.evidence.intersection(self.ids[:k])) / len(self.question.evidence)

    def any_session(self, k: int) -> bool:
        return bool(self.evidence_sessions.intersection(self.sessions[:k]))


# --- the material ------------------------------------------------------------------------


def load(folder: Path) -> list[Conversation]:
    """Return the conversations of the file in a folder. Both published formats are accepted."""
    path = next(folder.glob("locomo10.*"))
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            names = sorted(name for name in archive.namelist() if name.endswith(".json"))
            samples = [json.loads(archive.read(name)) for name in names]
    else:
        samples = json.loads(path.read_text(encoding="utf-8"))
    return [_conversation(f"talk{number}", sample) for number, sample in enumerate(samples)]


def _conversation(name: str, sample: Mapping[str, Any]) -> Conversation:
    talk = sample.get("conversation", sample)
    numbers = sorted(int(found[1]) for key in talk if (found := re.fullmatch(r"session_(\d+)", key)))
    turns = []
    for number in numbers:
        date = datetime.strptime(talk[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y")  # noqa: DTZ007
        at = date.replace(tzinfo=UTC).timestamp()
        for turn in talk[f"session_{number}"]:
            caption = f" (shares {turn['blip_caption']})" if turn.get("blip_caption") else ""
            text = f"{turn['speaker']}: {turn['text']}{caption}"
            turns.append(Turn(turn["dia_id"], f"session {number}", at, text))
    known = {turn.id for turn in turns}
    questions = []
    for entry in sample["qa"]:
        named = re.findall(r"D:?(\d+):(\d+)", " ".join(map(str, entry.get("evidence") or ())))
        evidence = frozenset(f"D{session}:{int(place)}" for session, place in named) & known
        if evidence:
            questions.append(Question(entry["question"], entry["category"], evidence))
    return Conversation(name, turns, questions)


# --- storing and recalling ---------------------------------------------------------------


@contextlib.asynccontextmanager
async def remembered(
    url: str,
    talks: Sequence[Conversation],
    *,
    embed: Any = None,
    importance: Callable[[], float] = lambda: 0.5,
    half_life: float | None = None,
    times: int = 1,
) -> AsyncIterator[LongTermMemory]:
    """Open a memory store that contains all turns of some conversations."""
    now = 0.0

    async def remember(owner: str, turn: Turn) -> None:
        nonlocal now
        now = turn.at  # `remember` reads it before its first await
        await _remember(memories, owner, turn, importance())

    async with LongTermMemory(url, embed=embed, half_life=half_life, now=lambda: now) as memories:
        for _ in range(times):
            for group in itertools.zip_longest(*(talk.turns for talk in talks)):
                async with trio.open_nursery() as nursery:
                    for talk, turn in zip(talks, group, strict=True):
                        if turn is not None:
                            nursery.start_soon(remember, talk.name, turn)
        yield memories


async def _remember(memories: LongTermMemory, owner: str, turn: Turn, importance: float) -> None:
    await memories.remember(
        turn.text, owner=owner, session_id=turn.session, message_id=turn.id, importance=importance
    )


async def ask(memories: LongTermMemory, talks: Iterable[Conversation]) -> list[Answer]:
    """Recall memories for all questions."""
    answers = []
    for talk in talks:
        sessions = {turn.id: turn.session for turn in talk.turns}
        for question in talk.questions:
            found = [
                each.memory for each in await memories.recall(question.text, owner=talk.name, limit=LIMIT)
            ]
            answers.append(
                Answer(
                    talk.name,
                    question,
                    [each.message_id for each in found],
                    list(dict.fromkeys(each.session_id for each in found)),
                    frozenset(sessions[each] for each in question.evidence),
                )
            )
    return answers


async def cpu_of_a_recall(url: str, talks: Sequence[Conversation], embed: Any = None) -> float:
    """Return the CPU milliseconds of this process for a recall of 10 among 1,000 memories of one owner."""
    turns = list(itertools.chain.from_iterable(talk.turns for talk in talks))[:TIMED]
    questions = [question.text for talk in talks[:3] for question in talk.questions]
    talk = Conversation(
        "timed", [attrs.evolve(turn, session=f"{n // 22}") for n, turn in enumerate(turns)], ()
    )
    async with remembered(url, [talk], embed=embed) as memories:
        for text in questions[:50]:
            await memories.recall(text, owner="timed")
        started = time.process_time()
        for text in questions:
            await memories.recall(text, owner="timed")
        return (time.process_time() - started) / len(questions) * 1e3


class KnownVectors:
    """Precomputed vectors of all texts. As `embed=`, they need no model call.

    Args:
        folder: Folder with the weights of the embedding.
        texts: All texts of turns and questions.
    """

    def __init__(self, folder: Path, texts: Sequence[str], progress: Progress) -> None:
        model = minilm.MiniLM(folder)
        self._vectors: dict[str, array] = {}
        """Arrays, because the garbage collector would visit each number of a list, which costs more than a recall."""
        for start in range(0, len(texts), TIMED):
            progress(f"vectors of {start:,} of {len(texts):,} texts")
            some = texts[start : start + TIMED]
            for text, vector in zip(some, model.embed(some), strict=True):
                self._vectors[text.strip()] = array("f", vector)

    async def __call__(self, texts: Sequence[str]) -> list[array]:
        await trio.lowlevel.checkpoint()
        return [self._vectors[text.strip()] for text in texts]


# --- the tables --------------------------------------------------------------------------


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0


def recall(answers: Iterable[Answer], k: int, kinds: Sequence[int] = ANSWERED) -> float:
    return mean(each.recall(k) for each in answers if each.question.kind in kinds)


def sessions(answers: Iterable[Answer], k: int) -> float:
    return mean(each.any_session(k) for each in answers if each.question.kind in ANSWERED)


def three(value: float) -> str:
    return f"{value:.3f}"


@attrs.frozen
class Stores:
    """Addresses of empty stores."""

    folder: str
    has_postgres: bool
    _numbers: Iterator[int] = attrs.field(factory=itertools.count)

    def sqlite(self) -> str:
        return f"sqlite:///{self.folder}/{next(self._numbers)}.db"

    def postgres(self) -> str:
        return f"{POSTGRES}?schema={SCHEMA}_{next(self._numbers)}"

    def drop(self) -> None:
        """Remove the created schemas."""
        import psycopg

        with psycopg.connect(POSTGRES, autocommit=True) as db:
            for number in range(next(self._numbers)):
                db.execute(f"DROP SCHEMA IF EXISTS {SCHEMA}_{number} CASCADE".encode())


def has_server() -> bool:
    """Return True if the PostgreSQL server answers."""
    try:
        import psycopg

        psycopg.connect(POSTGRES, connect_timeout=3).close()
    except Exception:  # noqa: BLE001 - whatever is missing, it cannot be measured
        return False
    return True


async def run(folder: Path, *, progress: Progress, quick: bool) -> list[Table]:
    """Measure all and return the tables. With `quick`, use two conversations and skip the choice of weights."""
    talks = load(folder)[: 2 if quick else None]
    with tempfile.TemporaryDirectory() as place:
        stores = Stores(place, has_server())
        try:
            return await _tables(folder, talks, stores, progress, quick=quick)
        finally:
            if stores.has_postgres:
                stores.drop()


async def _tables(
    folder: Path, talks: Sequence[Conversation], stores: Stores, progress: Progress, *, quick: bool
) -> list[Table]:
    why_not = minilm.missing(folder / "minilm")
    texts = [each.text for talk in talks for each in (*talk.turns, *talk.questions)]
    embed = None if why_not else KnownVectors(folder / "minilm", list(dict.fromkeys(texts)), progress)
    found: dict[str, list[Answer]] = {}
    cpu: dict[str, float] = {}
    ways: list[tuple[str, Callable[[], str], Any]] = [("words, SQLite", stores.sqlite, None)]
    if stores.has_postgres:
        ways.append(("words, PostgreSQL", stores.postgres, None))
    if embed is not None:
        ways.append(("words and vectors, SQLite", stores.sqlite, embed))
    for name, make_url, embedding in ways:
        progress(name)
        async with remembered(make_url(), talks, embed=embedding) as memories:
            found[name] = await ask(memories, talks)
        cpu[name] = await cpu_of_a_recall(make_url(), talks, embedding)
    notes = [f"{sum(each.question.kind in ANSWERED for each in found['words, SQLite']):,} questions."]
    notes += [] if stores.has_postgres else ["PostgreSQL was not measured: no server answers."]
    notes += [f"Vectors were not measured: {why_not}."] if why_not else []
    tables = [
        _recall_table(found, cpu, " ".join(notes)),
        _kinds_table(found),
        await _ties_table(talks, progress),
    ]
    if not quick:
        tables.append(await _weights_table(talks, embed, progress))
    return tables


def _recall_table(found: Mapping[str, Sequence[Answer]], cpu: Mapping[str, float], note: str) -> Table:
    rows, failures = [], []
    for name, answers in found.items():
        turns = [recall(answers, k) for k in PLACES]
        talks = [sessions(answers, k) for k in (1, 5, 10)]
        rows.append((name, *map(three, turns), *map(three, talks), f"{cpu[name]:.2f}"))
        for k, bar in BARS["vectors" if "vectors" in name else "words"].items():
            if recall(answers, k) < bar:
                failures.append(f"{name}: recall@{k} is {recall(answers, k):.3f}, below {bar:.2f}")
        if cpu[name] > CPU_BAR:
            failures.append(f"{name}: a recall takes {cpu[name]:.2f} ms of CPU, above {CPU_BAR:g}")
    best = max(sessions(answers, 5) for answers in found.values())
    if best < SESSIONS_BAR:
        failures.append(f"sessions: any@5 is at most {best:.3f}, below {SESSIONS_BAR}")
    texts = [answers for name, answers in found.items() if name.startswith("words, ")]
    apart = max(abs(recall(texts[0], k) - recall(texts[-1], k)) for k in PLACES)
    if apart > AGREEMENT:
        failures.append(f"the stores are {apart:.3f} apart, above {AGREEMENT}")
    heads = ("recall of", *(f"@{k}" for k in PLACES), *(f"session any@{k}" for k in (1, 5, 10)), "CPU ms")
    note += (
        " CPU of this process for a recall of 10 among 1,000 memories of one owner, without the embedding."
    )
    return Table(
        title="LoCoMo, evidence turns found",
        heads=heads,
        rows=tuple(rows),
        note=note,
        failures=tuple(failures),
    )


def _kinds_table(found: Mapping[str, Sequence[Answer]]) -> Table:
    rows, failures = [], []
    for kind, title in KINDS.items():
        of_words = {k: recall(found["words, SQLite"], k, (kind,)) for k in (1, 10)}
        row = [title]
        for name, answers in found.items():
            for k in (1, 10):
                value = recall(answers, k, (kind,))
                row.append(three(value))
                if "vectors" in name and value < of_words[k]:
                    failures.append(
                        f"{title}: recall@{k} with vectors is {value:.3f}, by words {of_words[k]:.3f}"
                    )
        rows.append(tuple(row))
    heads = ("kind of question", *(f"{name} @{k}" for name in found for k in (1, 10)))
    return Table(title="LoCoMo, by kind", heads=heads, rows=tuple(rows), failures=tuple(failures))


async def _ties_table(talks: Sequence[Conversation], progress: Progress) -> Table:
    """Measure the effect of importance, age and repetitions."""
    rng = random.Random(34)
    ways: dict[str, dict[str, Any]] = {
        "importance 0.5, no half-life": {},
        "importance 0.4 or 0.6 by chance": {"importance": lambda: rng.choice((0.4, 0.6))},
        "importance 0.3, 0.5 or 0.9 by chance": {"importance": lambda: rng.choice((0.3, 0.5, 0.9))},
        "half_life=30, at the dates of the conversations": {"half_life": 30},
        "half_life=7, the same": {"half_life": 7},
        "each turn remembered twice": {"times": 2},
    }
    rows, failures, first = [], [], 0.0
    for name, options in ways.items():
        progress(name)
        async with remembered("memory:", talks, **options) as memories:
            answers = await ask(memories, talks)
        values = [recall(answers, k) for k in (1, 5, 10)]
        rows.append((name, *map(three, values)))
        first = first or values[0]
        if abs(values[0] - first) > TIE_BAR:
            failures.append(f"{name}: recall@1 moves by {abs(values[0] - first):.3f}, above {TIE_BAR}")
    return Table(
        title="LoCoMo, words in SQLite, with importance, age and repetitions",
        heads=("memories", "@1", "@5", "@10"),
        rows=tuple(rows),
        failures=tuple(failures),
    )


async def _weights_table(talks: Sequence[Conversation], embed: Any, progress: Progress) -> Table:
    """Measure each conversation with the best weights of the other nine."""
    rows = []
    for name, embedding, weights in (
        ("words", None, (recall_ranking.VECTOR_WEIGHT,)),
        *((("words and vectors", embed, WEIGHTS),) if embed is not None else ()),
    ):
        tried = {}
        async with remembered("memory:", talks, embed=embedding) as memories:
            for weight, shares in itertools.product(weights, SHARES):
                progress(f"{name}: weight {weight}, shares {shares}")
                with weighted(weight, shares):
                    tried[weight, shares] = await ask(memories, talks)
        chosen, best = [], []
        for talk in talks:
            others = {
                each: [answer for answer in answers if answer.conversation != talk.name]
                for each, answers in tried.items()
            }
            choice = max(others, key=lambda each: mean(recall(others[each], k) for k in PLACES))
            chosen.append(choice)
            best += [answer for answer in tried[choice] if answer.conversation == talk.name]
        text = ", ".join(
            f"{weight:g} {shares} ({chosen.count((weight, shares))})"
            for weight, shares in dict.fromkeys(chosen)
        )
        rows.append((name, *(three(recall(best, k)) for k in PLACES), text))
    return Table(
        title="LoCoMo, each conversation with the weights chosen on the nine others",
        heads=(
            "recall of",
            *(f"@{k}" for k in PLACES),
            "weight of a cosine, shares of neighbours, how often chosen",
        ),
        rows=tuple(rows),
        note=f"actgent has the weight {recall_ranking.VECTOR_WEIGHT:g} and the shares {recall_ranking.SHARES}.",
    )


@contextlib.contextmanager
def weighted(weight: float, shares: tuple[float, ...]) -> Iterator[None]:
    """Rank with other weights in this process."""
    before = recall_ranking.VECTOR_WEIGHT, recall_ranking.SHARES
    recall_ranking.VECTOR_WEIGHT, recall_ranking.SHARES = weight, shares
    try:
        yield
    finally:
        recall_ranking.VECTOR_WEIGHT, recall_ranking.SHARES = before
