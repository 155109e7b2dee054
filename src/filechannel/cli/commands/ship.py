"""`filechannel ship`: copy finished segments to an archive."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from .failures import FINDINGS, USAGE, Failure
from .output import JsonOption, document, remark, show
from .progress import progress
from .target import ChannelArgument, opening
from .wording import counted, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(
    channel: ChannelArgument,
    archive: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="Where to, as a URI: 's3://bucket/orders'.", show_default=False)
    ],
    consumer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Let nothing be removed that this consumer has not shipped.", show_default=False
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read everything that is there, too.")] = False,
    hadoop: Annotated[
        bool, typer.Option("--hadoop", help="Reach the archive as Spark does, for what Arrow does not know.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Copy finished segments to an archive, for Spark to read.

    Nobody needs the channel to read them there, and whoever has it open goes on. What is there already stays, and what
    was cut off is copied again: call it as often as you like. Messages that the channel has removed before they were
    shipped leave a gap, and exit code 1; a consumer's name keeps them. Needs the extra 'spark', and --hadoop a Java as
    well.

    \b
    Examples:
      filechannel ship data/orders s3://bucket/orders --consumer archive
      filechannel ship data/orders file:///mnt/backup/orders --verify
    """
    try:
        from ..spark import ship as copy
    except ImportError as error:
        raise Failure(str(error)) from error
    path = channel.absolute()
    with opening(path, "change"), _session(hadoop) as spark, progress("shipping", None, in_bytes=False) as tell:
        try:
            report = copy(
                path, archive, spark=spark, consumer=consumer, verify=verify, tell=lambda done, of: tell(done, of=of)
            )
        except ValueError as error:
            raise Failure(str(error), USAGE) from None
    if json:
        document(report)
    elif report.segments:
        show(f"shipped {counted(report.segments, 'segment')} ({size(report.bytes)}) to {archive}")
    else:
        show(f"there is nothing to ship: {archive} has what is finished, up to offset {report.end}")
    if report.gaps:
        remark(f"{counted(report.gaps, 'gap')} in the archive: removed from the channel before it was shipped")
    return FINDINGS if report.gaps else 0


@contextmanager
def _session(wanted: bool) -> Generator[SparkSession | None]:
    """Start as little of Spark as it takes to reach a file system."""
    if not wanted:
        yield None
        return
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").appName("filechannel ship").config("spark.ui.enabled", "false")
    session = spark.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
