"""`filechannel consumers`: list the consumers of a channel and their lag, or remove one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from ..._channel.status.consumer_status import Consumer
from ..._errors import UnknownConsumerError, repair_command
from ..ui.channel_argument import ChannelArgument, complete_consumer, reading, warn_if_incomplete, writing
from ..ui.failures import USAGE, Failure, reporting
from ..ui.humanize import counted, number, process, size, span
from ..ui.output import JsonOption, columns, document, remark, show, stderr
from ..ui.usage_line import Command

if TYPE_CHECKING:
    from rich.table import Table


class _ListByDefault(TyperGroup):
    """`consumers CHANNEL` means `consumers list CHANNEL`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the omitted subcommand."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args.insert(0, "list")
        return super().parse_args(ctx, args)


consumers: typer.Typer = typer.Typer(
    name="consumers",
    cls=_ListByDefault,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""List the consumers of a channel, or remove some.

    'filechannel consumers CHANNEL' lists them. If your channel is named like a subcommand, write './list'.

    \b
    Examples:
      filechannel consumers data/orders
      filechannel consumers remove data/orders billing
    """,
)


@consumers.command("list", cls=Command)
@reporting
def list_consumers(channel: ChannelArgument, json: JsonOption = False) -> None:
    """List the registered consumers.

    For each consumer: its lag, how long it has been idle, and which process owns the name. The command changes nothing
    and needs read permission only.

    \b
    Examples:
      filechannel consumers list data/orders
      filechannel consumers data/orders --json | jq '.[] | select(.lag_messages > 1000)'
    """
    with reading(channel) as target:
        found = target.channel.consumers()
        if not target.is_current:
            warn_if_incomplete(channel, target.unreachable)
    if json:
        document(found)
    elif found:
        show(consumer_table(found))
    else:
        remark(f"{channel} has no consumers")
    warn_of_damaged(channel, found)


@consumers.command("remove", cls=Command)
@reporting
def remove_consumers(
    channel: ChannelArgument,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="The consumers to remove.", autocompletion=complete_consumer)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove consumers and their positions.

    Messages that were kept only for them may then be deleted. If one of the consumers is in use, none is removed: the
    command checks all names first.

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
    """Raise `Failure`, naming the owners, if a consumer is in use."""
    owners = consumer.members or (() if consumer.owner is None else (consumer.owner,))
    if owners:
        who = ", ".join(map(process, owners))
        raise Failure(f"consumer {consumer.name!r} is in use by {who}; stop that process first, nothing was done")


def _ask(found: list[Consumer]) -> None:
    for consumer in found:
        left = f"{counted(consumer.lag_messages, 'message')} ({size(consumer.lag_bytes)}) not received"
        remark(f"{consumer.name}: {left}, idle for {span(consumer.idle)}")
    if not is_interactive():
        raise Failure("stdin is not a terminal: add --yes", USAGE)
    stderr().print(f"Remove {counted(len(found), 'consumer')}? [y/N] ", end="", soft_wrap=True)
    try:
        answer = input()
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise Failure("nothing was removed")


def is_interactive() -> bool:
    """Return whether stdin is a terminal, so that a person can answer."""
    return sys.stdin.isatty()


def consumer_table(found: tuple[Consumer, ...]) -> Table:
    """Return consumers as a table."""
    headings = ("CONSUMER", "KIND", "NEXT", "BEHIND", "BYTES", "OLDEST", "IDLE", "OWNER")
    optional = ("OLDEST", "BYTES", "KIND", "NEXT", "IDLE", "OWNER")
    return columns(headings, map(_row, found), right=("NEXT", "BEHIND", "BYTES"), optional=optional)


def warn_of_damaged(channel: Path, found: tuple[Consumer, ...]) -> None:
    """Report consumers whose stored position is damaged, and the command that fixes it."""
    for consumer in found:
        if consumer.damaged:
            remark(
                f"the position of {consumer.name} is damaged: no message is deleted, and no process can receive "
                f"under this name, until you run {repair_command(channel)}"
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
        (", ".join(map(process, owners)) or ("none" if consumer.owner_known else "unknown")) + term,
    )
