"""`filechannel repair`: repair a damaged channel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..._channel.lifecycle.channel_description import describe_channel
from ..._errors import ChannelLockedError
from ..._maintenance.repair import repair as repairing
from ..._maintenance.repair.repair import Action, Plan, Repaired
from ..._maintenance.verify.findings import Finding
from ..._shell_quoting import shell_words
from ..._storage.system.os_calls import Files
from ..ui.channel_argument import ChannelArgument, rights
from ..ui.failures import FINDINGS, Failure
from ..ui.humanize import counted
from ..ui.output import JsonOption, columns, document, remark, show, show_command
from ..ui.progress import progress
from .verify import show_findings


def repair(
    channel: ChannelArgument,
    apply: Annotated[
        bool, typer.Option("--apply", help="Apply the repairs. Without this option nothing is changed.")
    ] = False,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A channel with the same message type, or a copy of channel.json: to replace a lost manifest.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Repair a damaged channel; without --apply, only show the plan.

    Every readable message keeps its offset and sequence. Unreadable data is moved to quarantine/ in the channel's
    directory, with the reason beside it; nothing is deleted. Afterwards receivers skip the damaged part.

    Close the channel in all processes first. If the command is killed, the channel is no worse than before; run it
    again.

    \b
    Examples:
      filechannel repair data/orders
      filechannel repair data/orders --apply
      filechannel repair data/orders --like backup/channel.json --apply
    """
    path = channel.absolute()
    if like is not None:
        _check_like(like)
    if not apply:
        with rights(path, "read"), progress("looking") as report_progress:
            plan = repairing.plan_repair(path, like=like, progress=lambda done, of: report_progress(done, of=of))
        return _show_plan(plan, _applied(path, like), json=json)
    try:
        with rights(path, "change"), progress("repairing") as report_progress:
            repaired = repairing.repair(path, like=like, progress=lambda done, of: report_progress(done, of=of))
    except ChannelLockedError as error:
        raise Failure(f"{error}; nothing was done") from None
    return _show_done(repaired, json=json)


def _check_like(like: Path) -> None:
    """Raise an error if there is no manifest at *like*, even if none is needed: the path may be mistyped."""
    if not like.exists():
        raise typer.BadParameter(f"there is nothing at {like}", param_hint="--like")
    with rights(like, "read"):
        if like.is_dir():
            describe_channel(like.absolute())
        else:
            repairing.manifest_at(Files(), like)


def _applied(path: Path, like: Path | None) -> str:
    return shell_words("filechannel", "repair", path, *(() if like is None else ("--like", like)), "--apply")


def _show_plan(plan: Plan, command: str, *, json: bool) -> int:
    if json:
        document(
            {
                "applied": False,
                "actions": [action.to_json() for action in plan.actions],
                "hopeless": [finding.to_json() for finding in plan.unrepairable],
                "findings": [finding.to_json() for finding in plan.report.findings],
            }
        )
    elif plan.actions or plan.unrepairable:
        _show_actions(plan.actions)
        _show_unrepairable(plan.unrepairable)
        if plan.actions:
            show(f"{counted(len(plan.actions), 'step')}; nothing was changed. To apply:")
            show_command(f"  {command}")
        if plan.writers:
            remark("another process has the channel open; close it first")
    else:
        show("there is nothing to repair")
    return FINDINGS if plan.actions or plan.unrepairable else 0


def _show_done(done: Repaired, *, json: bool) -> int:
    left = tuple(finding for finding in done.report.findings if finding.severity != "note")
    if json:
        document({"applied": True, "actions": [each.to_json() for each in done.actions], **done.report.to_json()})
    else:
        _show_actions(done.actions)
        if done.actions:
            show(f"{counted(len(done.actions), 'step')} done, {counted(done.report.messages, 'message')} can be read")
        elif not left:
            show("there is nothing to repair")
        _show_unrepairable(left)
    return FINDINGS if left else 0


def _show_actions(actions: tuple[Action, ...]) -> None:
    if actions:
        show(columns(("FILE", "WHAT"), ((action.file, action.what) for action in actions)), "")


def _show_unrepairable(findings: tuple[Finding, ...]) -> None:
    if findings:
        show("This cannot be repaired:")
        show_findings(findings)
    if any(finding.kind == "manifest" for finding in findings):
        show("Only the manifest describes the messages: --like takes it from a copy, or from a similar channel.")
