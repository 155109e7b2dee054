"""`filechannel import`: messages from a file into a channel, which may be made for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from .._channel.publication import publish
from .._channel.schema import find_difference, reads
from .._channel.untyped import Description
from .._errors import ChannelNotFoundError, FileChannelError
from .._options import ChannelOptions
from .._storage.files import Files, directory_mode
from .._storage.stores import STORES
from .failures import USAGE, Failure, explain
from .files import drafting, flush, sweep
from .formats import FormatOption, format_of
from .header import described_by, is_header
from .lines import Lines, opened_lines
from .output import JsonOption, document, remark
from .parsing import Parser, WrongLineError
from .progress import Tell, progress
from .target import ChannelArgument, find, opened_store
from .wording import counted


def import_(
    channel: ChannelArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where from; stdin if none is given.", show_default=False, readable=False),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="CHANNEL",
            help="Make the channel, for messages as this one has.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    form: FormatOption = None,
    json: JsonOption = False,
) -> None:
    """Read messages from a file: JSON lines, or Parquet.

    All or nothing: the messages become visible at once, as one batch, when the last one was read and all of them fit
    the channel's schema. On an error, or interrupted, nothing was imported. A channel that is not there is made with
    the schema of another (--like) or the one that the file has in it ('export --header', Parquet), and appears when it
    is complete. When it is done, everything is on disk. For what is sent as it comes there is 'filechannel send'.

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
        parser, encode = Parser(target), target.recipe().payloads().encode

        def payloads(tell: Tell) -> Iterator[list[bytes]]:
            for part in parser.parts(lines):
                tell(lines.position)
                yield [encode(message) for message in part.messages]

        with progress("reading", lines.size, is_wanted=not lines.is_typed) as tell:
            return _publish(target, payloads(tell))


def _import_parquet(channel: Path, file: Path, like: Path | None) -> int:
    from .parquet import described_by_parquet, read_parquet

    with _target(channel, like, lambda path: described_by_parquet(file, path)) as target:
        total = file.stat().st_size

        def payloads(tell: Tell) -> Iterator[list[bytes]]:
            for part, done in read_parquet(file, target):
                tell(int(total * done))
                yield part

        with progress("reading", total) as tell:
            return _publish(target, payloads(tell))


def _publish(target: Description, payloads: Iterator[list[bytes]]) -> int:
    with opened_store(target) as store:
        try:
            count = publish(store, payloads)
        except (WrongLineError, FileChannelError, Failure) as error:
            raise Failure(f"{explain(error)}; nothing was imported") from error
        store.flusher.flush()  # under any durability: a channel that is made gets its name with all that is in it
        return count


@contextmanager
def _target(
    channel: Path, like: Path | None, from_file: Callable[[Path], Description | None]
) -> Generator[Description]:
    """Return the channel to import into; one that is not there is made beside its place, and put there in the end."""
    try:
        found = find(channel)
    except ChannelNotFoundError:
        wanted = from_file(channel) if like is None else find(like)
        if wanted is None:
            raise Failure(
                f"there is no channel at {channel}, and the file does not say what its messages are: "
                "give --like CHANNEL, or export with --header",
                USAGE,
            ) from None
        with _made(channel.absolute(), wanted, copy_options=like is not None) as made:
            yield made
        return
    if like is not None:
        raise typer.BadParameter(f"there is a channel at {channel} already", param_hint="--like")
    given = from_file(channel)
    if given is not None:
        _check_schema(found, given)
    yield found


def _check_schema(found: Description, given: Description) -> None:
    """Refuse messages that the channel's own receivers may not be able to read, if a file says what they are."""
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
        STORES.close(wanted.recipe_for(draft, options).open_store())
        yield find(draft)
        _put(draft, path)


def _put(draft: Path, path: Path) -> None:
    """Give a channel its place, unless something else is there by now."""
    try:
        os.rename(draft, path)
        flush(path.parent)
    except OSError as error:
        raise Failure(f"{path} is there by now ({error.strerror}); nothing was imported") from error
