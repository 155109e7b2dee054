"""`filechannel doctor`: what is wrong or unusual, in words, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from .._errors import FileChannelError
from .advice import Advice, Part
from .diagnosis import diagnose
from .escaping import safe
from .failures import FINDINGS, Failure, tell
from .output import JsonOption, document, facts, show, show_command
from .target import rights
from .wording import counted

_COLORS = {"error": "bold red", "warning": "yellow", "note": "dim"}


def doctor(
    channels: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="CHANNEL",
            help="Their directories. Without any: this machine.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> int:
    """Say what is wrong or unusual, and what mends it.

    Of a channel: consumers that hold data back, a full disk or capacity, failures in the background, damage that shows
    at a glance, processes that stand still. Without a channel: this machine and this installation. Nothing is changed.
    Notes are about what is unusual and as it may be: they do not count as findings.

    'filechannel verify' reads every record, which this does not.

    \b
    Examples:
      filechannel doctor
      filechannel doctor data/*
      filechannel doctor data/orders --json | jq -r '.channels[].advice[].mend'
    """
    from .environment import examine

    parts = [] if channels else examine()
    found, failed = _diagnosed(channels or ())
    if json:
        document(_report(parts, found))
    elif channels:
        for channel, advice in found.items():
            _show_channel(channel, advice)
    else:
        _show_environment(parts)
    everything = [*(part.advice for part in parts), *(each for advice in found.values() for each in advice)]
    has_findings = any(each is not None and each.severity != "note" for each in everything)
    return max(FINDINGS * has_findings, *map(tell, failed), 0)


def _diagnosed(channels: Sequence[Path]) -> tuple[dict[Path, list[Advice]], list[Exception]]:
    """Return what was found, and what stood in the way: whatever one path is, the others are looked at."""
    found: dict[Path, list[Advice]] = {}
    failed: list[Exception] = []
    for channel in channels:
        try:
            with rights(channel.absolute(), "read"):
                found[channel] = diagnose(channel.absolute())
        except (FileChannelError, OSError, Failure) as error:
            failed.append(error)
    return found, failed


def _report(parts: Sequence[Part], found: dict[Path, list[Advice]]) -> object:
    if parts:
        advice = [part.advice.to_json() for part in parts if part.advice is not None]
        return {"environment": {part.name: part.found for part in parts}, "advice": advice}
    channels = [{"path": str(path), "advice": [each.to_json() for each in advice]} for path, advice in found.items()]
    return {"channels": channels}


def _show_channel(channel: Path, advice: Sequence[Advice]) -> None:
    from rich.text import Text

    bad = [each for each in advice if each.severity != "note"]
    state = f"{counted(len(bad), 'finding')}" if bad else "fine"
    show(Text.assemble((safe(str(channel)), "bold"), f": {state}"))
    _show_advice(advice)


def _show_environment(parts: Sequence[Part]) -> None:
    show(facts([(part.name, part.found) for part in parts]))
    _show_advice([part.advice for part in parts if part.advice is not None])


def _show_advice(advice: Sequence[Advice]) -> None:
    from rich.table import Table
    from rich.text import Text

    next_mends = [*(each.mend for each in advice[1:]), None]
    for each, next_mend in zip(advice, next_mends, strict=False):
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(Text(f"  {each.severity}", _COLORS[each.severity]), Text(safe(each.what)))
        show(line)
        if each.mend is not None and each.mend != next_mend:  # once for all that it mends
            show_command(f"    {each.mend}")
