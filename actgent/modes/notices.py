"""Notices: what a conversation is told of things that happened beside it.

A notice is a message of the kind system. It enters the record at the first moment when no calls are open, before
the next model call. What is due is derived, never kept: its source compares the session's state with the last of
its notices that stands in the record. So a crash neither loses a notice nor tells it twice.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import attrs


@attrs.frozen
class Notice:
    """Something that the conversation is to be told."""

    mark: str
    """By which its source sees in the record how far it has told; not empty."""
    text: str
    """What it is told."""


class NoticeSource(abc.ABC):
    """Something that has notices for conversations. Pure and sync; one object serves all sessions."""

    name: str
    """What its notices are signed with."""

    @abc.abstractmethod
    def due(self, state: Mapping[str, Any], told: str | None) -> Sequence[Notice]:
        """Return what is to be told now, in order; `told` is the mark of its last notice, None if there is none."""
