"""`filechannel repair`: make a damaged channel whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .._channel.untyped import describe_channel
from .._errors import ChannelLockedError
from .._maintenance import repair as repairing
from .._maintenance.findings import Finding
from .._maintenance.repair import Action, Plan, Repaired
from .._shell import shell_words
from .._storage.files import Files
from .failures import FINDINGS, Failure
from .output import JsonOption, columns, document, remark, show, show_command
from .progress import progress
from .target import ChannelArgument, rights
from .verify import show_findings
from .wording import counted


def repair(
    channel: ChannelArgument,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without this, nothing is changed.")] = False,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A channel of the same messages, or a copy of channel.json: for a manifest that is lost.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Mend a damaged channel; without --apply, only say how.

    Every message that can be read stays where it is, with its offset and number. What cannot is moved to quarantine/
    in the channel's directory, with the reason beside it; nothing is deleted. Afterwards readers pass where it was.

    Nobody may have the channel open. Killed in the middle, it leaves a channel that is no worse; run it again.

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
        with rights(path, "read"), progress("looking") as tell:
            plan = repairing.plan_repair(path, like=like, progress=lambda done, of: tell(done, of=of))
        return _show_plan(plan, _applied(path, like), json=json)
    try:
        with rights(path, "change"), progress("mending") as tell:
            repaired = repairing.repair(path, like=like, progress=lambda done, of: tell(done, of=of))
    except ChannelLockedError as error:
        raise Failure(f"{error}; nothing was done") from None
    return _show_done(repaired, json=json)


def _check_like(like: Path) -> None:
    """Refuse what has no manifest to take, even if none is needed: the path may be mistyped."""
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
                "hopeless": [finding.to_json() for finding in plan.hopeless],
                "findings": [finding.to_json() for finding in plan.report.findings],
            }
        )
    elif plan.actions or plan.hopeless:
        _show_actions(plan.actions)
        _show_hopeless(plan.hopeless)
        if plan.actions:
            show(f"{counted(len(plan.actions), 'step')}; nothing was changed. This does it:")
            show_command(f"  {command}")
        if plan.writers:
            remark("the channel is open elsewhere; close it first")
    else:
        show("there is nothing to mend")
    return FINDINGS if plan.actions or plan.hopeless else 0


def _show_done(done: Repaired, *, json: bool) -> int:
    left = tuple(finding for finding in done.report.findings if finding.severity != "note")
    if json:
        document({"applied": True, "actions": [each.to_json() for each in done.actions], **done.report.to_json()})
    else:
        _show_actions(done.actions)
        if done.actions:
            show(f"{counted(len(done.actions), 'step')} done, {counted(done.report.messages, 'message')} can be read")
        elif not left:
            show("there is nothing to mend")
        _show_hopeless(left)
    return FINDINGS if left else 0


def _show_actions(actions: tuple[Action, ...]) -> None:
    if actions:
        show(columns(("FILE", "WHAT"), ((action.file, action.what) for action in actions)), "")


def _show_hopeless(findings: tuple[Finding, ...]) -> None:
    if findings:
        show("This cannot be mended:")
        show_findings(findings)
    if any(finding.kind == "manifest" for finding in findings):
        show("Nothing but the manifest says what the messages are: --like takes that from a copy, or a like channel.")
