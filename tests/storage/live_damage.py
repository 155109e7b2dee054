"""Overwrite one word of a mapped file while a channel is in use, and run every operation on it.

`python -m tests.storage.live_damage all` tries every word, `... 200 SEED` tries so many, and `... control:128:4 plain`
those whose name begins so. Each case runs in separate processes, so that a hang or a signal is seen; what went wrong is
written to standard output. With SHOW=1 also every error that was raised as it should be.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from anyio import ClosedResourceError, EndOfStream, WouldBlock

from filechannel import Capacity, ChannelOptions, Durability, FileChannelError
from filechannel._format import PURE
from filechannel._format.layout import (
    CHECKPOINT_SLOTS,
    CURSOR_ORIGIN,
    GROUP_ENTRY_SIZE,
    GROUP_RING,
    PROCESS_SLOT_SIZE,
    PROCESS_SLOTS,
)
from filechannel.blocking import open_channel

DEADLINE = int(os.environ.get("FILECHANNEL_DEADLINE", "60"))
"""Seconds that a case may take: more is a hang."""
SENT = 40
MARKERS = range(1000, 1100)
EXPECTED = (FileChannelError, ClosedResourceError, EndOfStream, WouldBlock, TimeoutError)
VALUES: dict[str, Callable[[int, int], int]] = {
    "0": lambda _, top: 0,
    "1": lambda _, top: 1,
    "half": lambda _, top: (top + 1) // 2,
    "most": lambda _, top: top,
    "2^31": lambda _, top: 1 << 31,
    "2^32-1": lambda _, top: (1 << 32) - 1,
    "one less": lambda old, top: old - 1 & top,
    "one more": lambda old, top: old + 1 & top,
}
OPTIONS = {
    "plain": ChannelOptions(segment_size=4096),
    "limited": ChannelOptions(segment_size=4096, capacity=Capacity(max_messages=500)),
    "fsync": ChannelOptions(segment_size=4096, durability=Durability.FSYNC),
}


@dataclass(frozen=True)
class Case:
    """One word and what it becomes."""

    file: str
    position: int
    width: int
    value: str
    options: str

    def __str__(self) -> str:
        return f"{self.file}:{self.position}:{self.width}:{self.value}:{self.options}"


def _positions() -> Iterator[tuple[str, int]]:
    for position in [*range(0, 1536, 4), *(slot + at for slot in CHECKPOINT_SLOTS for at in range(0, 56, 4))]:
        yield "control", position
    for slot in range(4):
        for at in range(0, PROCESS_SLOT_SIZE, 4):
            yield "control", PROCESS_SLOTS + slot * PROCESS_SLOT_SIZE + at
    for name in ("consumers/single.cursor", "consumers/acked.cursor", "consumers/many.group"):
        for position in range(0, CURSOR_ORIGIN + 64, 4):
            yield name, position
    for position in range(512, 704, 4):
        yield "consumers/many.group", position
    for entry in range(4):
        for at in range(0, 40, 4):
            yield "consumers/many.group", GROUP_RING + entry * GROUP_ENTRY_SIZE + at


def cases() -> list[Case]:
    """Return everything that can be tried."""
    found: list[Case] = []
    for file, position in _positions():
        for width in (4, 8):
            if position % width:
                continue
            for value in VALUES:
                if width == 8 or not value.startswith("2^"):
                    found += [Case(file, position, width, value, options) for options in OPTIONS]
    return found


class _Steps:
    """Runs operations in order; a word shared with the parent says which one is running."""

    def __init__(self, note: mmap.mmap, who: str) -> None:
        self._note = note
        self._who = who
        self.wrong: list[str] = []
        self.raised: list[str] = []

    def do(self, name: str, call: Callable[[], Any]) -> Any:
        """Run one; a documented error is fine."""
        step = f"{self._who}: {name}"
        self._note[:64] = step.encode()[:64].ljust(64)
        started = time.monotonic()
        try:
            return call()
        except EXPECTED as error:
            self.raised.append(f"{name}: {type(error).__name__}: {error}")
        except BaseException as error:
            self.wrong.append(f"{step}: {type(error).__name__}: {error}")
        finally:
            if time.monotonic() - started > 10:
                self.wrong.append(f"{step} took {time.monotonic() - started:.1f} s")
        return None

    def check(self, name: str, found: object) -> None:
        """Note a message that was never sent."""
        for item in found if isinstance(found, list) else [found]:
            if item is not None and item not in range(SENT) and item not in MARKERS:
                self.wrong.append(f"{self._who}: {name} returned {item!r}")


def _use(steps: _Steps, receiver: Any, name: str, *, member: bool = False) -> None:
    taken = steps.do(f"{name} receive_delivery", lambda: receiver.receive_delivery(timeout=0.05))
    if taken is not None:
        steps.check(name, taken.value)
        if member:
            steps.do(f"{name} extend", taken.extend)
        steps.do(f"{name} delivery.nack", taken.nack)
    taken = steps.do(f"{name} receive_delivery", lambda: receiver.receive_delivery(timeout=0.05))
    if taken is not None:
        steps.do(f"{name} delivery.ack", taken.ack)
    steps.check(name, steps.do(f"{name} receive_many", lambda: receiver.receive_many_nowait(3)))
    steps.do(f"{name} nack", lambda: receiver.nack(1))
    steps.do(f"{name} ack", lambda: receiver.ack(1))
    steps.check(name, steps.do(f"{name} peek", lambda: receiver.peek(3)))
    steps.do(f"{name} statistics", receiver.statistics)
    steps.do(f"{name} unack_count", lambda: receiver.unack_count)


def _neighbour(path: Path, note: mmap.mmap, ready: int, go: int, result: int) -> None:
    """Be a member of the group, with an outstanding message, and use the channel when the test asks for it."""
    steps = _Steps(note, "neighbour")
    with open_channel(path, int) as channel:
        member = channel.group("many")
        held = member.receive_delivery(timeout=30)
        tx = channel.sender()
        os.write(ready, b"r")
        os.read(go, 1)
        steps.do("ack held", held.ack)
        steps.do("send", lambda: tx.send(MARKERS[3], timeout=0.5))
        _use(steps, member, "member", member=True)
        steps.do("close member", member.close)
        steps.do("close", channel.close)
    os.write(result, "\n".join(steps.wrong).encode())


def _overwrite(path: Path, case: Case) -> bool:
    with open(path / case.file, "r+b") as file:
        with mmap.mmap(file.fileno(), 0) as words:
            code, top = ("<I", (1 << 32) - 1) if case.width == 4 else ("<Q", (1 << 64) - 1)
            old = struct.unpack_from(code, words, case.position)[0]
            new = VALUES[case.value](old, top)
            struct.pack_into(code, words, case.position, new)
            return bool(new != old)


def _use_channel(path: Path, note: mmap.mmap, damage_now: Callable[[], bool], result: int) -> None:
    steps = _Steps(note, "main")
    with open_channel(path, int) as channel:
        tx, single, acked, many = (
            channel.sender(),
            channel.receiver("single"),
            channel.ack_receiver("acked"),
            channel.group("many"),
        )
        held, acked_one = many.receive_delivery(timeout=30), acked.receive_delivery(timeout=30)
        single.receive(timeout=30)
        damage_now()
        for number in range(2):
            steps.do("send", lambda number=number: tx.send(MARKERS[number], timeout=0.5))
        steps.do("send_many", lambda: tx.send_many([MARKERS[2]] * 3, timeout=0.5))
        steps.check("single", steps.do("single receive", lambda: single.receive(timeout=0.05)))
        steps.check("single", steps.do("single receive_many", lambda: single.receive_many_nowait(100)))
        steps.do("extend held", held.extend)
        steps.do("ack held", held.ack)
        steps.do("ack acked", acked_one.ack)
        joined = steps.do("join", lambda: channel.group("many"))
        for name, receiver, member in (("acked", acked, False), ("many", many, True), ("joined", joined, True)):
            if receiver is not None:
                _use(steps, receiver, name, member=member)
        steps.do("statistics", channel.statistics)
        steps.do("consumers", channel.consumers)
        steps.do("flush", channel.flush)
        steps.do("replay", lambda: _replay(steps, channel))
        steps.do("new receiver", lambda: channel.receiver("new").close())
        for name, closing in (
            ("single", single),
            ("acked", acked),
            ("many", many),
            ("joined", joined),
            ("channel", channel),
        ):
            if closing is not None:
                steps.do(f"close {name}", closing.close)
    os.write(result, "\n".join(steps.wrong).encode())
    if os.environ.get("SHOW"):
        _say(*(f"    {line}" for line in steps.raised))


def _replay(steps: _Steps, channel: Any) -> None:
    with channel.replay() as replay:
        steps.check("replay", replay.receive_many_nowait(1000))


def run(case: Case, root: Path) -> list[str]:
    """Try a case and return what went wrong."""
    path = Path(tempfile.mkdtemp(dir=root)) / "channel"
    note = mmap.mmap(-1, 64)
    pipes = [os.pipe() for _ in range(4)]
    (ready, said_ready), (go, say_go), (result, write_result), (theirs, write_theirs) = pipes
    with _forked(lambda: _prepare(path, case)):
        pass

    def damage_now() -> bool:
        if not PURE:
            os.read(ready, 1)
        return _overwrite(path, case)

    wrong: list[str] = []
    try:
        # One process at a time has a channel open without the C core.
        neighbour = None if PURE else _fork(lambda: _neighbour(path, note, said_ready, go, write_theirs))
        main = _fork(lambda: _use_channel(path, note, damage_now, write_result))
        wrong += _wait(main, note)
        os.write(say_go, b"g")
        if neighbour is not None:
            wrong += _wait(neighbour, note)
        os.close(write_result)
        os.close(write_theirs)
        wrong += [line for pipe in (result, theirs) for line in os.read(pipe, 65536).decode().splitlines()]
    finally:
        for pipe in (ready, said_ready, go, say_go, result, theirs):
            os.close(pipe)
        shutil.rmtree(path.parent)
    return wrong


def _prepare(path: Path, case: Case) -> None:
    with open_channel(path, int, options=OPTIONS[case.options]) as channel:
        with channel.sender() as tx:
            tx.send_many(range(SENT))
        for opened in (channel.receiver("single"), channel.ack_receiver("acked"), channel.group("many")):
            opened.close()


def _fork(call: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(DEADLINE)
        call()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


@contextmanager
def _forked(call: Callable[[], object]) -> Generator[None]:
    child = _fork(call)
    yield
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise RuntimeError("the channel could not be prepared")


def _wait(child: int, note: mmap.mmap) -> list[str]:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not code:
        return []
    why = "hung" if code == -signal.SIGALRM else f"ended with {code}"
    return [f"{why} in {bytes(note[:64]).decode(errors='replace').strip()}"]


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


def main() -> None:
    """Try what the arguments say, and exit with 1 if something went wrong."""
    everything = cases()
    if sys.argv[1] == "all":
        chosen = everything
    elif ":" in sys.argv[1]:
        names, options = sys.argv[1], sys.argv[2:] or list(OPTIONS)
        chosen = [case for case in everything if str(case).startswith(names) and case.options in options]
    else:
        chosen = Random(int(sys.argv[2])).sample(everything, int(sys.argv[1]))
    failed = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as root:
        for case in chosen:
            if os.environ.get("SHOW"):
                _say(str(case))
            wrong = run(case, Path(root))
            failed += bool(wrong)
            _say(*(f"{case}: {line}" for line in wrong))
    _say(f"{len(chosen)} words overwritten, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
