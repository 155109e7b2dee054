"""`filechannel doctor`: what is wrong or unusual, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ..._errors import FileChannelError
from ..diagnosis.channel_checks import diagnose
from ..diagnosis.suggestion import Part, Suggestion
from ..ui.channel_argument import rights
from ..ui.escaping import safe
from ..ui.failures import FINDINGS, Failure, report
from ..ui.humanize import counted
from ..ui.output import JsonOption, document, facts, show, show_command

_COLORS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    channels: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHANNEL",
            help="The directories of the channels. Without any, check this machine.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Report what is wrong or unusual, and how to fix it.

    For a channel: consumers that keep data from being deleted, a full disk or a full channel, failed background work,
    damage that is visible without reading every record, stopped processes. Without a channel: this machine and this
    installation. The command changes nothing. Notes describe what is unusual but harmless; they are not findings.

    To check every record, run 'filechannel verify'.

    \b
    Examples:
      filechannel doctor
      filechannel doctor data/*
      filechannel doctor data/orders --json | jq -r '.channels[].advice[].mend'
    """
    from ..diagnosis.environment import examine

    parts = [] if channels else examine()
    found, failed = _diagnosed(channels or ())
    if json:
        document(_report(parts, found))
    elif channels:
        for channel, suggestions in found.items():
            _show_channel(channel, suggestions)
    else:
        _show_environment(parts)
    everything = [
        *(part.suggestion for part in parts),
        *(each for suggestions in found.values() for each in suggestions),
    ]
    has_findings = any(each is not None and each.severity != "note" for each in everything)
    return max(FINDINGS * has_findings, *map(report, failed), 0)


def _diagnosed(channels: Sequence[Path]) -> tuple[dict[Path, list[Suggestion]], list[Exception]]:
    """Return the findings and the errors. An error for one channel does not keep the others from being checked."""
    found: dict[Path, list[Suggestion]] = {}
    failed: list[Exception] = []
    for channel in channels:
        try:
            with rights(channel.absolute(), "read"):
                found[channel] = diagnose(channel.absolute())
        except (FileChannelError, OSError, Failure) as error:
            failed.append(error)
    return found, failed


def _report(parts: Sequence[Part], found: dict[Path, list[Suggestion]]) -> object:
    if parts:
        suggestions = [part.suggestion.to_json() for part in parts if part.suggestion is not None]
        return {"environment": {part.name: part.found for part in parts}, "advice": suggestions}
    channels = [
        {"path": str(path), "advice": [each.to_json() for each in suggestions]} for path, suggestions in found.items()
    ]
    return {"channels": channels}


def _show_channel(channel: Path, suggestions: Sequence[Suggestion]) -> None:
    from rich.text import Text

    bad = [each for each in suggestions if each.severity != "note"]
    state = f"{counted(len(bad), 'finding')}" if bad else "fine"
    show(Text.assemble((safe(str(channel)), "bold"), f": {state}"))
    _show_suggestions(suggestions)


def _show_environment(parts: Sequence[Part]) -> None:
    show(facts([(part.name, part.found) for part in parts]))
    _show_suggestions([part.suggestion for part in parts if part.suggestion is not None])


def _show_suggestions(suggestions: Sequence[Suggestion]) -> None:
    from rich.table import Table
    from rich.text import Text

    next_mends = [*(each.mend for each in suggestions[1:]), None]
    for each, next_mend in zip(suggestions, next_mends, strict=False):
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(Text(f"  {each.severity}", _COLORS[each.severity]), Text(safe(each.what)))
        show(line)
        if each.mend is not None and each.mend != next_mend:  # once for all findings that it fixes
            show_command(f"    {each.mend}")
