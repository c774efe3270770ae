"""Operations for push notification configurations of A2A 1.0, the same for both bindings. Source: sections 3.1.7 to 3.1.10."""

from collections.abc import Mapping
from typing import Any

from actgent.web.routes.endpoints import HTTPCall

from .errors import A2AError
from .json_values import Wire, text_param
from .operations import find_task
from .push_notification_configs import PushConfig
from .push_notification_outbox import read_config, to_wire
from .settings import A2ASettings

Params = Mapping[str, Any]


async def create_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Store a configuration, and return it. A configuration with the same id is replaced."""
    outbox = await settings.push.needed(call.gateway)
    head, task = await find_task(call, agent, text_param(params, "taskId"))
    config = await read_config(outbox.webhook, params, head, task.message_id)
    await outbox.configs.add(config)
    return to_wire(config)


async def get_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return a configuration."""
    config_id = text_param(params, "id")
    for config in await _configs(settings, call, agent, params):
        if config.id == config_id:
            return to_wire(config)
    raise A2AError("TASK_NOT_FOUND", "the task has no push notification configuration with this id")


async def list_configs(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Return all configurations of a task, on one page."""
    configs = [to_wire(each) for each in await _configs(settings, call, agent, params)]
    return {"configs": configs, "nextPageToken": ""}


async def delete_config(settings: A2ASettings, call: HTTPCall, agent: str, params: Params) -> Wire:
    """Remove a configuration; an unknown one is ignored."""
    config_id = text_param(params, "id")
    outbox = await settings.push.needed(call.gateway)
    configs = await _configs(settings, call, agent, params)
    await outbox.configs.remove([each for each in configs if each.id == config_id])
    return {}


async def _configs(
    settings: A2ASettings, call: HTTPCall, agent: str, params: Params
) -> tuple[PushConfig, ...]:
    outbox = await settings.push.needed(call.gateway)
    head, task = await find_task(call, agent, text_param(params, "taskId"))
    return tuple(outbox.configs.of_task(head.key, task.message_id, head.created_at))
