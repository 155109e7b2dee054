"""`filechannel consumers`: who consumes a channel, how far each one got, and forgetting one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from .._channel.consumers import Consumer
from .._errors import UnknownConsumerError, repair_command
from .command import Command
from .failures import USAGE, Failure, reporting
from .output import JsonOption, columns, document, remark, show, stderr
from .target import ChannelArgument, complete_consumer, reading, tell_incomplete, writing
from .wording import counted, number, process, size, span

if TYPE_CHECKING:
    from rich.table import Table


class _ListByDefault(TyperGroup):
    """`consumers CHANNEL` means `consumers list CHANNEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put in what was left out."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args.insert(0, "list")
        return super().parse_args(ctx, args)


consumers: typer.Typer = typer.Typer(
    name="consumers",
    cls=_ListByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List the consumers of a channel, or forget some.

    'filechannel consumers CHANNEL' lists them. A channel that is called like a command is './list'.

    \b
    Examples:
      filechannel consumers data/orders
      filechannel consumers remove data/orders billing
    """,
)


@consumers.command("list", cls=Command)
@reporting
def list_consumers(channel: ChannelArgument, json: JsonOption = False) -> None:
    """List everybody who is registered.

    How far each one is behind, for how long it is idle, and who has the name. Nothing is changed, and the right to read
    is enough.

    \b
    Examples:
      filechannel consumers list data/orders
      filechannel consumers data/orders --json | jq '.[] | select(.lag_messages > 1000)'
    """
    with reading(channel) as target:
        found = target.channel.consumers()
        if not target.is_current:
            tell_incomplete(channel, target.unreachable)
    if json:
        document(found)
    elif found:
        show(consumer_table(found))
    else:
        remark(f"{channel} has no consumers")
    tell_damaged(channel, found)


@consumers.command("remove", cls=Command)
@reporting
def remove_consumers(
    channel: ChannelArgument,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Who to forget.", autocompletion=complete_consumer)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget consumers and their positions.

    What was kept for them alone may then be removed. One that is in use is refused, and so is the rest of the line: all
    names are looked at before the first one goes.

    \b
    Examples:
      filechannel consumers remove data/orders billing
      filechannel consumers remove data/orders billing audit --yes
    """
    with writing(channel) as target:
        known = {consumer.name: consumer for consumer in target.channel.consumers()}
        found = [_removable(known, name, channel) for name in dict.fromkeys(names)]
        if not yes:
            _ask(found)
        for consumer in found:
            target.channel.remove_consumer(consumer.name)
            remark(f"removed {consumer.name}")


def _removable(known: dict[str, Consumer], name: str, channel: object) -> Consumer:
    consumer = known.get(name)
    if consumer is None:
        raise UnknownConsumerError(name, path=str(channel))
    refuse_owned(consumer)
    return consumer


def refuse_owned(consumer: Consumer) -> None:
    """Refuse to touch a consumer that somebody uses, and say who."""
    owners = consumer.members or (() if consumer.owner is None else (consumer.owner,))
    if owners:
        who = ", ".join(map(process, owners))
        raise Failure(f"consumer {consumer.name!r} is in use by {who}; end that first, nothing was done")


def _ask(found: list[Consumer]) -> None:
    for consumer in found:
        left = f"{counted(consumer.lag_messages, 'message')} ({size(consumer.lag_bytes)}) not taken"
        remark(f"{consumer.name}: {left}, idle for {span(consumer.idle)}")
    if not has_somebody_to_ask():
        raise Failure("not a terminal: give --yes", USAGE)
    stderr().print(f"Forget {counted(len(found), 'consumer')}? [y/N] ", end="", soft_wrap=True)
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was removed")


def has_somebody_to_ask() -> bool:
    """Tell whether a person reads what is written and can answer."""
    return sys.stdin.isatty()


def consumer_table(found: tuple[Consumer, ...]) -> Table:
    """Return consumers as a table."""
    headings = ("CONSUMER", "KIND", "NEXT", "BEHIND", "BYTES", "OLDEST", "IDLE", "OWNER")
    spare = ("OLDEST", "BYTES", "KIND", "NEXT", "IDLE", "OWNER")
    return columns(headings, map(_row, found), right=("NEXT", "BEHIND", "BYTES"), spare=spare)


def tell_damaged(channel: Path, found: tuple[Consumer, ...]) -> None:
    """Say whose position is lost, and what mends that."""
    for consumer in found:
        if consumer.damaged:
            remark(
                f"the position of {consumer.name} is damaged: it holds back everything, and no process can receive "
                f"under the name until {repair_command(channel)}"
            )


def _row(consumer: Consumer) -> tuple[str, ...]:
    owners = consumer.members or (() if consumer.owner is None else (consumer.owner,))
    term = "" if consumer.expires is None else f" (expires after {span(consumer.expires)})"
    return (
        consumer.name,
        consumer.kind,
        "damaged" if consumer.damaged else number(consumer.next_sequence),
        number(consumer.lag_messages),
        size(consumer.lag_bytes),
        span(consumer.lag_seconds) if consumer.lag_messages else "-",
        "-" if consumer.damaged else span(consumer.idle),
        (", ".join(map(process, owners)) or ("nobody" if consumer.owner_known else "unknown")) + term,
    )
