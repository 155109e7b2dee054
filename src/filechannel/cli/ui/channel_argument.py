"""The channel that a command is about: from what was typed to a channel that is open."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, final

import typer

from .. import blocking
from .._channel.recipe import Recipe
from .._channel.store_handle import StoreHandle
from .._channel.untyped import Description, describe_channel
from .._errors import FileChannelError, repair_command, verify_command
from .._options import ChannelOptions
from .._shell import command, path_word
from .._storage.store import Store
from .._storage.stores import STORES
from .._storage.unreachable import Unreachable
from .failures import Failure
from .output import remark

ChannelArgument: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CHANNEL", help="The directory of the channel.", show_default=False, readable=False)
]
"""The first argument of every command that is about one channel. Whether it can be read is seen when it is."""


@final
@dataclass(frozen=True, slots=True)
class Target:
    """A channel that is open, without the types of whoever made it."""

    description: Description
    channel: blocking.FileChannel[object]
    is_current: bool
    """Whether everything is shown; else what can be read before the channel is opened to send or receive."""
    unreachable: Unreachable | None = None
    """What such an open would put aside."""


@contextmanager
def reading(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel to look at it: nothing in it changes, and the right to read is enough."""
    description = find(path)
    with opened(description.recipe(readonly=True, options=options), "read") as channel:
        with opened_store(description, readonly=True) as store:
            is_current, unreachable = store.is_current, store.unreachable
        yield Target(description, channel, is_current, unreachable)


@contextmanager
def writing(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel to change it, as any process does that sends or receives. It must be there."""
    description = find(path)
    with opened(description.recipe(options=options), "change") as channel:
        yield Target(description, channel, is_current=True)


def tell_incomplete(path: Path, unreachable: Unreachable | None) -> None:
    """Say that there may be more in a channel than a process that only reads can show, or that it is damaged."""
    if unreachable is not None:
        remark(
            f"{path}: {unreachable}; check it with {verify_command(path)}, and run {repair_command(path)} before any "
            "process opens it to send or receive, which would move them to quarantine"
        )
        return
    gc = command("filechannel", "gc", path_word(path))
    remark(
        f"{path} is a copy, or was not opened since a restart: what needs recovery is not shown; "
        f"a process that opens it to send or receive finds it, and so does {gc}"
    )


def find(path: Path) -> Description:
    """Return what the channel says of itself; a short message if there is none, or nobody may look."""
    path = path.absolute()
    with rights(path, "read"):
        return describe_channel(path)


@contextmanager
def opening(path: Path, doing: str) -> Generator[Description]:
    """Let whoever opens the channel in the block say what is missing, if it is not there or rights are."""
    description = find(path)
    with rights(path, doing):
        yield description


@contextmanager
def opened(recipe: Recipe[object], doing: str) -> Generator[blocking.FileChannel[object]]:
    """Open what a recipe is for, and close it in the end; *doing* is what the rights are needed for."""
    with rights(recipe.path, doing):
        handle = StoreHandle(recipe.open_store)
        handle.open()
    with blocking.FileChannel(recipe, handle) as channel:
        yield channel


@contextmanager
def rights(path: Path, doing: str) -> Generator[None]:
    """Say who may not do what, if that is what an error in the block is about."""
    try:
        yield
    except PermissionError as error:
        raise _no_rights(path, error, doing) from error
    except FileChannelError as error:
        if isinstance(error.__cause__, PermissionError):
            raise _no_rights(path, error.__cause__, doing) from error
        raise


@contextmanager
def opened_store(description: Description, *, readonly: bool = False) -> Generator[Store]:
    """Open a channel below its typed objects."""
    with rights(description.path, "read" if readonly else "change"):
        store = description.recipe(readonly=readonly).open_store()
    try:
        yield store
    finally:
        STORES.close(store)


def complete_consumer(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the consumers of the channel that was typed already, for the shell to complete one."""
    is_bash = os.environ.get("_FILECHANNEL_COMPLETE") == "complete_bash"  # which takes it as typed; others quote
    try:
        with reading(Path(str(ctx.params["channel"]))) as target:
            names = [each.name for each in target.channel.consumers() if each.name.startswith(incomplete)]
        names = [name for name in names if name.isprintable()]  # a shell would show the others as they are
        return [re.sub(r"[^\w@%+=:,./-]", r"\\\g<0>", name) if is_bash else name for name in names]
    except Exception:  # nobody wants to read about it while typing
        return []


def _no_rights(path: Path, error: PermissionError, doing: str) -> Failure:
    me = _user(os.geteuid())
    where = path if error.filename is None else error.filename
    try:
        status = os.stat(path)
        owner = f"; {path} belongs to {_user(status.st_uid)}, mode {status.st_mode & 0o7777:04o}"
    except OSError:
        owner = ""
    return Failure(f"{me} may not {doing} {path} ({error.strerror}: {where}){owner}")


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
