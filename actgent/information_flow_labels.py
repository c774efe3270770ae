"""Labels of untrusted sources and permitted readers, and the policy that checks them before a tool call starts.

A label names the untrusted sources on which a message, a result or an argument depends, and the owners that may read it.
Labels only restrict: the label of a value made from several values is the join of their labels. The journal stores a
label as text, with commas between sources and an item for the readers, and omits the text of an unrestricted value.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self, get_args
from urllib.parse import quote, unquote

import attrs

from actgent.errors import ConfigurationError
from actgent.support.attrs_class_repr import FieldRepr
from actgent.support.common_mistake_hints import hints_for_policies
from actgent.support.untrusted_text_delimiters import (
    MAX_SOURCES,
    OTHERS,
    READERS,
    join_origins,
    replace_special_tokens,
    split_readers,
)

MAX_SOURCE_CHARS = 64
"""Maximum length of the name of one source in characters."""
ANY_SOURCE = "*"
"""Source of a label with more than `MAX_SOURCES` sources."""


def _to_sources(value: Iterable[str]) -> frozenset[str]:
    if isinstance(value, str) or not all(isinstance(name, str) for name in value):
        raise ConfigurationError(f"sources= must be a set of names, not {value!r:.200}")
    names = frozenset(value)
    for name in names:
        if (
            not name.strip()
            or "," in name
            or len(name) > MAX_SOURCE_CHARS
            or replace_special_tokens(name) != name
        ):
            raise ConfigurationError(
                f"the name of a source must have 1 to {MAX_SOURCE_CHARS} printable characters and no comma, not {name!r:.200}"
            )
        if name.startswith(READERS):
            raise ConfigurationError(
                f"a source cannot name readers: pass readers= to Label instead of the source {name!r:.200}"
            )
    return names if len(names) <= MAX_SOURCES else frozenset((ANY_SOURCE,))


def _to_readers(value: Iterable[str] | None) -> frozenset[str] | None:
    if value is None:
        return None
    names = () if isinstance(value, str) else frozenset(value)
    if isinstance(value, str) or not all(isinstance(name, str) for name in names) or "" in names:
        raise ConfigurationError(f"readers= must be a set of names of owners, or None, not {value!r:.200}")
    return frozenset(names)


@attrs.frozen(repr=False)
class Label(FieldRepr):
    """The untrusted sources and the permitted readers of a value. `a | b` is the label of a value that is made from both.

    Raises:
        ConfigurationError: The name of a source is empty, too long, or contains a comma. The name of a reader is empty.
    """

    sources: frozenset[str] = attrs.field(default=frozenset(), converter=_to_sources)
    """Names of tools, toolsets, users and memories, such as `web` or `user:mallory`; empty if the value is trusted.

    A label has at most 8 sources. A label with more sources has the one source `*`.
    """
    readers: frozenset[str] | None = attrs.field(default=None, converter=_to_readers)
    """Names of the owners that may read the value; None allows all owners.
    If two labels are combined, only owners that may read both values remain.
    """

    def __or__(self, other: Self) -> Self:
        if other.sources <= self.sources and (other.readers is None or other.readers == self.readers):
            return self
        own, more = self.readers, other.readers
        return type(self)(
            self.sources | other.sources, more if own is None else own if more is None else own & more
        )

    def __str__(self) -> str:
        sources = ", ".join(sorted(self.sources)) or "trusted"
        return sources if self.readers is None else f"{sources} (readers: {self.reader_names})"

    @property
    def is_trusted(self) -> bool:
        """True if the value depends on no untrusted source."""
        return not self.sources

    @property
    def reader_names(self) -> str:
        """The owners that may read the value, as text: `ada, bob`, `all owners` or `no owner`."""
        return "all owners" if self.readers is None else ", ".join(sorted(self.readers)) or "no owner"


TRUSTED = Label()
"""Label of a value that depends on no untrusted source, and that all owners may read."""


@attrs.frozen(repr=False, init=False)
class Labelled:
    """Value in the result of a tool, with a separate label: `Labelled(mail.text, Label({"mail:bob"}))`.

    A tool returns it as its result, or inside of lists and dicts at any depth. The rest of the result has the label of the
    tool. A label can only restrict: a value of an untrusted tool is always untrusted.

    Raises:
        ConfigurationError: `label` is not a `Label`.
    """

    value: Any
    """The value. `repr()` and `str()` hide it, so that a program cannot lose the label by converting the object to text."""
    label: Label
    """Untrusted sources and readers of the value."""

    was_made: ClassVar[bool] = False
    """False if this process has never created a `Labelled`. Then tool results are not searched for labelled values."""

    def __init__(self, value: object, label: Label) -> None:
        Labelled.was_made = True
        self.__attrs_init__(value, check_label(label))

    def __repr__(self) -> str:
        return f"<Labelled value of {self.label}>"


def contains_labelled(value: object) -> bool:
    """Return True if a value is or contains a `Labelled`, in lists and dicts at any depth. The value may contain itself."""
    left: list[Any] = [value]
    seen = set[int]()
    while left:
        each = left.pop()
        kind = type(each)  # `isinstance` also reads `__class__`, which may be a property that raises
        if issubclass(kind, Labelled):
            return True
        if issubclass(kind, dict | list | tuple) and id(each) not in seen:
            seen.add(id(each))
            base: Any = dict if issubclass(kind, dict) else list if issubclass(kind, list) else tuple
            left += base.values(each) if base is dict else base.__iter__(each)  # a subclass may raise
    return False


def replace_labelled(value: Any, replace: Callable[[Labelled], Any]) -> Any:
    """Return a value in which the result of `replace` takes the place of each `Labelled`, in lists and dicts at any depth."""
    if isinstance(value, Labelled):
        return replace(value)
    if isinstance(value, list | tuple):
        return [replace_labelled(each, replace) for each in value]
    if isinstance(value, dict):
        return {key: replace_labelled(each, replace) for key, each in value.items()}
    return value


def without_labels(value: Any) -> Any:
    """Return a value with the plain values in place of each `Labelled`."""
    if not (Labelled.was_made and contains_labelled(value)):
        return value
    return replace_labelled(value, lambda part: without_labels(part.value))


@functools.lru_cache(maxsize=1024)
def label_of(*texts: str) -> Label:
    """Return the label of a value that was made from several values.

    The arguments are the labels of these values in the text format of the journal. An empty text is the label of a trusted
    value.
    """
    text, restriction = split_readers(functools.reduce(join_origins, texts, ""))
    readers = None
    if restriction:
        readers = frozenset(map(unquote, filter(None, restriction.removeprefix(READERS).split("|"))))
    names = text.split(", ") if text else []
    found = frozenset(
        filter(
            None,
            (replace_special_tokens(name).replace(",", " ").strip()[:MAX_SOURCE_CHARS] for name in names),
        )
    )
    if OTHERS in found or len(found) < bool(names):  # a source without a usable name is still untrusted
        return Label(frozenset((ANY_SOURCE,)), readers)
    return Label(found, readers)


def check_label(value: object) -> Label:
    """Return the argument `label=` of a message after a check of its class.

    Raises:
        ConfigurationError: The argument is not a `Label`.
    """
    if isinstance(value, Label):
        return value
    raise ConfigurationError(f'label= must be a Label, e.g. Label({{"mail:bob"}}), not {value!r:.200}')


def text_of(label: Label) -> str:
    """Return a label in the format of the journal; empty if the label restricts nothing."""
    sources = [OTHERS if name == ANY_SOURCE else name for name in sorted(label.sources)]
    return ", ".join(sources if label.readers is None else [*sources, text_of_readers(label.readers)])


@functools.lru_cache(maxsize=1024)
def text_of_readers(names: frozenset[str]) -> str:
    """Return the part of a label's text that names its readers, in the format of the journal.

    `names` are the owners that may read the value.
    """
    return READERS + "|".join(sorted(quote(name, safe=" @:/+") for name in names))


def without_source(text: str, source: str) -> str:
    """Remove an untrusted source from a label. The label is a text in the journal's format; its readers do not change.

    A label with too many sources has the source `*` in place of their names. If `source` is `*`, remove all sources.
    """
    names, restriction = split_readers(text)
    kept = [name for name in names.split(", ") if name and source not in label_of(name).sources]
    return ", ".join([*(() if source == ANY_SOURCE else kept), *filter(None, (restriction,))])


def to_ifc(label: Label) -> dict[str, Any] | None:
    """Convert a label to the information-flow member `_meta.ifc` of MCP. Return None if the label restricts nothing.

    The member has the integrity, `trusted` or `untrusted`, and the confidentiality, `public` or a list of owner names.
    """
    if label.is_trusted and label.readers is None:
        return None
    integrity = "trusted" if label.is_trusted else "untrusted"
    confidentiality = "public" if label.readers is None else sorted(label.readers)
    return {"integrity": integrity, "confidentiality": confidentiality}


def from_ifc(ifc: object, *, source: str, owner: str) -> Label:
    """Convert the information-flow member `_meta.ifc` of MCP to a label.

    A value of another form than the specified one, also None, gives an untrusted label.

    Args:
        ifc: The member. Its confidentiality is `public`, `private`, or a list of owner names.
        source: Source of the label if the integrity is not `trusted`.
        owner: Only permitted reader if the confidentiality is `private`.
    """
    given = ifc if isinstance(ifc, Mapping) else {}
    sources = frozenset() if given.get("integrity") == "trusted" else frozenset({source})
    confidentiality = given.get("confidentiality", "public")
    names = confidentiality if isinstance(confidentiality, list) else [confidentiality]
    if "public" in names:
        return Label(sources)
    readers = (owner if each == "private" else each for each in names)
    return Label(sources, readers=frozenset(each for each in readers if isinstance(each, str) and each))


def source_name(kind: str, name: str) -> str:
    """Return the name of a sender as a source, such as `user:bob`."""
    return f"{kind}:{' '.join(replace_special_tokens(name).replace(',', ' ').split())}"[:MAX_SOURCE_CHARS]


Untrusted = Literal["show", "isolate"]
Check = Literal["context", "arguments"]
Violation = Literal["ask", "refuse"]


@hints_for_policies
@attrs.frozen(kw_only=True, repr=False)
class Policy(FieldRepr):
    """Checks of an agent's tool calls against the labels of the text that the model has read.

    Raises:
        ConfigurationError: An argument has an unknown value.
    """

    untrusted: Untrusted = "show"
    """`show`: the model reads tool results with untrusted text.
    `isolate`: the model gets references to such results instead, and the tool `extract` to ask questions about them.
    """
    check: Check = "context"
    """Condition under which a tool call violates the policy. `context`: the conversation contains untrusted text.
    `arguments`: in addition, an argument that needs a trusted value (`Tool.sinks`) does not occur in trusted text. A repeated
    call of a tool with `effect="once"` with equal arguments also violates the policy. `arguments` needs fewer approvals, but an attacker can
    combine the user's own values, such as a receiver, with another text.
    """
    violation: Violation = "ask"
    """`ask`: a call that violates the policy waits for an approval.
    `refuse`: such a call ends with an error that names the untrusted sources.
    """
    bits: int = 0
    """Information that the model may read from withheld results in each turn, in bits. Only used with `isolate`.

    The model reads an answer of `extract` if the answer is a boolean or an enumeration, and the budget covers the number of
    possible answers. A boolean needs 1 bit. With 0, the model reads no answer.
    """

    def __attrs_post_init__(self) -> None:
        for name, kind in (("untrusted", Untrusted), ("check", Check), ("violation", Violation)):
            if getattr(self, name) not in get_args(kind):
                known = " or ".join(map(repr, get_args(kind)))
                raise ConfigurationError(f"Policy({name}=) must be {known}, not {getattr(self, name)!r:.100}")
        if type(self.bits) is not int or self.bits < 0:
            raise ConfigurationError(
                f"Policy(bits=) must be a whole number of at least 0, not {self.bits!r:.100}"
            )
        if self.bits and self.untrusted != "isolate":
            raise ConfigurationError(
                "Policy(bits=) needs untrusted='isolate': with 'show', the model reads all untrusted text"
            )
