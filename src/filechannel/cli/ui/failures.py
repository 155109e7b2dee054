"""What went wrong, in a line, and the exit code for it. Everybody gets both from here.

    0    fine
    1    it failed, or there are findings
    2    wrong usage: an unknown option, a value that is none, a path where there is no channel
    130  Ctrl-C          141  whoever read the output has gone          143  terminated

`FILECHANNEL_DEBUG=1` shows where it happened instead.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Final, NoReturn, ParamSpec

import typer

from .._errors import (
    ChannelFullError,
    ChannelNotFoundError,
    ConsumerBusyError,
    ConsumerDamagedError,
    CorruptRecordError,
    DataExpiredError,
    FileChannelError,
    NotAChannelError,
    UnknownConsumerError,
    UnsupportedFormatError,
    advice_for,
    repair_command,
)
from .._shell import command, path_word, shell_words
from .._storage.codecs import MISSING_METHOD
from .escaping import safe

FINDINGS: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
BROKEN_PIPE: Final = 128 + signal.SIGPIPE
TERMINATED: Final = 128 + signal.SIGTERM

_ABOUT_THE_SYSTEM: Final = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EACCES,
    errno.EPERM,
    errno.EFBIG,
    errno.EIO,
)
"""What means the same for a file of a channel and for any other that a command is given."""

P = ParamSpec("P")


class Failure(Exception):  # noqa: N818 - what a command ends with, not an error of a library
    """A command cannot do what it was asked to do. The text is all that a user is told."""

    def __init__(self, text: str, code: int = FINDINGS) -> None:
        super().__init__(text)
        self.code = code


def reporting(command: Callable[P, object]) -> Callable[P, None]:
    """Let a command end with a message and an exit code, whatever goes wrong in it.

    What it returns, if that is a number, is its exit code.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()  # here, where a broken pipe is still noticed
        except typer.BadParameter as error:
            error.message = safe(error.message)
            raise
        except typer.Exit:
            raise
        except BaseException as error:
            if os.environ.get("FILECHANNEL_DEBUG") == "1":
                raise
            raise typer.Exit(tell(error)) from None
        raise typer.Exit(code if isinstance(code, int) else 0)

    return run


def tell(error: BaseException) -> int:
    """Say what is to be said, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, OSError):
        _give_up_full_output()
    _say(explain(error))
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, NotAChannelError):
        return USAGE if error.advice is None else FINDINGS
    return USAGE if isinstance(error, ChannelNotFoundError) else FINDINGS


def explain(error: BaseException) -> str:
    """Return an error as somebody is told who has a shell and no Python."""
    match error:
        case ChannelNotFoundError():
            return f"there is no channel at {error.path}"
        case NotAChannelError():
            advice = "" if error.advice is None else f"; {error.advice}"
            return f"{error.path} is not a channel: {error.reason}{advice}"
        case ChannelFullError():
            if not error.has_consumers:
                return f"{error.path} is full: no consumer is registered, so all that is stored counts"
            return f"{error.path} is full until its slowest consumer has taken more"
        case DataExpiredError():
            return f"{error.missed:,} messages were removed before they could be read"
        case CorruptRecordError():
            where = f"{error.segment} is damaged at offset {error.offset}: {error.reason}"
            return f"{where}; {repair_command(error.path)} leaves out what cannot be read"
        case UnsupportedFormatError(found=str(found)) if found.endswith(MISSING_METHOD):
            method = found.removesuffix(MISSING_METHOD)
            return f"{method} is not installed: {shell_words('pip', *error.advice.split())}"
        case UnknownConsumerError():
            return f"there is no consumer {error.name!r}; {_lister(error.path)} lists them"
        case ConsumerBusyError():
            since = "" if error.since is None else f" since {error.since.astimezone():%Y-%m-%d %H:%M:%S}"
            who = "another process" if error.pid is None else f"process {error.pid} on {error.host}"
            return f"consumer {error.name!r} is in use by {who}{since}; end that first"
        case ConsumerDamagedError():
            command = repair_command(error.path)
            if error.file is not None:
                where = f"{error.file} is damaged: {error.problem}"
                return f"{where}; {command} lets group {error.name!r} resume at its position"
            return f"the position of consumer {error.name!r} is damaged; {command} lets it begin at the oldest message"
        case Failure() | FileChannelError() | ValueError() if type(error).__module__.startswith("filechannel"):
            return str(error)
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            known = advice_for(error) if error.errno in _ABOUT_THE_SYSTEM else None
            return f"{where}{error.strerror or error}" + ("" if known is None else f"; {known}")
        case _:
            # A bug of ours, or a value that only a library refuses: its name helps whoever reports it.
            return f"{type(error).__name__}: {error} (FILECHANNEL_DEBUG=1 shows where)"


def _lister(path: object) -> str:
    return command("filechannel", "consumers", "CHANNEL" if path is None else path_word(path))


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"filechannel: {safe(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # nobody reads that either


def _give_up_full_output() -> None:
    """Let go of what cannot be written, because there is no room for it: Python would complain, too."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Let nothing more be written to whoever has gone: Python would complain about it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def end_when_terminated() -> None:
    """Let SIGTERM end the process as an error would, with everything cleaned up."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)
