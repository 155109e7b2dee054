"""`filechannel verify`: look at every byte of a channel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from .._channel.untyped import describe_channel
from .._maintenance import verify as verifying
from .._maintenance.findings import Finding, Report
from .._maintenance.stretches import CheckPayload
from .._shell import shell_words
from .failures import FINDINGS, Failure
from .output import JsonOption, columns, document, show, show_command
from .progress import progress
from .target import ChannelArgument, rights
from .wording import counted, size


def verify(
    channel: ChannelArgument,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Decode every message, too, by the schema of the channel.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", min=1, max=64, help="Segments to look at at once.", show_default="one a core"),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check every record, header, index and position of a channel.

    Nothing is changed, and the right to read is enough. Others may send and receive meanwhile; what they publish after
    it has begun is not looked at. Notes are about what is unusual and as it may be: they do not count as findings.

    'filechannel repair' mends what is found.

    \b
    Examples:
      filechannel verify data/orders
      filechannel verify data/orders --payloads --json | jq '.findings[] | select(.severity == "error")'
    """
    path = channel.absolute()
    check = payload_check(path) if payloads else None
    with rights(path, "read"), progress("verifying") as tell:
        report = verifying.verify(path, check=check, threads=threads, progress=lambda done, of: tell(done, of=of))
    if json:
        document(report.to_json())
    else:
        show_findings(report.findings)
        show(_summary(report))
    return 0 if report.is_clean else FINDINGS


def payload_check(path: Path) -> CheckPayload | None:
    """Return what decodes messages by the schema; None where every payload is a message."""
    description = describe_channel(path)
    codec, message_type = description.manifest.codec, description.message_type
    if codec == "raw":
        return None
    if description.is_bytes:
        raise Failure(f"the codec {codec!r} is not one of ours: payloads cannot be checked")
    decode = (msgspec.msgpack if codec == "msgpack" else msgspec.json).Decoder(message_type).decode

    def check(payload: bytes) -> str | None:
        try:
            decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return str(error)
        return None

    return check


def show_findings(findings: tuple[Finding, ...]) -> None:
    """Write what was found, a line each."""
    if findings:
        show(columns(("SEVERITY", "WHERE", "WHAT"), ((each.severity, each.place, each.what) for each in findings)), "")
    mends = [finding.mend for finding in findings if finding.mend is not None]
    if mends:
        show("What a repair leaves to you:")
        for mend in mends:
            show_command(f"  {mend}")


def _summary(report: Report) -> str:
    looked_at = f"{counted(report.messages, 'message')} in {counted(report.segments, 'segment')}, {size(report.bytes)}"
    if report.is_clean:
        return f"{looked_at}: no damage"
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = sum(finding.severity == "warning" for finding in report.findings)
    lost = f", {counted(report.lost, 'message')} missing" if report.lost else ""
    found = f"{looked_at}: {counted(errors, 'error')} and {counted(warnings, 'warning')}{lost}"
    if all(finding.mend is not None for finding in report.findings if finding.severity != "note"):
        return found
    return f"{found}; {shell_words('filechannel', 'repair', report.path)} says what can be done"
