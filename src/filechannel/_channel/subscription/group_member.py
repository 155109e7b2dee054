"""One member of a group: what it was given is its own for a while, and everybody's again afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from weakref import ref

import anyio
from anyio import ClosedResourceError, WouldBlock

from .._errors import AckError, Busy, DecodeError, LeaseExpiredError
from .._format import Reader
from .._offset import Offset
from .._options import OpenOptions
from .._storage.cursor import Cursor
from .._storage.group import Group
from .._storage.index import Mark
from .._storage.log_reader import LogReader
from .._storage.store import Store
from .._wakeup.patience import may_sleep
from .ack_source import NANOSECOND, AckSource
from .delivery import Handed
from .errands import Errands
from .keeper import KEEPER
from .places import Start
from .source import Source

_PAUSE = 0.001  # seconds
_REMEMBERED = 4096
_THIRD = 3


def _weakly(source: GroupSource) -> Callable[[Reader], bool]:
    """Return what tends the group without keeping its source alive, which holds the reader that calls it."""
    reference = ref(source)

    def tend(reader: Reader) -> bool:
        found = reference()
        return found is not None and found.tend(reader)

    return tend


class GroupSource(AckSource):
    """A source that hands out what no other member of its group has."""

    def __init__(
        self,
        store: Store,
        options: OpenOptions,
        errands: Errands,
        open_reader: Callable[[Cursor | None, Mark | None], LogReader],
        group: Group,
        lease: float,
        on_close: Callable[[Source], object],
    ) -> None:
        self._group = group
        self.lease = lease
        """Seconds that a message is ours, unless we extend that."""
        self._is_kept_out = False
        self._lost: dict[tuple[int, int], None] = {}

        def open_without_cursor(_: Cursor | None, stop: Mark | None) -> LogReader:
            return open_reader(None, stop)  # the position is everybody's

        position = group.position
        assert position is not None
        place = Mark(position.offset, position.sequence, position.time)
        super().__init__(store, options, errands, open_without_cursor, group, place, None, on_close)

    def _begin_to_hold(self) -> None:
        self.reader.expire = self._group.expire_before
        self.reader.native.share(self._group.map, self._group.owner, int(self.lease / NANOSECOND), _weakly(self))

    def tend(self, reader: Reader) -> bool:
        """Do what is due in the group; False if another process is in the middle of something for longer."""
        try:
            came_again = self._group.tend(may_sleep)
        except Busy:
            self._is_kept_out = True
            return False
        if came_again or reader.must_tell():
            self._wake()
        return True

    def _wake(self) -> None:
        self.arrivals.wake_all()
        self.store.log.writer.tell_waiters()

    # Leases

    def extend(self, offset: Offset, token: int) -> None:
        """Begin a lease anew; `AckError` or `LeaseExpiredError` if the message is not ours, or not any more."""
        self._check_open()
        native = self.reader.native
        number = native.place_of(offset, token)
        until = time.monotonic_ns() + int(self.lease / NANOSECOND)
        try:
            done = number >= 0 and self._group.extend(number, token, until, may_sleep)
        except Busy:
            raise WouldBlock from None
        if not done:
            native.give_back(offset, token, 0, False)  # which finds out that it is lost
        self._check(offset, token, done)

    def nack(self, count: int | None) -> bool:
        """Let the newest ones outstanding come again; `LeaseExpiredError` if some of them were not ours any more."""
        done = super().nack(count)
        self._check_lost()
        return done

    def take_back(self, taken: Iterable[tuple[Offset, int]]) -> None:
        """Let messages come again that nobody has got; what was settled or lost meanwhile is left out."""
        super().take_back(taken)
        self._remember_lost()

    def tell(self) -> None:
        """Tell others what they may wait for; `LeaseExpiredError` if some of it was not ours any more."""
        self._wake()
        with suppress(Busy):  # who has the lock for longer finds out as well
            self._group.check_words(may_sleep)
        self._check_lost()

    def _check_lost(self) -> None:
        lost = self._remember_lost()
        if lost:
            raise LeaseExpiredError(self.name, Offset(lost[0][0]))

    def _check(self, offset: Offset, token: int, done: bool) -> None:
        self._remember_lost()
        if (offset, token) in self._lost:
            raise LeaseExpiredError(self.name, offset)
        super()._check(offset, token, done)

    def _remember_lost(self) -> list[tuple[int, int]]:
        lost = self.reader.native.take_lost()
        self._lost |= dict.fromkeys(lost)
        for old in list(self._lost)[: max(0, len(self._lost) - _REMEMBERED)]:
            del self._lost[old]
        return lost

    @contextmanager
    def settling(self, offset: Offset, token: int) -> Generator[None]:
        """Acknowledge a message if the body ends well, and keep its lease meanwhile."""
        with super().settling(offset, token), self.keeping(offset, token):
            yield

    def keeping(self, offset: Offset, token: int) -> AbstractContextManager[None]:
        """Extend a lease as often as needed while the body runs."""
        return KEEPER.keeping(lambda: self._extend_kept(offset, token), self.lease / _THIRD)

    @property
    def has_leases(self) -> bool:
        """They have."""
        return True

    def keeping_current(self, current: Callable[[], Handed[object] | None]) -> AbstractContextManager[None]:
        """Extend the lease of whatever is being worked on, as often as needed, while the body runs."""

        def extend() -> None:
            found = current()
            if found is not None and self.reader.native.place_of(found[1], found[4]) >= 0:
                with suppress(ClosedResourceError):  # settled in this moment: another one comes
                    self._extend_kept(found[1], found[4])

        return KEEPER.keeping(extend, self.lease / _THIRD)

    def stands_before(self, error: DecodeError) -> bool:
        """Tell whether what does not decode is still ours."""
        return self.reader.native.refused(error.offset) is not None

    def pass_by(self, error: DecodeError) -> None:
        """Acknowledge what does not decode; if its lease is over, somebody else comes to it."""
        with suppress(AckError, LeaseExpiredError):
            _, _, token = self.refused(error.offset)
            self.settle(error.offset, token)

    def _extend_kept(self, offset: Offset, token: int) -> None:
        number = self.reader.native.place_of(offset, token)
        until = time.monotonic_ns() + int(self.lease / NANOSECOND)
        if self._closed or number < 0 or not self._group.extend(number, token, until, may_sleep):
            raise ClosedResourceError  # whoever settles it is told why

    def refused(self, offset: Offset) -> tuple[int, int, int]:
        """Return (sequence, attempt, token) of a message that did not decode; `AckError` if we have none there."""
        self._check_open()
        found = self.reader.native.refused(offset)
        if found is None:
            raise AckError(self.name, f"there is no message at offset {offset} that did not decode, and is not settled")
        return found

    # What comes next

    def has_news(self) -> bool:
        """Tell whether a look would find something, or somebody has to look after the others, or this is the end."""
        native = self.reader.native
        due = native.next_due
        if native.ready or (due and due <= time.monotonic_ns()):
            return True
        if native.offset != self.store.control.write_offset:  # beyond it: damage, which a look finds
            return not native.full
        return self.has_ended()

    def go_to(self, place: Mark) -> bool:
        """Let the whole group go on elsewhere, and tell whether that is still there. May block.

        If it is not, the group stands where it stood. `AckError` if something is not settled.
        """
        self._check_open()
        if place.offset < self.store.control.oldest_offset:
            return False  # removed since it was looked for
        before = self._group.move(place)
        is_there = self.is_held()
        if not is_there:
            with suppress(AckError):  # a member has something meanwhile: it was told what it missed
                self._group.move(before)
        self._wake()
        return is_there

    def hold_on(self, start: Start) -> None:
        """Stand where a new group begins for good: if that was removed in this moment, look for it again."""
        with suppress(AckError):  # a member that came meanwhile has something: it was told what it missed
            while not self.is_held():
                self._group.move(self.find(start, "start"))

    def is_held(self) -> bool:
        """Tell whether what lies here stays until it was taken, having just been put here; False if it is gone."""
        position = self._group.position
        return position is None or self.store.hold(position.offset)

    def wait(self, has_news: Callable[[], bool]) -> Coroutine[object, object, None]:
        """Sleep until there may be news, or somebody has to look after the others."""
        if self._is_kept_out:
            self._is_kept_out = False
            return anyio.sleep(_PAUSE)
        return super().wait(has_news)

    def sleep(self, has_news: Callable[[], bool], until: float | None) -> bool:
        """Let the thread sleep until there are news, or the monotonic clock says *until*; tell whether there are."""
        if self._is_kept_out:
            self._is_kept_out = False
            time.sleep(_PAUSE)
        return super().sleep(has_news, until)

    def _let_go(self) -> None:
        gave_back = self.reader.native.release()
        super()._let_go()
        if gave_back:
            self._wake()
