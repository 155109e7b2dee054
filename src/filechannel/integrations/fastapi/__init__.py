"""Channels in a FastAPI app: opened while it runs, senders as dependencies, durable tasks, resumable event streams.

Needs the extra `fastapi`.
"""

from __future__ import annotations

try:
    from .bodies import ByMsgspec
    from .channels import AppChannel, Channels
    from .events import EventStream
    from .tasks import DurableTasks, Task, TaskError, TaskQueue
except ImportError as _missing:
    if (_missing.name or "").partition(".")[0] not in ("fastapi", "pydantic", "pydantic_core", "starlette"):
        raise
    raise ImportError(
        f"filechannel.integrations.fastapi needs the extra 'fastapi' ({_missing}): pip install 'filechannel[fastapi]'"
    ) from _missing

__all__ = [
    "AppChannel",
    "ByMsgspec",
    "Channels",
    "DurableTasks",
    "EventStream",
    "Task",
    "TaskError",
    "TaskQueue",
]
