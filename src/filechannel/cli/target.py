"""The channel that a command is about: from what was typed to a channel that is open."""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, final

import typer

from .. import blocking
from .._channel.recipe import Recipe
from .._channel.untyped import Description, describe_channel
from .._errors import FileChannelError
from .._options import ChannelOptions
from .._storage.store import Store
from .._storage.stores import STORES
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
    """Whether everything is to be seen; else what the last flush covers, until somebody opens it to send or receive."""


@contextmanager
def reading(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel to look at it: nothing in it changes, and the right to read is enough."""
    description = find(path)
    with opened(description.recipe(readonly=True, options=options), "read") as channel:
        with opened_store(description, readonly=True) as store:
            is_current = store.is_current
        yield Target(description, channel, is_current)


@contextmanager
def writing(path: Path, options: ChannelOptions | None = None) -> Generator[Target]:
    """Open a channel to change it, as any process does that sends or receives. It must be there."""
    description = find(path)
    with opened(description.recipe(options=options), "change") as channel:
        yield Target(description, channel, is_current=True)


def tell_incomplete(path: Path) -> None:
    """Say that there may be more in a channel than whoever only reads can know of."""
    remark(
        f"{path} is a copy, or was not opened since a restart: what the last flush does not cover is not shown; "
        f"whoever opens it to send or receive finds it, and so does 'filechannel gc {shlex.quote(str(path))}'"
    )


def find(path: Path) -> Description:
    """Return what the channel says of itself; a short message if there is none, or nobody may look."""
    with rights(path, "read"):
        return describe_channel(path.absolute())


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
        store = recipe.open_store()
    with blocking.FileChannel(recipe, store) as channel:
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
