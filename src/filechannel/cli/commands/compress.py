"""`filechannel compress`: compress finished segments now."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..._maintenance.background import compress_segment
from ..._options import Compression
from ..._storage.segments.compression_codecs import require
from ..ui.channel_argument import ChannelArgument, explaining_errors
from ..ui.failures import USAGE, Failure
from ..ui.humanize import counted, size
from ..ui.output import JsonOption, document, show
from ..ui.progress import progress


def compress(
    channel: ChannelArgument,
    method: Annotated[
        Literal["zstd", "lz4", "gzip"] | None,
        typer.Option(help="The method; by default that of the channel's options, or zstd.", show_default=False),
    ] = None,
    level: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="The level of the method.", show_default=False)
    ] = None,
    json: JsonOption = False,
) -> None:
    """Compress every finished segment now, however old it is.

    Other processes may send and receive at the same time. If you interrupt the command, segments that are already
    compressed stay compressed, and the others are not changed.

    \b
    Examples:
      filechannel compress data/orders
      filechannel compress data/orders --method zstd --level 19
    """
    if level is not None and method is None:
        raise Failure("--level needs --method", USAGE)
    try:
        policy = None if method is None else Compression(method=method, level=level)
        require("none" if method is None else method)
    except ValueError as error:
        raise Failure(str(error), USAGE) from None
    path = channel.absolute()
    with explaining_errors(path, "change"), progress("compressing", None, in_bytes=False) as report_progress:
        report = compress_segment.compress(path, policy, report_progress=lambda done, of: report_progress(done, of=of))
    if json:
        document(report)
    elif report.segments:
        saved = f"{size(report.bytes_before)} are {size(report.bytes_after)} now"
        show(f"compressed {counted(report.segments, 'segment')}: {saved}")
    else:
        show("there is nothing to compress: every finished segment is compressed, or would save too little")
