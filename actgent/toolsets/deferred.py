"""Many tools in a small prompt: a model looks for them, and calls what it found by name."""

from collections.abc import Iterable, Sequence

from actgent.tools.base import Tool, WrappedTool

from .toolset import DerivedToolset, Toolset


class Deferred(DerivedToolset):
    """A toolset whose tools are not offered: the model finds them by `find_tools` and runs them by `call_tool`.

    So five hundred tools take the room of two. `keep` are the names of those that are offered all the same. A call by
    `call_tool` is judged, approved, counted and written as one of the tool itself.
    """

    may_change = True

    def __init__(self, inner: Toolset, *, keep: Iterable[str] = ()) -> None:
        kept = frozenset([keep] if isinstance(keep, str) else keep)

        def derive(tools: Sequence[Tool]) -> list[Tool]:
            return [tool if tool.name in kept else WrappedTool(tool, deferred=True) for tool in tools]

        super().__init__(inner, derive)
        self.may_change = True
