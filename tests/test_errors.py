import ast
import copy
import pickle
import re
from pathlib import Path

import pytest

from actgent import errors
from actgent.errors.restored_errors import _FORMER_NAMES, restored_failure
from actgent.errors.text_escaping import counted


def some(cls):
    """Create an object of an error class with suitable constructor arguments."""
    told = {
        "MissingKey": ("openai", ["OPENAI_API_KEY"]),
        "DuplicateTool": ("add",),
        "InvalidFile": ("brain.md", 3, "wrong", "name"),
        "InvalidFolder": ([errors.InvalidFile("brain.md", 3, "wrong")],),
        "NotRunning": ("tutor",),
        "OutsideTrio": ("agent.run()", "asyncio runs this code"),
        "SessionClosed": ("s",),
        "SessionNotFound": ("tutor", "s"),
        "SessionExists": ("tutor", "s"),
        "WrongOwner": ("tutor", "s", "mallory"),
        "WouldDeadlock": ("wait_idle()", "s"),
        "DeadLetterGone": ("tutor", "it was sent already"),
        "DeadlockDetected": (["a/s", "b/t", "a/s"],),
        "SessionBusy": ("s",),
        "DuplicateMessage": ("m", "s"),
        "JournalSlow": (3.0,),
        "ApprovalNotFound": ("a.s", "s"),
        "ApprovalAlreadyDecided": ("a.s", "approve", "approved"),
        "NotSerializable": ("key", "it is a function"),
        "InboxFull": ("tutor", 3),
        "DeadlineExceeded": ("tutor", 3.0),
        "MessageTooLarge": ("agent tutor", 9, 8),
        "ActorFailed": ("tutor", "it raised"),
        "Suspended": (["approval"],),
        "JournalVersion": (2, 1),
        "ThreadsStillRunning": (["add"], 5.0),
        "HandlerFailed": ("print", "it raised"),
        "Interrupted": ("enough",),
        "Stopped": ("tutor",),
        "TooManySchedules": ("s", 100),
        "LimitReached": ("calls", 3),
        "ModeChangeRejected": ("plan", "act", "not yet"),
        "ToolNotFound": ("add", ["sub"]),
        "ToolTimeout": ("add", 3.0),
        "ToolsetUnavailable": ("github", "its connection failed"),
        "GuardrailTripped": ("polite", "be polite"),
        "DepsMissing": ("tutor", "s", "no deps were given"),
        "AddressBlocked": ("localhost", "loopback"),
        "FeedLagged": (3,),
        "InvalidCursor": ("s", 7, 1),
        "SessionMoved": ("tutor", "s"),
        "MemoryReplaced": ("old", "new"),
        "MemoriesFull": ("ada", 100),
    }
    return cls(*told.get(cls.__name__, ("what happened",)))


ERRORS = [value for value in vars(errors).values() if isinstance(value, type)]


@pytest.mark.parametrize("cls", [cls for cls in ERRORS if issubclass(cls, errors.ActgentError)])
def test_errors_can_be_copied_and_pickled(cls):
    """The copy has the text and the attributes, so errors can be sent to other processes and logged."""
    error = some(cls)
    error.add_note("seen twice")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is cls
        assert (str(twin), repr(vars(twin))) == (str(error), repr(vars(error)))


@pytest.mark.parametrize(
    ("number", "expected", "answer"),
    [
        (1, ("message",), "1 message"),
        (0, ("message",), "0 messages"),
        (1000, ("message",), "1,000 messages"),
        (1, ("memory", "memories"), "1 memory"),
        (2, ("request waits", "requests wait"), "2 requests wait"),
    ],
)
def test_counted_selects_singular_or_plural(number, expected, answer):
    """The number 1 has the singular form, and every other number the plural."""
    assert counted(number, *expected) == answer


def test_source_has_no_optional_plural():
    """The source has no "1 message(s)": `counted` selects singular or plural."""
    texts = [
        (path.name, node.value)
        for path in Path(errors.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [each for each in texts if re.search(r"(?<!http)\(s\)", each[1])] == []


@pytest.mark.parametrize(("former", "name"), sorted(_FORMER_NAMES.items()))
def test_error_of_an_earlier_version_gets_its_class_of_today(former, name):
    """A record has the class name of its version. The error is restored as the renamed class, with its text and attributes."""
    assert not hasattr(errors, former)
    error = restored_failure(former, "the text", "model", {"detail": 3})
    assert type(error) is getattr(errors, name)
    assert str(error) == "the text"
    assert error.detail == 3


def test_errors_name_the_type_string():
    """Errors say "a string", the Python term, and not "a text"."""
    found = [
        (path.name, node.value)
        for path in Path(errors.__file__).parents[1].rglob("*.py")
        for raised in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(raised, ast.Raise)
        for node in ast.walk(raised)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [each for each in found if re.search(r"\b(a text|list of texts)\b", each[1])] == []
