"""`filechannel import`: read messages from a file into a channel, which is created if necessary."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..._channel.base.publish_batch import publish
from ..._channel.lifecycle.channel_description import Description
from ..._channel.schema import find_difference, reads
from ..._errors import ChannelNotFoundError, FileChannelError
from ..._options import ChannelOptions
from ..._storage.open_stores import STORES
from ..._storage.system.os_calls import Files, directory_mode
from ..._storage.writable_store import writable
from ..transfer.export_header import described_by, is_header
from ..transfer.formats import FormatOption, format_of
from ..transfer.input_lines import Lines, opened_lines
from ..transfer.output_file import drafting, flush, sweep
from ..transfer.parse_messages import Parser, WrongLineError
from ..ui.channel_argument import ChannelArgument, find, opened_store
from ..ui.failures import USAGE, Failure, explain
from ..ui.humanize import counted
from ..ui.output import JsonOption, document, remark
from ..ui.progress import ReportProgress, progress


def import_(
    channel: ChannelArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The file to read; stdin if omitted.", show_default=False, readable=False),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="CHANNEL",
            help="Create the channel with the message type of this one.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Read messages from a file: JSON lines, or Parquet.

    All or nothing: the messages become visible as one batch, after the last one was read and all of them match the
    channel's schema. After an error or Ctrl-C nothing was imported. If there is no channel at the path, the command
    creates one with the schema of another channel (--like) or of the file ('export --header', Parquet); it appears when
    it is complete. When the command ends, everything is on disk. To send messages as they arrive, use 'filechannel
    send'.

    \b
    Examples:
      filechannel import data/orders orders.jsonl
      filechannel import data/copy orders.jsonl --like data/orders
      filechannel import data/restored orders.parquet
      filechannel export data/orders --header | filechannel import data/copy
    """
    kind = format_of(form, file)
    if kind == "parquet":
        if file is None or str(file) == "-":
            raise typer.BadParameter("Parquet cannot be read from stdin: name a file", param_hint="FILE")
        count = _import_parquet(channel, file, like)
    else:
        with opened_lines(file) as lines:
            count = _import_lines(channel, lines, like)
    if json:
        document({"imported": count})
    else:
        remark(f"imported {counted(count, 'message')}")


def _import_lines(channel: Path, lines: Lines, like: Path | None) -> int:
    header = lines.take_first(is_header)
    with _target(channel, like, lambda path: None if header is None else described_by(header, path)) as target:
        parser, encode = Parser(target), target.open_spec().payloads().encode

        def payloads(report_progress: ReportProgress) -> Iterator[list[bytes]]:
            for part in parser.parts(lines):
                report_progress(lines.position)
                yield [encode(message) for message in part.messages]

        with progress("reading", lines.size, is_wanted=not lines.is_typed) as report_progress:
            return _publish(target, payloads(report_progress))


def _import_parquet(channel: Path, file: Path, like: Path | None) -> int:
    from ..transfer.parquet import described_by_parquet, read_parquet

    with _target(channel, like, lambda path: described_by_parquet(file, path)) as target:
        total = file.stat().st_size

        def payloads(report_progress: ReportProgress) -> Iterator[list[bytes]]:
            for part, done in read_parquet(file, target):
                report_progress(int(total * done))
                yield part

        with progress("reading", total) as report_progress:
            return _publish(target, payloads(report_progress))


def _publish(target: Description, payloads: Iterator[list[bytes]]) -> int:
    with opened_store(target) as opened:
        store = writable(opened)
        try:
            count = publish(store, payloads)
        except (WrongLineError, FileChannelError, Failure) as error:
            raise Failure(f"{explain(error)}; nothing was imported") from error
        store.flusher.flush()  # under any durability: a new channel must be on disk before it gets its name
        return count


@contextmanager
def _target(
    channel: Path, like: Path | None, from_file: Callable[[Path], Description | None]
) -> Generator[Description]:
    """Yield the channel to import into. A new channel is created as a draft, and renamed at the end."""
    try:
        found = find(channel)
    except ChannelNotFoundError:
        wanted = from_file(channel) if like is None else find(like)
        if wanted is None:
            raise Failure(
                f"there is no channel at {channel}, and the file has no schema: "
                "add --like CHANNEL, or export with --header",
                USAGE,
            ) from None
        with _made(channel.absolute(), wanted, copy_options=like is not None) as made:
            yield made
        return
    if like is not None:
        raise typer.BadParameter(f"a channel exists at {channel}", param_hint="--like")
    given = from_file(channel)
    if given is not None:
        _check_schema(found, given)
    yield found


def _check_schema(found: Description, given: Description) -> None:
    """Raise `Failure` if the file has a schema whose messages receivers of the channel may not be able to read."""
    difference = find_difference(found.schema, given.schema)
    if difference is not None and not reads(found.schema, given.schema):
        there, here = difference.expected, difference.found
        raise Failure(f"{difference.field}: the channel has {there}, the file has {here}; nothing was imported")


@contextmanager
def _made(path: Path, wanted: Description, *, copy_options: bool) -> Generator[Description]:
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path)
    stored, options = wanted.manifest.options, ChannelOptions()
    if copy_options:
        options = ChannelOptions(**{each.name: getattr(stored, each.name) for each in fields(stored)})
    mode = directory_mode(options.resolve().mode)
    with drafting(path, partial(Files().make_directory, mode=mode)) as draft:
        STORES.close(wanted.open_spec_for(draft, options).open_store())
        yield find(draft)
        _put(draft, path)


def _put(draft: Path, path: Path) -> None:
    """Rename a new channel to its path. Raise `Failure` if something else is there by now."""
    try:
        os.rename(draft, path)
        flush(path.parent)
    except OSError as error:
        raise Failure(f"{path} was created by another process ({error.strerror}); nothing was imported") from error
