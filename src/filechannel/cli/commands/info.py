"""`filechannel info`: the type, state and use of a channel."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from ..._channel.lifecycle.channel_description import Description
from ..._channel.status.consumer_status import Consumer
from ..._channel.status.statistics import ChannelStatistics, RoomStatistics
from ..._options import Compression, Retention, StoredOptions
from ..._storage.recovery.unreachable_records import Unreachable
from ..ui.channel_argument import ChannelArgument, reading, warn_if_incomplete
from ..ui.humanize import counted, moment, number, process, size, span
from ..ui.output import JsonOption, document, facts, show
from .consumers import consumer_table, warn_of_damaged


def info(channel: ChannelArgument, json: JsonOption = False) -> None:
    """Show the type, size, options and users of a channel.

    That is: the messages and their schema, disk space, options, the processes that have it open, the consumers, and why
    the oldest segment is kept. The command changes nothing and needs read permission only.

    \b
    Examples:
      filechannel info data/orders
      filechannel info data/orders --json | jq .statistics.messages
    """
    with reading(channel) as target:
        statistics, consumers = target.channel.statistics(), target.channel.consumers()
        description, is_current, unreachable = target.description, target.is_current, target.unreachable
    if json:
        state = {"is_current": is_current, "unreachable": _counts(unreachable)}
        document(state | _report(description, statistics, consumers))
        return
    show(facts(_facts(description, statistics, unreachable)))
    if consumers:
        show("", consumer_table(consumers))
    warn_of_damaged(channel, consumers)
    if not is_current:
        warn_if_incomplete(channel, unreachable)


def _report(
    description: Description, statistics: ChannelStatistics, consumers: tuple[Consumer, ...]
) -> dict[str, object]:
    manifest, schema = description.manifest, description.schema
    return {
        "path": description.path,
        "id": manifest.id,
        "format": manifest.format,
        "created": manifest.created,
        "codec": manifest.codec,
        "type": schema.text(schema.root),
        "schema": manifest.schema,
        "options": manifest.options.to_json(),
        "statistics": statistics,
        "held_back_by": None if statistics.pinned_by is None else str(statistics.pinned_by),
        "consumers": consumers,
    }


def _counts(unreachable: Unreachable | None) -> dict[str, int] | None:
    if unreachable is None:
        return None
    return {"offset": unreachable.offset, "messages": unreachable.messages, "segments": unreachable.segments}


def _facts(
    description: Description, statistics: ChannelStatistics, unreachable: Unreachable | None
) -> Iterator[tuple[str, str]]:
    manifest, schema = description.manifest, description.schema
    yield "channel", str(description.path)
    yield "id", f"{manifest.id}, format {manifest.format}"
    yield "created", moment(datetime.fromisoformat(manifest.created))
    yield "messages", f"{schema.text(schema.root)} as {manifest.codec}"
    for line in _fields(description):
        yield "", line
    yield from _amounts(statistics)
    if unreachable is not None:
        yield "damaged", str(unreachable)
    yield from _options(manifest.options)
    yield from _users(statistics)


def _fields(description: Description) -> Iterator[str]:
    """Yield each record type with its fields, in Python notation."""
    schema = description.schema
    for record in schema.records.values():
        fields = ", ".join(f"{field.name}: {schema.text(field.type)}" for field in record.fields)
        yield f"{record.name}({fields})"


def _amounts(statistics: ChannelStatistics) -> Iterator[tuple[str, str]]:
    stored, sent = statistics.messages, statistics.next_sequence
    ending = ", sealed: no message can be added" if statistics.sealed else ""
    yield "stored", f"{counted(stored, 'message')} of {number(sent)} ever sent{ending}"
    oldest, end = statistics.oldest_offset, statistics.write_offset
    durable = "all on disk" if max(oldest, statistics.durable_offset) >= end else "not all of it on disk yet"
    yield "offsets", f"{oldest} to {end}, {durable}"
    parts = [counted(statistics.segments, "segment")]
    if statistics.compressed_segments:
        parts.append(f"{statistics.compressed_segments} of them compressed ({size(statistics.compressed_bytes)})")
    if statistics.spare_segments:
        parts.append(counted(statistics.spare_segments, "free file"))
    yield "on disk", f"{size(statistics.bytes_on_disk)} in {', '.join(parts)}"
    if statistics.oldest_age is not None:
        yield "oldest segment", f"created {span(statistics.oldest_age.total_seconds())} ago"
    if statistics.pinned_by is not None:
        yield "  is kept because", str(statistics.pinned_by)
    if statistics.room is not None:
        yield "capacity", _room(statistics.room)


def _room(room: RoomStatistics) -> str:
    parts: list[str] = []
    if room.max_bytes is not None:
        parts.append(f"{size(room.bytes)} of {size(room.max_bytes)} used")
    if room.max_messages is not None:
        parts.append(f"{number(room.messages)} of {counted(room.max_messages, 'message')} used")
    return ", ".join(parts)


def _options(options: StoredOptions) -> Iterator[tuple[str, str]]:
    durability = options.durability
    flushed = {"os": "when the system does", "fsync": "before send returns"}
    seconds = f"every {span(durability.seconds or 0)}"
    yield "to disk", f"{flushed.get(durability.kind, seconds)} ({durability!r})"
    yield "retention", _retention(options.retention)
    yield "compression", _compression(options.compression)
    if options.capacity is not None:
        yield "when full", options.capacity.on_full.replace("_", " ")
    yield "segments of", f"{size(options.segment_size)}, mode {options.mode:04o}"


def _retention(retention: Retention) -> str:
    parts = ["consumed messages are deleted" if retention.after_consumed == "delete" else "consumed messages are kept"]
    if retention.max_age is not None:
        parts.append(f"what is older than {span(retention.max_age)} is deleted")
    if retention.max_bytes is not None:
        parts.append(f"the oldest above {size(retention.max_bytes)} are deleted")
    return ", ".join(parts)


def _compression(compression: Compression) -> str:
    if compression.method == "none":
        return "none"
    level = "" if compression.level is None else f", level {compression.level}"
    return f"{compression.method}{level}, {span(compression.after)} after a segment is finished"


def _users(statistics: ChannelStatistics) -> Iterator[tuple[str, str]]:
    known = "" if statistics.writers_known else " (this user has read permission only, and may not see all)"
    yield "open for writing in", (", ".join(map(process, statistics.writers)) or "no process") + known
    if statistics.busy_writer is not None:
        yield "sending now", process(statistics.busy_writer)
    maintenance = statistics.maintenance
    if maintenance.last_run is not None:
        removed = f"{counted(maintenance.reclaimed_segments, 'segment')} removed ({size(maintenance.reclaimed_bytes)})"
        errors = f", {counted(maintenance.errors, 'error')}" if maintenance.errors else ""
        yield "maintenance", f"{moment(maintenance.last_run)}, {removed} so far{errors}"
