"""`filechannel ship`: copy finished segments to an archive."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ..ui.channel_argument import ChannelArgument, explaining_errors
from ..ui.failures import FINDINGS, USAGE, Failure
from ..ui.humanize import counted, size
from ..ui.output import JsonOption, document, remark, show
from ..ui.progress import progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(
    channel: ChannelArgument,
    archive: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="The archive, as a URI: 's3://bucket/orders'.", show_default=False)
    ],
    consumer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Keep every message until it was shipped under this consumer name.", show_default=False
        ),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Also read and check everything in the archive.")] = False,
    hadoop: Annotated[
        bool,
        typer.Option(
            "--hadoop",
            help="Access the archive through Hadoop, like Spark does: for file systems that Arrow does not support.",
        ),
    ] = False,
    json: JsonOption = False,
) -> int:
    """Copy finished segments to an archive, for Spark to read.

    The archive can be read without the channel. Other processes may use the channel at the same time. The command
    copies only what the archive does not have, and replaces incomplete copies, so you can repeat it at any time.
    Messages that were deleted before they were shipped leave a gap, and the exit code is 1; with --consumer they are
    kept until they are shipped. Needs the extra 'spark', and --hadoop also needs Java.

    \b
    Examples:
      filechannel ship data/orders s3://bucket/orders --consumer archive
      filechannel ship data/orders file:///mnt/backup/orders --verify
    """
    try:
        from ...spark import ship as copy
    except ImportError as error:
        raise Failure(str(error)) from error
    path = channel.absolute()
    with (
        explaining_errors(path, "change"),
        _session(hadoop) as spark,
        progress("shipping", None, in_bytes=False) as report_progress,
    ):
        try:
            report = copy(
                path,
                archive,
                spark=spark,
                consumer=consumer,
                verify=verify,
                tell=lambda done, of: report_progress(done, of=of),
            )
        except ValueError as error:
            raise Failure(str(error), USAGE) from None
    if json:
        document(report)
    elif report.segments:
        show(f"shipped {counted(report.segments, 'segment')} ({size(report.bytes)}) to {archive}")
    else:
        show(f"there is nothing to ship: {archive} has every finished segment, up to offset {report.end}")
    if report.gaps:
        remark(f"{counted(report.gaps, 'gap')} in the archive: messages were deleted before they were shipped")
    return FINDINGS if report.gaps else 0


@contextmanager
def _session(wanted: bool) -> Generator[SparkSession | None]:
    """Start a minimal Spark session, enough to access a file system."""
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
