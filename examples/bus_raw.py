"""A bus of raw bytes between terminals: every line that is typed into one appears in all that listen.

    python examples/bus_raw.py receive ann      in one terminal, and `receive ben` in another one
    python examples/bus_raw.py send             in a third: type lines, or `send < file`
    python examples/bus_raw.py replay           later: everything that was ever sent

Each receiver has a name, and the bus stores the position of each name: stop `ann`, send more, start `ann` again, and it
resumes with the next line. There is no server: the bus is a directory. Opening it in several terminals at once requires
the native core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import suppress

from filechannel import ChannelOptions, FileChannelError, Retention
from filechannel.blocking import FileChannel, open_channel

KEPT = ChannelOptions(retention=Retention(after_consumed="keep"))  # for receivers that start later


def send(bus: FileChannel[bytes]) -> None:
    with bus.sender() as tx:
        for line in sys.stdin.buffer:
            tx.send(line.removesuffix(b"\n"))


def receive(bus: FileChannel[bytes], name: str) -> None:
    with bus.receiver(name) as rx:
        show(rx)


def replay(bus: FileChannel[bytes]) -> None:
    with bus.replay() as past:
        show(past)


def show(messages: Iterable[bytes]) -> None:
    for message in messages:
        sys.stdout.buffer.write(message + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="A bus of raw bytes between terminals.")
    parser.add_argument("--bus", default="data/bus_raw", help="the directory of the bus (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("send", help="send each line of the standard input")
    commands.add_parser("receive", help="resume where this name stopped, until Ctrl-C").add_argument("name")
    commands.add_parser("replay", help="print everything that is stored")
    given = parser.parse_args()
    with open_channel(given.bus, bytes, options=KEPT) as bus:
        match given.command:
            case "send":
                send(bus)
            case "receive":
                receive(bus, given.name)
            case _:
                replay(bus)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt):
            main()
    except FileChannelError as error:
        sys.exit(str(error))
