"""The methods of a channel, and its errors."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, assert_type

import anyio

from filechannel import (
    Capacity,
    ChannelFullError,
    ChannelLockedError,
    ChannelOptions,
    ChannelStatistics,
    Consumer,
    ConsumerBusyError,
    DecodeError,
    Durability,
    FileChannel,
    FileChannelError,
    MaintenanceStatistics,
    Offset,
    Pin,
    Process,
    RoomStatistics,
    SchemaMismatchError,
    Sender,
)
from tests.typing.messages import Cancel, Order


async def methods(orders: FileChannel[Order]) -> None:
    """What each one returns."""
    assert_type(orders.path, Path)
    assert_type(await orders.offset_of(3), Offset)
    assert_type(await orders.remove_consumer("audit"), None)
    assert_type(await orders.join("audit"), None)
    assert_type(await orders.flush(), None)
    assert_type(await orders.seal(), None)
    assert_type(await orders.purge(), None)
    assert_type(await orders.configure(), None)
    assert_type(await orders.configure(schema=Order | Cancel, durability=Durability.FSYNC), None)
    assert_type(await orders.aclose(), None)
    assert_type(orders.close(), None)
    await orders.configure(segment_size=4096)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.configure(durability="fsync")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def statistics(orders: FileChannel[Order]) -> None:
    """A snapshot has typed fields that cannot be set."""
    found = orders.statistics()
    assert_type(found, ChannelStatistics)
    assert_type(found.write_offset, Offset)
    assert_type(found.messages, int)
    assert_type(found.oldest_age, timedelta | None)
    assert_type(found.pinned_by, Pin | None)
    assert_type(found.maintenance, MaintenanceStatistics)
    assert_type(found.maintenance.runner, Process | None)
    assert_type(found.maintenance.last_run, datetime | None)
    assert_type(found.maintenance.running, bool)
    if found.pinned_by is not None:
        assert_type(found.pinned_by.reason, Literal["consumer", "nobody", "keep", "active"])
        assert_type(found.pinned_by.consumer, str | None)
    assert_type(found.room, RoomStatistics | None)
    if found.room is not None:
        assert_type(found.room.messages, int)
        assert_type(found.room.max_bytes, int | None)
        found.room.bytes = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    found.messages = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def capacity(orders: FileChannel[Order], tx: Sender[Order]) -> None:
    """Limits, what happens at them, and the error."""
    ChannelOptions(capacity=Capacity(max_bytes=1 << 20, max_messages=100, fraction=0.5, on_full="drop_oldest"))
    ChannelOptions(capacity=None)
    Capacity(max_messages=3, on_full="drop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await orders.configure(capacity=Capacity(max_messages=100))
    await orders.configure(capacity=None)
    try:
        tx.send_nowait(Order(1))
    except ChannelFullError as error:
        assert_type(error.path, Path)
        assert_type(error.size, int)
    except anyio.WouldBlock:  # what it also is
        pass


def consumers(orders: FileChannel[Order]) -> None:
    """So has a consumer."""
    found = orders.consumers()
    assert_type(found, tuple[Consumer, ...])
    assert_type(found[0].kind, Literal["single", "group"])
    assert_type(found[0].lag_seconds, float)
    assert_type(found[0].owner, Process | None)
    assert_type(found[0].members, tuple[Process, ...])
    assert_type(found[0].expires, float | None)
    found[0].offset = Offset(3)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    orders.receiver("audit", expires=60.0)
    orders.receiver("audit", expires="1 h")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ChannelOptions(cursor_flush=100)
    ChannelOptions(cursor_flush=0.5)
    ChannelOptions(cursor_flush="fsync")
    ChannelOptions(cursor_flush="often")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def errors(error: FileChannelError) -> None:
    """Errors have typed attributes."""
    if isinstance(error, DecodeError):
        assert_type(error.offset, Offset)
        assert_type(error.payload, bytes)
    elif isinstance(error, SchemaMismatchError):
        assert_type(error.field, str)
    elif isinstance(error, ChannelLockedError):
        assert_type(error.since, datetime | None)
    elif isinstance(error, ConsumerBusyError):
        busy: anyio.BusyResourceError = error
        del busy


def offsets(offset: Offset, number: int) -> None:
    """An offset is a number, but not every number is one."""
    number = offset
    del number


def numbers(number: int) -> None:
    """The other way round it has to be said."""
    offset: Offset = number  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    offset = Offset(number)
    del offset
