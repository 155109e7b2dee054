"""`BaseStep`: everything a transaction does without waiting, for event loops and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar, final
from weakref import ref

from anyio import ClosedResourceError

from ..._errors import storage_errors
from ..subscription.transaction_position import TransactionPosition
from .ack_receiver import BaseAckReceiver
from .sender import BaseSender

T_co = TypeVar("T_co", covariant=True)
U_contra = TypeVar("U_contra", contravariant=True)


class _Block:
    """A `with` block in which a step was entered. It exists as long as the statement can still leave the block."""

    __slots__ = ("__weakref__",)


@final
class Leaving:
    """`__exit__` or `__aexit__` of a step. A `with` statement looks it up first, and keeps it until the block was left.

    A signal handler may raise before the first bytecode of `__exit__`, where no `try` can be. The step cannot detect
    that, and a variable may keep referring to it. So what marks a step as active is not the step itself, but a `_Block`
    that only the statement, and a call of `__exit__`, reference.
    """

    def __init__(self, leave: Callable[..., object]) -> None:
        """Take as *leave* a method that gets the block, or None, before the three arguments of `__exit__`."""
        self._leave = leave

    def __get__(self, step: BaseStep[object, object] | None, _owner: object = None) -> Callable[..., object]:
        """Return the function that leaves the block; without a step, as `ExitStack` asks, one that takes the step."""
        if step is None:
            return self._leave_without_block
        block = _Block()
        step.remember_block(block)
        return partial(self._leave, step, block)

    def _leave_without_block(self, step: object, *error: object) -> object:
        return self._leave(step, None, *error)


class BaseStep(Generic[T_co, U_contra]):
    """One step: messages that are received, and messages that are sent when the block completes, together.

    All messages that the receiver returns in the block belong to this step alone.
    """

    def __init__(self, rx: BaseAckReceiver[T_co], tx: BaseSender[U_contra]) -> None:
        self._input = rx.transaction_input
        self._subscription = self._input.subscription
        self._sender = tx
        self._payloads: list[bytes] = []
        self._is_active = False
        self._block: ref[_Block] | None = None

    def send(self, item: U_contra) -> None:
        """Send one message when the block ends. It is checked and encoded now; this never waits.

        Raises `MessageTypeError` or `CodecError` for a value that is not a message of the channel, and
        `MessageTooLargeError`.
        """
        self._keep([item])

    def send_many(self, items: Iterable[U_contra]) -> None:
        """Send messages when the block ends. An invalid one raises an error that names its index; then none is kept.

        All messages sent in a block become visible together, and after a crash they are there as a whole or not at all.
        """
        self._keep(list(items))

    def _keep(self, items: list[U_contra]) -> None:
        self._check_active()
        self._payloads += self._sender.encode_messages(items)

    def _check_active(self) -> None:
        if not self._is_active:
            raise ClosedResourceError
        self._sender.check_open()

    # The parts of a step

    def remember_block(self, block: _Block) -> None:
        """Remember the `with` block, weakly: the step is over when the block is."""
        self._block = ref(block)

    def _position(self) -> TransactionPosition:
        """Return the position in the output channel; a new one if the last step had another output."""
        last, output = self._input.position, self._sender.open_store
        return last if last is not None and last.output is output else TransactionPosition(self._input, output)

    def _prepare(self) -> None:
        """Move the position to what the output channel has stored for it. Accesses files, and blocks."""
        position = self._position()
        with storage_errors(position.output.path, "no transaction can start"):
            position.prepare()
        self._input.position = position

    @property
    def _is_prepared(self) -> bool:
        if not self._sender.is_connected or self._input.position is None:
            return False
        position = self._position()
        return position is self._input.position and position.is_ready

    def _begin(self) -> None:
        self._sender.check_open()
        block = None if self._block is None else self._block()
        self._input.begin_step(self if block is None else block)
        self._payloads, self._is_active = [], True

    def _append(self) -> int:
        return self._position().append(self._payloads)

    def _acknowledge(self) -> None:
        self._position().acknowledge()

    def _redeliver(self, error: BaseException | None = None) -> None:
        """Redeliver the inputs. It counts as an attempt if the block failed, and not if it was cancelled."""
        self._input.redeliver_all(counted=isinstance(error, Exception))

    def _end(self) -> None:
        if self._is_active:
            self._is_active = False
            self._input.end_step()


def check_arguments(rx: object, tx: object, receiver: type, sender: type, other: str) -> None:
    """Raise `TypeError` for anything but a receiver with acknowledgement and a sender, and say what to use instead.

    *other* is the function of the other API: the blocking one for the async one, and the reverse.
    """
    for argument, given, wanted, base, method in (
        ("rx", rx, receiver, BaseAckReceiver, "ack_receiver"),
        ("tx", tx, sender, BaseSender, "sender"),
    ):
        if not isinstance(given, wanted):
            hint = f"use {other}()" if issubclass(type(given), base) else f"create one with {method}()"
            kinds = f"must be {_described(wanted)}, not {_described(type(given))}"
            raise TypeError(f"{argument}={given!r}: {kinds}; {hint}")


def _described(kind: type) -> str:
    return f"{kind.__module__.partition('._')[0]}.{kind.__name__}"
