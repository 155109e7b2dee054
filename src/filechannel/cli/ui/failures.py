"""Turns errors into one-line messages and exit codes, for all commands.

    0    success
    1    failed, or there are findings
    2    wrong usage: an unknown option, an invalid value, a path where there is no channel
    130  Ctrl-C          141  the reader of the output has exited          143  terminated

With `FILECHANNEL_DEBUG=1` the traceback is shown instead.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from _thread import start_new_thread
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Final, NoReturn, ParamSpec

import typer

from ..._errors import (
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
    repair_command,
    suggestion_for,
)
from ..._shell_quoting import command, path_word, shell_words
from ..._storage.segments.compression_codecs import MISSING_METHOD
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
    errno.EROFS,
    errno.EFBIG,
    errno.EIO,
)
"""Errors that mean the same for a file of a channel and for any other file that a command is given."""

P = ParamSpec("P")


class Failure(Exception):  # noqa: N818 - how a command ends, not an error of the library
    """A command cannot do what it was asked to do. The text is all that the user sees."""

    def __init__(self, text: str, code: int = FINDINGS) -> None:
        super().__init__(text)
        self.code = code


def reporting(command: Callable[P, object]) -> Callable[P, None]:
    """Decorate a command so that every error ends it with a message and an exit code.

    If the command returns a number, it is the exit code.
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
            raise typer.Exit(report(error)) from None
        raise typer.Exit(code if isinstance(code, int) else 0)

    return run


def report(error: BaseException) -> int:
    """Write the message for an error, if there is one, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        _discard_output()
        return BROKEN_PIPE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED
    if isinstance(error, SystemExit):
        raise error
    if isinstance(error, OSError):
        _drop_full_output()
    _write_error(explain(error))
    if isinstance(error, Failure):
        return error.code
    if isinstance(error, NotAChannelError):
        return USAGE if error.advice is None else FINDINGS
    return USAGE if isinstance(error, ChannelNotFoundError) else FINDINGS


def explain(error: BaseException) -> str:
    """Return an error as a message for a user of the command line, without Python terms."""
    match error:
        case ChannelNotFoundError():
            return f"there is no channel at {error.path}; check the path"
        case NotAChannelError():
            suggestion = "" if error.advice is None else f"; {error.advice}"
            return f"{error.path} is not a channel: {error.reason}{suggestion}"
        case ChannelFullError():
            if not error.has_consumers:
                return f"{error.path} is full: no consumer is registered, so every stored message counts"
            return f"{error.path} is full until its slowest consumer reads more"
        case DataExpiredError():
            return f"{error.missed:,} messages were deleted before they could be read"
        case CorruptRecordError():
            where = f"{error.segment} is damaged at offset {error.offset}: {error.reason}"
            return f"{where}; {repair_command(error.path, apply=False)} shows what can be repaired"
        case UnsupportedFormatError(found=str(found)) if found.endswith(MISSING_METHOD):
            method = found.removesuffix(MISSING_METHOD)
            return f"{method} is not installed: {shell_words('pip', *error.advice.split())}"
        case UnknownConsumerError():
            return f"there is no consumer {error.name!r}; {_list_command(error.path)} lists them"
        case ConsumerBusyError():
            since = "" if error.since is None else f" since {error.since.astimezone():%Y-%m-%d %H:%M:%S}"
            who = "another process" if error.pid is None else f"process {error.pid} on {error.host}"
            return f"consumer {error.name!r} is in use by {who}{since}; stop that process first"
        case ConsumerDamagedError():
            command = repair_command(error.path)
            if error.file is not None:
                where = f"{error.file} is damaged: {error.problem}"
                return f"{where}; {command} lets group {error.name!r} resume at its position"
            return f"the position of consumer {error.name!r} is damaged; {command} lets it start at the oldest message"
        case Failure() | FileChannelError() | ValueError() if type(error).__module__.startswith("filechannel"):
            return str(error)
        case OSError():
            where = "" if error.filename is None else f"{error.filename}: "
            known = suggestion_for(error) if error.errno in _ABOUT_THE_SYSTEM else None
            return f"{where}{error.strerror or error}" + ("" if known is None else f"; {known}")
        case _:
            # A bug in filechannel, or a value that only a library rejects: the name of the exception helps in a bug
            # report.
            return f"{type(error).__name__}: {error} (FILECHANNEL_DEBUG=1 shows where)"


def _list_command(path: object) -> str:
    return command("filechannel", "consumers", "CHANNEL" if path is None else path_word(path))


def _write_error(text: str) -> None:
    try:
        sys.stderr.write(f"filechannel: {safe(text)}\n")
        sys.stderr.flush()
    except OSError:
        pass  # stderr has no reader either


def _drop_full_output() -> None:
    """Discard output that cannot be written because the disk is full. Otherwise Python would also report it at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Redirect stdout to /dev/null after its reader has exited. Otherwise Python would report an error at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def end_when_terminated() -> None:
    """Let SIGTERM raise `SystemExit`, so that everything is cleaned up. SIGINT already raises an exception."""
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _signal_again


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def _signal_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python drops the exception of its handler, which ran during a finalizer or a callback."""
    number = _SIGNAL_OF.get(dropped.exc_type)
    if number is None:
        sys.__unraisablehook__(dropped)
    else:
        start_new_thread(_send_soon, (number,))


def _send_soon(number: signal.Signals) -> None:
    time.sleep(_SOON)  # the handler must not run inside the hook, where its exception would be dropped again
    os.kill(os.getpid(), number)


_SIGNAL_OF: Final[Mapping[type[BaseException], signal.Signals]] = {
    SystemExit: signal.SIGTERM,
    KeyboardInterrupt: signal.SIGINT,
}
_SOON = 0.01  # seconds
