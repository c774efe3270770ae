"""The built-in agent classes, each with its own conversational protocol."""

from collections.abc import Collection, Iterable, Mapping
from typing import Unpack, overload

import attrs
import trio

from actgent.journal.record_types import AgentMessageRecord
from actgent.messages import DataT_co, Message, Reply, Route, Sender, to_parts
from actgent.protocols.direct_or_react_choice import Strategy
from actgent.protocols.protocol_interface import Instruction
from actgent.protocols.react_protocol import ReAct
from actgent.protocols.router_protocol import Router
from actgent.protocols.simple_protocol import Simple
from actgent.sessions.session_context import Turn
from actgent.tools.tool_interface import DepsT

from .agent import Agent
from .agent_constructor_validation import check_routes, forms_of, types_of
from .keyword_argument_types import AgentOptions
from .session import session_of_context


class SimpleAgent(Agent[DataT_co, DepsT]):
    """An agent that answers with a type and content, or calls a tool."""

    default_protocol = Simple


class ReActAgent(Agent[DataT_co, DepsT]):
    """An agent that alternates thinking, tool calls and observations until it can answer.

    `strategy` chooses between the direct and the react mode for each turn.
    """

    @overload
    def __init__(
        self,
        name: str,
        *,
        output: type[DataT_co],
        strategy: Strategy | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        strategy: Strategy | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        strategy: Strategy | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None:
        options.setdefault("protocol", ReAct(strategy))
        super().__init__(name, output=output, **options)


class RouterAgent(Agent[DataT_co, DepsT]):
    """An agent that answers, or routes the message to another agent: `routes={action: agent}`.

    An action without a route only calls the `on_routing` handlers. A route without an instruction or type is described to the
    model by its agent's goal, capabilities or role.
    """

    default_protocol = Router

    @overload
    def __init__(
        self,
        name: str,
        *,
        output: type[DataT_co],
        routes: Mapping[str, Agent] | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        routes: Mapping[str, Agent] | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        output: object = None,
        routes: Mapping[str, Agent] | None = None,
        **options: Unpack[AgentOptions[DepsT]],
    ) -> None:
        check_routes(routes or {}, kind=Agent)
        self.routes = dict(routes or {})
        known, types = forms_of(options.get("instructions", ())), types_of(options.get("types", ()))
        described = {*(each.name for each in known), *(each.name for each in types)}
        options["instructions"] = [*known, *_actions(self.routes, described)]
        options["types"] = types
        super().__init__(name, output=output, **options)

    def _companions(self) -> Iterable[Agent]:
        return [*super()._companions(), *self.routes.values()]

    async def _route(self, turn: Turn, route: Route) -> Reply | None:
        """Let the agent of a route answer, and return the reply; None if the action has no route.

        The agent answers in a child session, which exists as long as this session.
        """
        context = turn.session
        target = self.routes.get(route.action)
        if target is None:
            await trio.lowlevel.checkpoint()
            return None
        opener = await target._await_opener()  # noqa: SLF001 - same class
        session = session_of_context(await opener.ensure_child(context, route.action))
        content = [part for message in (*turn.joined, turn.message) for part in message.parts]
        reply = await target.run(content, session=session)
        answer_message = Message(
            session_id=context.id,
            sender=Sender(target.name, "agent"),
            parts=to_parts(reply.text),
            correlation_id=turn.message.id,
            origin=reply.origin,
            via=reply.via,
        )
        context.conversation.append(answer_message)
        if context.log is not None:
            context.log.add(AgentMessageRecord(message=answer_message, calls=turn.progress.calls))
        return attrs.evolve(reply, id=f"{route.id}/reply")


def _actions(routes: Mapping[str, Agent], described: Collection[str]) -> list[Instruction]:
    """Return an instruction for each route without an instruction, so that the model knows the action of the route.

    `described` has the actions with an instruction or type. The description is the goal of the route's agent, else its
    capabilities or role.
    """
    return [
        Instruction(action, agent.profile.goal or agent.profile.capabilities or agent.profile.role)
        for action, agent in routes.items()
        if action not in described
    ]
