"""`filechannel export`: messages into a file, or to whoever reads stdout."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeAlias, final

import anyio
import typer
from anyio import EndOfStream

from .._channel.channel import FileChannel
from .._channel.receiver import Receiver
from .._channel.store_handle import StoreHandle
from .._channel.untyped import Description
from .._errors import DecodeError
from .._options import ChannelOptions
from .._storage.index import Mark
from .._storage.store import Store
from .escaping import safe_json
from .failures import FINDINGS, Failure
from .files import replacing
from .formats import Format, FormatOption, format_of
from .header import header_of
from .output import JsonOption, document, remark
from .position import PLACES, bounds, complete_position
from .progress import Tell, progress
from .target import ChannelArgument, find, opened_store, tell_incomplete
from .untyped import Json
from .wording import counted, size

Write: TypeAlias = Callable[[bytes], Awaitable[object]]

_AT_ONCE: Final = 1000


def export(
    channel: ChannelArgument,
    output: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to; stdout if none is given.", show_default=False, readable=False),
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="POSITION", help=f"Where to begin: {PLACES}.", autocompletion=complete_position),
    ] = "earliest",
    stop: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="Before what to end.", autocompletion=complete_position)
    ] = "latest",
    form: FormatOption = None,
    header: Annotated[
        bool, typer.Option("--header", help="Begin with a line that has the schema, for 'import' to make a channel.")
    ] = False,
    skip: Annotated[
        bool, typer.Option("--skip-damage", help="Leave out what is damaged or no message; exit code 1 if there was.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    json: JsonOption = False,
) -> int:
    """Write messages to a file: JSON lines, or Parquet.

    The file gets its name when it is complete and on disk; interrupted, or on an error, nothing is left. The format is
    told by the name, '.parquet' or anything else, or by --format. Parquet needs the extra 'spark', and always has the
    schema in it. The channel is not changed, nothing is held back, and the right to read is enough.

    \b
    Examples:
      filechannel export data/orders orders.jsonl
      filechannel export data/orders --from 24h | jq -c 'select(.qty > 100)'
      filechannel export data/orders orders.parquet
      filechannel export data/orders --header | ssh backup 'filechannel import data/orders'
    """
    description, kind = find(channel), format_of(form, output)
    target = None if output is None or str(output) == "-" else output
    if kind == "parquet" and target is None:
        raise typer.BadParameter("Parquet cannot be written to stdout: name a file", param_hint="FILE")
    if json and target is None:
        raise typer.BadParameter("stdout has the messages: name a file", param_hint="--json")
    with opened_store(description, readonly=True) as store:
        if not store.is_current:
            tell_incomplete(channel, store.unreachable)
        begin, end = bounds(store, start, stop)
        is_in_the_way = target is None and sys.stdout.isatty()
        with progress("exporting", end.offset - begin.offset, is_wanted=not is_in_the_way) as tell:
            job = _Export(description, store, begin, end, tell, skip=skip)
            if target is None:
                anyio.run(job.write_lines, _to_stdout, header)
            else:
                with replacing(target, force=force) as draft:
                    job.write(draft, kind, header)
    if job.skipped:
        remark(f"{counted(job.skipped, 'record')} left out: damaged, or no message")
    if json:
        document({"messages": job.messages, "skipped": job.skipped, "bytes": output and output.stat().st_size})
    elif target is not None:
        remark(f"exported {counted(job.messages, 'message')} to {target} ({size(target.stat().st_size)})")
    return FINDINGS if job.skipped else 0


async def _to_stdout(text: bytes) -> None:
    sys.stdout.buffer.write(safe_json(text))


@final
class _Export:
    """Writes what lies between two places of a channel."""

    def __init__(
        self, description: Description, store: Store, begin: Mark, end: Mark, tell: Tell, *, skip: bool
    ) -> None:
        self._description = description
        self._store = store
        self._begin = begin
        self._end = end
        self._tell = tell
        self._skip = skip
        self.messages: int = 0
        self.skipped: int = 0

    def write(self, draft: Path, kind: Format, header: bool) -> None:
        """Write a file."""
        if kind == "jsonl":
            anyio.run(self._write_file, draft, header)
            return
        from .parquet import write_parquet

        if self._skip:
            raise typer.BadParameter("is for JSON lines: Parquet is read in columns", param_hint="--skip-damage")
        for count, offset in write_parquet(draft, self._description, self._store, self._begin, self._end):
            self.messages += count
            self._tell(offset - self._begin.offset, messages=self.messages)

    async def _write_file(self, draft: Path, header: bool) -> None:
        import aiofiles

        async with aiofiles.open(draft, "wb") as file:
            await self.write_lines(file.write, header)

    async def write_lines(self, write: Write, header: bool) -> None:
        """Write JSON lines."""
        options = ChannelOptions(on_corruption="skip" if self._skip else "raise")
        recipe = self._description.recipe(readonly=True, options=options)
        if header:
            await write(header_of(self._description) + b"\n")
        handle = StoreHandle(recipe.open_store)
        handle.open()
        with FileChannel(recipe, handle) as channel:
            async with channel.replay(self._begin.offset, self._end.offset) as receiver:
                await self._write_messages(receiver, write)
        if self._skip:
            self.skipped += self._end.sequence - self._begin.sequence - self.messages - self.skipped

    async def _write_messages(self, receiver: Receiver[object], write: Write) -> None:
        json = Json(self._description)
        while True:
            try:
                messages = await receiver.receive_many(_AT_ONCE)
            except EndOfStream:
                return
            except DecodeError as error:
                if not self._skip:
                    raise Failure(f"the record at offset {error.offset} is not a message: {error.reason}") from error
                await receiver.seek(error.next_offset)
                self.skipped += 1
                continue
            try:
                text = b"".join([json.exact(message) + b"\n" for message in messages])
            except ValueError as error:
                raise Failure(f"a message before offset {receiver.read_offset}: {error}") from error
            await write(text)
            self.messages += len(messages)
            self._tell(receiver.read_offset - self._begin.offset, messages=self.messages)
