"""`filechannel compress`: compress finished segments now."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from .._maintenance import compression
from .._options import Compression
from .._storage.codecs import require
from .failures import USAGE, Failure
from .output import JsonOption, document, show
from .progress import progress
from .target import ChannelArgument, opening
from .wording import counted, size


def compress(
    channel: ChannelArgument,
    method: Annotated[
        Literal["zstd", "lz4", "gzip"] | None,
        typer.Option(help="Instead of what the channel's options say, or zstd.", show_default=False),
    ] = None,
    level: Annotated[int | None, typer.Option(metavar="NUMBER", help="Of that method.", show_default=False)] = None,
    json: JsonOption = False,
) -> None:
    """Compress every finished segment now, however old it is.

    Whoever has the channel open goes on sending and receiving. Interrupted, what is compressed by then stays so, and
    the rest stays as it was.

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
    with opening(path, "change"), progress("compressing", None, in_bytes=False) as tell:
        report = compression.compress(path, policy, tell=lambda done, of: tell(done, of=of))
    if json:
        document(report)
    elif report.segments:
        saved = f"{size(report.bytes_before)} are {size(report.bytes_after)} now"
        show(f"compressed {counted(report.segments, 'segment')}: {saved}")
    else:
        show("there is nothing to compress: no finished segment that is plain and worth it")
