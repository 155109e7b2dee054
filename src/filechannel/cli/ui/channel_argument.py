"""The channel argument of commands, and opening the channel it names."""

from __future__ import annotations

import errno
import os
import pwd
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, final

import typer

from ... import blocking
from ..._channel.lifecycle.channel_description import Description, describe_channel
from ..._channel.lifecycle.open_spec import OpenSpec
from ..._channel.lifecycle.store_handle import StoreHandle
from ..._errors import FileChannelError, repair_command, verify_command
from ..._options import ChannelOptions
from ..._shell_quoting import command, path_word
from ..._storage.open_stores import STORES
from ..._storage.recovery.unreachable_records import Unreachable
from ..._storage.store import Store
from .failures import Failure, explain
from .output import remark

ChannelArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CHANNEL", help="The directory of the channel.", show_default=False, readable=False)
]
"""The first argument of every command for one channel. Read permission is checked when the channel is opened."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """An open channel, without the Python types of its messages."""

    description: Description
    channel: blocking.FileChannel[object]
    is_current: bool
    """Whether all messages are visible.

    If not, only those that can be read before a process opens it to send or receive.
    """
    unreachable: Unreachable | None = None
    """The messages after damage that such a process would move to quarantine."""


@contextmanager
def reading(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel for reading. Nothing in it changes, and read permission is enough."""
    description = find(path)
    with opened(description.open_spec(readonly=True, options=options), "read") as channel:
        with opened_store(description, readonly=True) as store:
            is_current, unreachable = store.is_current, store.unreachable
        yield Target(description, channel, is_current, unreachable)


@contextmanager
def writing(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel for changes, like any process that sends or receives. It must exist."""
    description = find(path)
    with opened(description.open_spec(options=options), "change") as channel:
        yield Target(description, channel, is_current=True)


def warn_if_incomplete(path: Path, unreachable: Unreachable | None) -> None:
    """Report that a channel is damaged, or may contain more than a process that only reads can show."""
    if unreachable is not None:
        remark(
            f"{path}: {unreachable}; check it with {verify_command(path)}, and run {repair_command(path)} before any "
            "process opens it to send or receive, which would move them to quarantine"
        )
        return
    gc = command("filechannel", "gc", path_word(path))
    remark(
        f"{path} is a copy, or was not opened since a restart: messages that need recovery are not shown; "
        f"{gc} recovers them, and so does any process that opens the channel to send or receive"
    )


def find(path: Path) -> Description:
    """Return the description of a channel. Raise a short error if there is none, or permission is missing."""
    path = path.absolute()
    with rights(path, "read"):
        return describe_channel(path)


@contextmanager
def explaining_errors(path: Path, doing: str) -> Generator[Description]:
    """Return the description of a channel, which is not opened, and explain errors about permissions in the block.

    Raises a short error if there is no channel.
    """
    description = find(path)
    with rights(path, doing):
        yield description


@contextmanager
def opened(open_spec: OpenSpec[object], doing: str) -> Generator[blocking.FileChannel[object]]:
    """Open the channel of an open spec, and close it at the end. *doing* is what the permission is needed for."""
    with rights(open_spec.path, doing):
        handle = StoreHandle(open_spec.open_store)
        handle.open()
    with blocking.FileChannel(open_spec, handle) as channel:
        yield channel


@contextmanager
def rights(path: Path, doing: str) -> Generator[None]:
    """Convert permission errors in the block to a failure that says which user may not do what."""
    try:
        yield
    except PermissionError as error:
        raise _no_rights(path, error, doing) from error
    except FileChannelError as error:
        cause = error.__cause__
        if isinstance(cause, PermissionError):
            raise _no_rights(path, cause, doing) from error
        if isinstance(cause, OSError) and cause.errno == errno.EROFS:  # it advises on arguments of the library
            raise Failure(explain(cause)) from error
        raise


@contextmanager
def opened_store(description: Description, *, readonly: bool = False) -> Generator[Store]:
    """Open the store of a channel, without its typed objects."""
    with rights(description.path, "read" if readonly else "change"):
        store = description.open_spec(readonly=readonly).open_store()
    try:
        yield store
    finally:
        STORES.close(store)


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumers of the channel on the command line that complete the input, for the shell."""
    is_bash = os.environ.get("_FILECHANNEL_COMPLETE") == "complete_bash"  # bash does not quote the names
    try:
        with reading(Path(str(ctx.params["channel"]))) as target:
            names = [each.name for each in target.channel.consumers() if each.name.startswith(incomplete)]
        names = [name for name in names if name.isprintable()]  # a shell would show control characters unescaped
        return [re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", name) if is_bash else name for name in names]
    except Exception:  # errors would disturb the user while typing
        return []


def _no_rights(path: Path, error: PermissionError, doing: str) -> Failure:
    me = _user(os.geteuid())
    where = path if error.filename is None else error.filename
    try:
        status = os.stat(path)
        owner = _user(status.st_uid)
        about = f"; {path} belongs to {owner}, mode {status.st_mode & 0o7777:04o}"
    except OSError:
        owner, about = None, ""
    if owner is None:
        suggestion = "check the permissions of its parents"
    elif owner == me:
        suggestion = "check the permissions of its files and parents"
    else:
        suggestion = f"run the command as {owner}, or ask {owner} for access"
    return Failure(f"{me} may not {doing} {path} ({error.strerror}: {where}){about}: {suggestion}")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
