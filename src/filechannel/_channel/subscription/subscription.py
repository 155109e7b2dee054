"""A position in the log: what receivers that share one stand on."""

from __future__ import annotations

import _thread
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol
from weakref import ref

from anyio import ClosedResourceError
from anyio.lowlevel import checkpoint

from .._errors import storage_errors
from .._format import NOTHING, Mutex
from .._options import OpenOptions
from .._storage.background import do_undisturbed
from .._storage.cursor import Cursor
from .._storage.index import Mark
from .._storage.log_reader import LogReader
from .._storage.position_flush import PositionFlush
from .._storage.store import Store
from .._wakeup.arrivals import Arrivals, arrivals_of
from .errands import Errands
from .places import Start, find_place

_BRIEFLY = 5e-6  # seconds
_SLICE = 0.01  # seconds between two looks at what else may have happened, Ctrl-C for one
_TURN = 0.0005  # seconds that a task takes from the others


class User(Protocol):
    """A receiver, as far as its position is concerned."""

    def close(self) -> None:
        """Close it."""
        ...

    def detach(self) -> None:
        """Refuse everything from now on, and let go of nothing."""
        ...


class Source:
    """A position in the log and everything that moves it; clones of a receiver share one.

    Its receivers refer to it, and so do the deliveries that they handed out, but it refers to none of them: when the
    last of them is deleted, so is this object, and its name is released.
    """

    _is_over = True  # one that could not be made has nothing to release

    def __init__(
        self,
        store: Store,
        options: OpenOptions,
        errands: Errands,
        open_reader: Callable[[Cursor | None, Mark | None], LogReader],
        cursor: Cursor | None,
        place: Mark,
        stop: Mark | None,
        on_close: Callable[[Source], object],
    ) -> None:
        self.store = store
        self.options = options
        self.errands = errands
        self.cursor = cursor
        self.arrivals: Arrivals = arrivals_of(store)
        self._open_reader = open_reader
        self._on_close = on_close
        self._lock = Mutex()
        self._ending = Mutex()
        self._users: dict[int, ref[User]] = {}
        """By identity. Not held: one that is deleted is as good as closed."""
        self._owns_name = False
        self._closed = False
        self._is_over = False
        """Whether everything was let go of that has to be."""
        self._forgotten = False
        self._flush: PositionFlush | None = None
        if cursor is not None and options.cursor_flush is not None:
            self._flush = PositionFlush(store.cursors, cursor, options.cursor_flush)
        self.reader: LogReader = self._new_reader(cursor, stop)
        self.reader.move(place)
        if stop is None:
            self.arrivals.let_sleep(self.reader.native, options.spin)

    @property
    def users(self) -> list[User]:
        """The receivers that share it."""
        with self._lock.held():
            return self._live_users()

    def _live_users(self) -> list[User]:
        """Return the receivers that exist. The caller holds the lock, or runs in a forked child."""
        return [user for reference in list(self._users.values()) if (user := reference()) is not None]

    def own(self) -> None:
        """Release the name when this object is deleted, unless it is closed by then. Called when it is complete."""
        self._owns_name = True

    def acquire(self, user: User) -> None:
        """One more receiver uses it; `ClosedResourceError` if there are none any more."""
        with self._lock.held():
            if self._closed:
                raise ClosedResourceError
            self._users[id(user)] = ref(user)

    def release(self, user: User) -> None:
        """One receiver less; the last one gives the position up, which stays where it is.

        Repeated after an exception of a signal handler, it completes what was begun, or waits for its end.
        """
        if id(user) in self._users or (self._closed and not self._is_over):
            do_undisturbed(partial(self._release, user))

    def _release(self, user: User) -> None:
        with self._lock.held():
            is_last = not any(other is not user for other in self._live_users())
            self._closed |= is_last  # first: a thread that finds the user removed waits for the release
            self._users.pop(id(user), None)
        if is_last:
            self._end()

    def _end(self) -> None:
        """Let go of everything, once; return when that was done."""
        with self._ending.held():
            if not self._is_over:
                try:
                    self._let_go()
                finally:
                    self._is_over = True

    def close(self) -> None:
        """Close every receiver that shares it, and refuse more of them."""
        self._closed = True
        for user in self.users:
            user.close()
        if not self._is_over:
            do_undisturbed(self._end)

    def forget(self) -> None:
        """Remove the name for good, and close every receiver that shares it. Touches files.

        `ClosedResourceError`, and nothing is removed, if they were closed meanwhile: the name may be somebody else's.
        """
        assert self.cursor is not None
        with self._lock.held():
            if self._closed:
                raise ClosedResourceError
            with storage_errors(self.store.path, f"consumer {self.cursor.name!r} cannot be removed"):
                self.store.cursors.remove(self.cursor)
            self._closed = self._forgotten = True
        self.close()

    # How often the position reaches the disk

    @property
    def is_counted(self) -> bool:
        """Whether every message that moves the position has to be told."""
        return self._flush is not None and self._flush.counts

    @property
    def must_settle_position(self) -> bool:
        """Whether whoever may wait hands a message out only after `settle_position`."""
        return self._flush is not None and self._flush.waits

    def counting(self, take: Callable[[], object]) -> Callable[[], object]:
        """Return what takes a message, or a record, and tells so."""
        flush = self._flush
        if flush is None or not flush.counts:
            return take

        def take_and_tell() -> object:
            flush.check()
            item = take()
            if item is not NOTHING:
                self.took(1)
            return item

        return take_and_tell

    def take_many(self, most: int) -> list[object]:
        """Take up to so many messages."""
        self.check_position()
        items = self.reader.take_many(most)
        self.took(len(items))
        return items

    def check_position(self) -> None:
        """Raise, once, that the position could not be flushed."""
        if self._flush is not None:
            self._flush.check()

    def took(self, messages: int) -> None:
        """So many messages were taken."""
        if self._flush is not None and self._flush.counts and messages:
            self._flush.took(messages)

    def settle_position(self) -> None:
        """Wait until the position is on disk; what goes wrong is told by the next one who takes something."""
        if self._flush is not None:
            self._flush.settle()

    def settle_position_soon(self) -> None:
        """Do so in another thread, if need be: somebody who may not wait has taken something."""
        if self._flush is not None and self._flush.waits:
            self._flush.flush_soon()

    def _let_go(self) -> None:
        self.reader.close()
        if self._flush is not None:
            self._flush.close()
        if self.cursor is not None and not self._forgotten:
            self.store.cursors.close(self.cursor)
        self._on_close(self)

    def abandon(self) -> None:
        """Close the receivers in a forked child; cursor and kernel lock are the parent's."""
        # The reader stays: a thread that the child has not got may have been inside it.
        users, self._users = self._live_users(), {}
        self._closed = self._is_over = True
        for user in users:
            user.detach()

    def __del__(self) -> None:
        """Release the name: every receiver and every delivery that used it was deleted, and none was closed."""
        if self._is_over or not self._owns_name or sys.is_finalizing():
            return
        self._closed = True
        if self.cursor is None or not self.store.cursors.is_locked:
            self._end()
        else:  # perhaps by this thread, which the garbage collector has interrupted
            _thread.start_new_thread(self._end, ())

    def move(self, place: Mark) -> bool:
        """Stand at another place, on purpose, and tell whether it is still there; if not, stand where we stood.

        No control record of a transaction speaks of this position any more.
        """
        if place.offset < self.store.control.oldest_offset:
            return False  # removed since it was looked for
        before = None if self.cursor is None else self.cursor.position
        self.reader.move(place)
        if not self.is_held():  # in this moment; what was there before is there still, as nothing goes for one behind
            if before is not None:
                self.reader.move(Mark(before.offset, before.sequence, before.time))
            return False
        if self.cursor is not None and self.cursor.origin is not None:
            self.cursor.origin = None  # not before it has moved: killed in between, the position is that of the record
        return True

    def scout(self) -> LogReader:
        """Return a reader at the same place that moves nothing."""
        scout = self._new_reader(None, self.reader.stop)
        scout.stand_beside(self.reader)
        return scout

    def _new_reader(self, cursor: Cursor | None, stop: Mark | None) -> LogReader:
        reader = self._open_reader(cursor, stop)
        if self.cursor is not None:
            self.store.adopt(reader)
        return reader

    def has_news(self) -> bool:
        """Tell whether a look at the log would find something, if only its end."""
        reader = self.reader
        if reader.stop is None and not reader.native.may_have_more:
            return False  # asked before and after every sleep
        return reader.native.offset != self.store.control.write_offset or self.has_ended()

    def has_ended(self) -> bool:
        """Return whether everything that will ever come has been taken.

        `StorageError` if the log ends before what was taken: the control page is damaged.
        """
        offset, stop = self.reader.native.offset, self.reader.stop
        if offset > (end := self.store.control.write_offset):  # loaded after it, and never smaller
            raise self.store.control.damaged(f"the log ends at {end}, and was read up to offset {offset}")
        return self.store.has_ended(offset) if stop is None else offset >= stop.offset

    @property
    def is_complete(self) -> bool:
        """Whether nothing will come that is not there already."""
        return self.reader.stop is not None or self.store.control.sealed

    @property
    def end(self) -> Mark:
        """Behind the last message that is there to be taken."""
        return self.reader.stop or self.store.places.latest()

    def wait(self, has_news: Callable[[], bool]) -> Coroutine[object, object, None]:
        """Sleep until there may be news."""
        if self.options.spin:
            return self._watch_and_wait(has_news)
        return self.arrivals.wait(has_news, self.options.poll_interval)

    async def _watch_and_wait(self, has_news: Callable[[], bool]) -> None:
        if not await self._watch_in_turns(has_news):
            await self.arrivals.wait(has_news, self.options.poll_interval)

    async def _watch_in_turns(self, has_news: Callable[[], bool]) -> bool:
        """Watch for as long as the options say, and let other tasks run in between; tell whether there are news."""
        until = time.monotonic() + self.options.spin
        while (left := until - time.monotonic()) > 0:
            if self.watch(min(left, _TURN)) or has_news():
                return has_news()
            await checkpoint()
        return False

    def sleep(self, has_news: Callable[[], bool], until: float | None) -> bool:
        """Let the thread sleep until there are news, or the monotonic clock says *until*; tell whether there are."""
        return self.arrivals.sleep(has_news, until, self.options.poll_interval)

    def watch(self, seconds: float) -> bool:
        """Watch for another message for so long, without sleeping; tell whether there is one."""
        return self.arrivals.watch(self.reader.native.offset, seconds)

    def watch_until(self, has_news: Callable[[], bool], until: float | None) -> bool:
        """Watch as the options say, and at least briefly, but not beyond *until*; tell whether there is a message."""
        # A sender at full speed needs less time than going to sleep does, and waking us.
        if not self.options.spin:
            return self.watch(_BRIEFLY)
        end = time.monotonic() + self.options.spin
        end = end if until is None else min(end, until)
        while (left := end - time.monotonic()) > 0 and not has_news():
            if self.watch(min(left, _SLICE)):
                return True
        return False

    def hold_on(self, start: Start) -> None:
        """Stand where a new name begins for good: if that was removed in this moment, look for it again."""
        try:
            while not self.is_held():
                self.reader.move(self.find(start, "start"))
        except BaseException:
            self.forget()
            raise

    def is_held(self) -> bool:
        """Tell whether what lies here stays until it was taken, having just been put here; False if it is gone."""
        return self.cursor is None or self.store.hold(self.reader.native.offset)

    def find(self, start: Start, argument: str) -> Mark:
        """Resolve a place. May read an index."""
        with self._reading():
            return find_place(self.store, start, argument)

    def _reading(self) -> storage_errors:
        return storage_errors(self.store.path, "it cannot be read")
