"""`filechannel verify`: check every byte of a channel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..._channel.lifecycle.channel_description import describe_channel
from ..._maintenance.verify import verification as verifying
from ..._maintenance.verify.findings import Finding, Report
from ..._maintenance.verify.walk_segment_records import CheckPayload
from ..._shell_quoting import shell_words
from ..ui.channel_argument import ChannelArgument, rights
from ..ui.failures import FINDINGS, Failure
from ..ui.humanize import counted, size
from ..ui.output import JsonOption, columns, document, show, show_command
from ..ui.progress import progress


def verify(
    channel: ChannelArgument,
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Also decode every message with the schema of the channel.")
    ] = False,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            max=64,
            help="The number of segments to check in parallel.",
            show_default="one per core",
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Check every record, header, index and position of a channel.

    The command changes nothing and needs read permission only. Other processes may send and receive at the same
    time; messages published after the start are not checked. Notes describe what is unusual but harmless; they are not
    findings.

    To fix what it finds, run 'filechannel repair'.

    \b
    Examples:
      filechannel verify data/orders
      filechannel verify data/orders --payloads --json | jq '.findings[] | select(.severity == "error")'
    """
    path = channel.absolute()
    check = payload_check(path) if payloads else None
    with rights(path, "read"), progress("verifying") as report_progress:
        report = verifying.verify(
            path, check=check, threads=threads, progress=lambda done, of: report_progress(done, of=of)
        )
    if json:
        document(report.to_json())
    else:
        show_findings(report.findings)
        show(_summary(report))
    return 0 if report.is_clean else FINDINGS


def payload_check(path: Path) -> CheckPayload | None:
    """Return a function that decodes messages by the schema; None if every payload is a valid message."""
    description = describe_channel(path)
    codec, message_type = description.manifest.codec, description.message_type
    if codec == "raw":
        return None
    if description.is_bytes:
        raise Failure(f"the codec {codec!r} is not built in: payloads cannot be checked")
    decode = (msgspec.msgpack if codec == "msgpack" else msgspec.json).Decoder(message_type).decode

    def check(payload: bytes) -> str | None:
        try:
            decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return str(error)
        return None

    return check


def show_findings(findings: tuple[Finding, ...]) -> None:
    """Write the findings, one per line."""
    if findings:
        show(columns(("SEVERITY", "WHERE", "WHAT"), ((one.severity, one.location, one.what) for one in findings)), "")
    mends = [finding.mend for finding in findings if finding.mend is not None]
    if mends:
        show("What a repair leaves for you to do:")
        for mend in mends:
            show_command(f"  {mend}")


def _summary(report: Report) -> str:
    checked = f"{counted(report.messages, 'message')} in {counted(report.segments, 'segment')}, {size(report.bytes)}"
    if report.is_clean:
        return f"{checked}: no damage"
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = sum(finding.severity == "warning" for finding in report.findings)
    lost = f", {counted(report.lost, 'message')} missing" if report.lost else ""
    found = f"{checked}: {counted(errors, 'error')} and {counted(warnings, 'warning')}{lost}"
    if all(finding.mend is not None for finding in report.findings if finding.severity != "note"):
        return found
    return f"{found}; {shell_words('filechannel', 'repair', report.path)} shows what can be repaired"
