"""What every transaction does without waiting, whether it waits in an event loop or in a thread."""

# A step is a part of its receiver and its sender.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Generic, TypeVar, cast, final
from weakref import ref

from anyio import ClosedResourceError

from .._errors import storage_errors
from .any_ack_receiver import AnyAckReceiver
from .any_sender import AnySender
from .transfer import Transfer

T_co = TypeVar("T_co", covariant=True)
U_contra = TypeVar("U_contra", contravariant=True)


class _Block:
    """A `with` block that a step is entered in. It lives as long as the statement can still leave the block."""

    __slots__ = ("__weakref__",)


@final
class Leaving:
    """`__exit__` or `__aexit__` of a step. A `with` statement looks it up first, and keeps it until the block was left.

    A signal handler may raise before the first bytecode of `__exit__`, where no `try` can be. The step cannot notice
    that, and a name may refer to it for long. So what says that a step is on is not the step, but a `_Block` to which
    only the statement, and a call of `__exit__`, refer.
    """

    def __init__(self, leave: Callable[..., object]) -> None:
        """*leave* is a method that gets the block, or None, before the three arguments of `__exit__`."""
        self._leave = leave

    def __get__(self, step: AnyStep[object, object] | None, _owner: object = None) -> Callable[..., object]:
        """Return what leaves the block; without a step, as `ExitStack` asks, a function that needs one."""
        if step is None:
            return self._leave_without_block
        block = _Block()
        step._block = ref(block)
        return partial(self._leave, step, block)

    def _leave_without_block(self, step: object, *error: object) -> object:
        return self._leave(step, None, *error)


class AnyStep(Generic[T_co, U_contra]):
    """One step: messages that are received, and messages that are sent when the block ends well, together.

    Whatever the receiver hands out in the block belongs to the step, and to nobody else.
    """

    def __init__(self, rx: AnyAckReceiver[T_co], tx: AnySender[U_contra]) -> None:
        self._source = rx._acks
        self._any_tx = tx
        self._payloads: list[bytes] = []
        self._is_on = False
        self._block: ref[_Block] | None = None

    def send(self, item: U_contra) -> None:
        """Send one message when the block ends. It is checked and encoded now, and nothing waits.

        Raises `MessageTypeError` or `CodecError` for a value that does not fit, and `MessageTooLargeError`.
        """
        self._keep([item])

    def send_many(self, items: Iterable[U_contra]) -> None:
        """Send messages when the block ends; a bad one raises an error that names its index, and none of them is kept.

        All that is sent in a block becomes visible at once, and is kept or lost as a whole.
        """
        self._keep(list(items))

    def _keep(self, items: list[U_contra]) -> None:
        self._check_on()
        connection = self._any_tx._connection
        payloads = connection.path.encode_all(cast("list[object]", items), 0)
        connection.store.log.check_sizes(payloads)
        self._payloads += payloads

    def _check_on(self) -> None:
        if not self._is_on:
            raise ClosedResourceError
        self._any_tx._check_open()

    # The parts of a step

    def _transfer(self) -> Transfer:
        """Return what moves the position, made if the last step went elsewhere."""
        last, output = self._source.transfer, self._any_tx._connection.store
        return last if last is not None and last.output is output else Transfer(self._source, output)

    def _prepare(self) -> None:
        """Let the position be what the output says. Touches files, and blocks."""
        transfer = self._transfer()
        with storage_errors(transfer.output.path, "no transaction can begin"):
            transfer.prepare()
        self._source.transfer = transfer

    @property
    def _is_prepared(self) -> bool:
        if self._any_tx._connected is None or self._source.transfer is None:
            return False
        transfer = self._transfer()
        return transfer is self._source.transfer and transfer.is_ready

    def _begin(self) -> None:
        self._any_tx._check_open()
        block = None if self._block is None else self._block()
        self._source.begin_step(self if block is None else block)
        self._payloads, self._is_on = [], True

    def _append(self) -> int:
        return self._transfer().append(self._payloads)

    def _settle(self) -> None:
        self._transfer().settle()

    def _give_back(self, error: BaseException | None = None) -> None:
        """Let the inputs come again; it counts as an attempt if the block failed, and not if it was cancelled."""
        self._source.give_back_all(counted=isinstance(error, Exception))

    def _end(self) -> None:
        if self._is_on:
            self._is_on = False
            self._source.end_step()


def check_arguments(rx: object, tx: object, receiver: type, sender: type, other: str) -> None:
    """Refuse what is not a receiver that acknowledges, and a sender, and say what to use instead.

    *other* is the function for those that wait in another way.
    """
    for argument, given, wanted, base, method in (
        ("rx", rx, receiver, AnyAckReceiver, "ack_receiver"),
        ("tx", tx, sender, AnySender, "sender"),
    ):
        if not isinstance(given, wanted):
            advice = f"use {other}()" if issubclass(type(given), base) else f"make one with {method}()"
            kinds = f"must be {_described(wanted)}, not {_described(type(given))}"
            raise TypeError(f"{argument}={given!r}: {kinds}; {advice}")


def _described(kind: type) -> str:
    return f"{kind.__module__.partition('._')[0]}.{kind.__name__}"
