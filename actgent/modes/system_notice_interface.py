"""Notices: system messages that inform a conversation about changes outside of it.

A notice is added before the next model call, when no tool calls are pending. Pending notices are not stored. The source of a notice
compares the session's state with its last notice in the conversation, and so computes the pending notices. Therefore a crash
neither loses nor repeats a notice.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from actgent.support.attrs_class_repr import FieldRepr


@attrs.frozen(repr=False)
class Notice(FieldRepr):
    """A notice: a system message that informs the model about a change outside of the conversation."""

    mark: str
    """Text, not empty, that identifies the described change. It is stored with the notice and passed to `NoticeSource.due`."""
    text: str
    """Text of the notice for the model."""


class NoticeSource(abc.ABC):
    """Interface of a source of notices, which computes the notices that a conversation lacks. One object serves all sessions."""

    name: str
    """Name of the source, which is the sender of its notices."""

    @abc.abstractmethod
    def due(self, state: Mapping[str, Any], last_mark: str | None) -> Sequence[Notice]:
        """Return the pending notices in order; `last_mark` is the mark of the source's last notice, None without any."""
