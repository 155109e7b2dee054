"""`filechannel export`: write messages to a file or to stdout."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Final, TypeAlias, final

import anyio
import typer
from anyio import EndOfStream

from ..._channel.aio.channel import FileChannel
from ..._channel.aio.receiver import Receiver
from ..._channel.lifecycle.channel_description import Description
from ..._channel.lifecycle.store_handle import StoreHandle
from ..._errors import DecodeError
from ..._offset import LogPosition
from ..._options import ChannelOptions
from ..._storage.store import Store
from ..transfer.export_header import header_of
from ..transfer.formats import Format, FormatOption, format_of
from ..transfer.json_messages import Json
from ..transfer.output_file import replacing
from ..ui.channel_argument import ChannelArgument, find, opened_store, warn_if_incomplete
from ..ui.escaping import safe_json
from ..ui.failures import FINDINGS, Failure
from ..ui.humanize import counted, size
from ..ui.output import JsonOption, document, remark
from ..ui.position_argument import POSITIONS, bounds, complete_position
from ..ui.progress import ReportProgress, progress

Write: TypeAlias = Callable[[bytes], Awaitable[object]]

_AT_ONCE: Final = 1000
_CHUNK: Final = 1 << 20  # bytes of text; a message can be longer as JSON than it is in the channel


def export(
    channel: ChannelArgument,
    output: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="The file to write; stdout if omitted.", show_default=False, readable=False
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="POSITION", help=f"The first message: {POSITIONS}.", autocompletion=complete_position
        ),
    ] = "earliest",
    stop: Annotated[
        str,
        typer.Option("--to", metavar="POSITION", help="Stop before this position.", autocompletion=complete_position),
    ] = "latest",
    form: FormatOption = None,
    header: Annotated[
        bool,
        typer.Option("--header", help="Write the schema in the first line, so that 'import' can create a channel."),
    ] = False,
    skip: Annotated[
        bool,
        typer.Option("--skip-damage", help="Leave out damaged and undecodable records; exit code 1 if there were any."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    json: JsonOption = False,
) -> int:
    """Write messages to a file: JSON lines, or Parquet.

    The file gets its name when it is complete and on disk. After an error or Ctrl-C nothing is left. A name ending in
    '.parquet' selects Parquet, any other name JSON lines; --format overrides this. Parquet needs the extra 'spark', and
    the file always contains the schema. The command changes nothing and needs read permission only.

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
        raise typer.BadParameter("stdout is used for the messages: name a file", param_hint="--json")
    with opened_store(description, readonly=True) as store:
        if not store.is_current:
            warn_if_incomplete(channel, store.unreachable)
        begin, end = bounds(store, start, stop)
        is_in_the_way = target is None and sys.stdout.isatty()
        with progress("exporting", end.offset - begin.offset, is_wanted=not is_in_the_way) as report_progress:
            job = _Export(description, store, begin, end, report_progress, skip=skip)
            if target is None:
                anyio.run(job.write_lines, _to_stdout, header)
            else:
                with replacing(target, force=force) as draft:
                    job.write(draft, kind, header)
    if job.skipped:
        remark(f"{counted(job.skipped, 'record')} left out: damaged or undecodable")
    if json:
        document({"messages": job.messages, "skipped": job.skipped, "bytes": output and output.stat().st_size})
    elif target is not None:
        remark(f"exported {counted(job.messages, 'message')} to {target} ({size(target.stat().st_size)})")
    return FINDINGS if job.skipped else 0


async def _to_stdout(text: bytes) -> None:
    sys.stdout.buffer.write(safe_json(text))


@final
class _Export:
    """Writes the messages between two log positions of a channel."""

    def __init__(
        self,
        description: Description,
        store: Store,
        begin: LogPosition,
        end: LogPosition,
        report_progress: ReportProgress,
        *,
        skip: bool,
    ) -> None:
        self._description = description
        self._store = store
        self._begin = begin
        self._end = end
        self._report_progress = report_progress
        self._skip = skip
        self.messages: int = 0
        self.skipped: int = 0

    def write(self, draft: Path, kind: Format, header: bool) -> None:
        """Write a file."""
        if kind == "jsonl":
            anyio.run(self._write_file, draft, header)
            return
        from ..transfer.parquet import write_parquet

        if self._skip:
            raise typer.BadParameter(
                "works with JSON lines only: Parquet is written column by column", param_hint="--skip-damage"
            )
        for count, offset in write_parquet(draft, self._description, self._store, self._begin, self._end):
            self.messages += count
            self._report_progress(offset - self._begin.offset, messages=self.messages)

    async def _write_file(self, draft: Path, header: bool) -> None:
        import aiofiles

        async with aiofiles.open(draft, "wb") as file:
            await self.write_lines(file.write, header)

    async def write_lines(self, write: Write, header: bool) -> None:
        """Write JSON lines."""
        options = ChannelOptions(on_corruption="skip" if self._skip else "raise")
        open_spec = self._description.open_spec(readonly=True, options=options)
        if header:
            await write(header_of(self._description) + b"\n")
        handle = StoreHandle(open_spec.open_store)
        handle.open()
        with FileChannel(open_spec, handle) as channel:
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
            text = bytearray()
            for message in messages:
                try:
                    text += json.exact(message) + b"\n"
                except ValueError as error:
                    raise Failure(f"a message before offset {receiver.read_offset}: {error}") from error
                if len(text) >= _CHUNK:
                    await write(bytes(text))
                    text.clear()
            await write(bytes(text))
            self.messages += len(messages)
            self._report_progress(receiver.read_offset - self._begin.offset, messages=self.messages)
