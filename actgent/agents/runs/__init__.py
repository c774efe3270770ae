"""Runs of an agent: send a message, wait for the answer, stream the deliveries, forward to other processes."""

from .await_reply import resume, send_and_wait
from .first_message_rewriting import RewrittenMessage, rewrite_message
from .run_options import RunDefaults
from .run_request import RunRequest
from .runs_on_other_cluster_nodes import (
    SessionView,
    convert_reply,
    moved_error,
    remote_agent,
    remote_outcome,
    run_remotely,
    stream_remotely,
    view_session,
)
from .streamed_runs import STREAM_CAPACITY, open_resumed_stream, open_stream

__all__ = [
    "STREAM_CAPACITY",
    "RewrittenMessage",
    "RunDefaults",
    "RunRequest",
    "SessionView",
    "convert_reply",
    "moved_error",
    "open_resumed_stream",
    "open_stream",
    "remote_agent",
    "remote_outcome",
    "resume",
    "rewrite_message",
    "run_remotely",
    "send_and_wait",
    "stream_remotely",
    "view_session",
]
