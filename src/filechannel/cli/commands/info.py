"""`filechannel info`: what a channel is, and how it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from .._channel.consumers import Consumer
from .._channel.statistics import ChannelStatistics, RoomStatistics
from .._channel.untyped import Description
from .._options import Compression, Retention, StoredOptions
from .._storage.unreachable import Unreachable
from .consumers import consumer_table, tell_damaged
from .output import JsonOption, document, facts, show
from .target import ChannelArgument, reading, tell_incomplete
from .wording import counted, moment, number, process, size, span


def info(channel: ChannelArgument, json: JsonOption = False) -> None:
    """Show what a channel is, how full it is, and who uses it.

    Everything that the channel knows of itself: its messages and their schema, disk space, options, the processes that
    have it open, the consumers, and what holds back the oldest segment. Nothing is changed, and the right to read is
    enough.

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
    tell_damaged(channel, consumers)
    if not is_current:
        tell_incomplete(channel, unreachable)


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
    yield from _people(statistics)


def _fields(description: Description) -> Iterator[str]:
    """Return the fields of every record, as a programmer writes them."""
    schema = description.schema
    for record in schema.records.values():
        fields = ", ".join(f"{field.name}: {schema.text(field.type)}" for field in record.fields)
        yield f"{record.name}({fields})"


def _amounts(statistics: ChannelStatistics) -> Iterator[tuple[str, str]]:
    stored, sent = statistics.messages, statistics.next_sequence
    ending = ", sealed: no more will come" if statistics.sealed else ""
    yield "stored", f"{counted(stored, 'message')}, of {number(sent)} ever sent{ending}"
    oldest, end = statistics.oldest_offset, statistics.write_offset
    durable = "all on disk" if max(oldest, statistics.durable_offset) >= end else "not all of it on disk yet"
    yield "offsets", f"{oldest} to {end}, {durable}"
    parts = [counted(statistics.segments, "segment")]
    if statistics.compressed_segments:
        parts.append(f"{statistics.compressed_segments} of them compressed ({size(statistics.compressed_bytes)})")
    if statistics.spare_segments:
        parts.append(counted(statistics.spare_segments, "spare file"))
    yield "on disk", f"{size(statistics.bytes_on_disk)} in {', '.join(parts)}"
    if statistics.oldest_age is not None:
        yield "oldest segment", f"begun {span(statistics.oldest_age.total_seconds())} ago"
    if statistics.pinned_by is not None:
        yield "  stays because", str(statistics.pinned_by)
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
    parts = ["what is consumed is deleted" if retention.after_consumed == "delete" else "what is consumed is kept"]
    if retention.max_age is not None:
        parts.append(f"what is older than {span(retention.max_age)} goes")
    if retention.max_bytes is not None:
        parts.append(f"what is more than {size(retention.max_bytes)} goes")
    return ", ".join(parts)


def _compression(compression: Compression) -> str:
    if compression.method == "none":
        return "none"
    level = "" if compression.level is None else f", level {compression.level}"
    return f"{compression.method}{level}, {span(compression.after)} after a segment is finished"


def _people(statistics: ChannelStatistics) -> Iterator[tuple[str, str]]:
    known = "" if statistics.writers_known else " (as far as a user who may only read can see)"
    yield "open for writing in", (", ".join(map(process, statistics.writers)) or "no process") + known
    if statistics.busy_writer is not None:
        yield "sending now", process(statistics.busy_writer)
    upkeep = statistics.maintenance
    if upkeep.last_run is not None:
        removed = f"{counted(upkeep.reclaimed_segments, 'segment')} removed ({size(upkeep.reclaimed_bytes)})"
        errors = f", {counted(upkeep.errors, 'error')}" if upkeep.errors else ""
        yield "maintenance", f"{moment(upkeep.last_run)}, {removed} so far{errors}"
