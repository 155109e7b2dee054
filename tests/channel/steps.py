"""Consume, transform, produce in steps, in processes that die: run as a program, it kills them and checks the rest.

Numbers pass two stages, a chain of three channels. What each step makes of its inputs is fixed: no output, one or
several. So whatever happened, the last channel contains exactly what was made of the numbers that were received, in
order, and once a process has run to the end, of all of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import CodeType, FrameType

from filechannel import ChannelOptions, Durability, Retention
from filechannel._storage import open_stores
from filechannel.blocking import AckReceiver, FileChannel, Sender, open_channel, transaction
from tests.storage.deaths import Counts, die_at_each_step, die_in_child
from tests.storage.dying import DyingFiles

FIRST, SECOND = "first", "second"
TRACED = ("_channel", "_storage", "blocking.py")
NOT_TRACED = ("control.py", "layout.py")


def made_of(number: int) -> list[int]:
    """Return what a stage makes of a number."""
    return [number * 10 + index for index in range((0, 1, 1, 3)[number % 4])]


def made_of_all(numbers: list[int]) -> list[int]:
    """Return what a stage makes of numbers, in order."""
    return [output for number in numbers for output in made_of(number)]


class Chain:
    """Three channels, and the consumers that pass numbers on from one to the next."""

    def __init__(self, path: Path, durability: Durability = Durability.OS, *, thrifty: bool = False) -> None:
        """*thrifty*: consumed messages may be reclaimed from the channel in the middle."""
        self._stack = ExitStack()
        keep = Retention(after_consumed="keep")  # everything is compared in the end
        options = ChannelOptions(segment_size=4096, durability=durability, retention=keep)
        in_the_middle = replace(options, retention=Retention()) if thrifty else options
        self.channels: list[FileChannel[int]] = [
            self._stack.enter_context(open_channel(path / name, int, options=in_the_middle if name == "b" else options))
            for name in "abc"
        ]
        a, b, c = self.channels
        self.subscription: Sender[int] = self._stack.enter_context(a.sender())
        self._hops: list[tuple[AckReceiver[int], Sender[int]]] = []
        for name, channel, target in ((FIRST, a, b), (SECOND, b, c)):
            rx = self._stack.enter_context(channel.ack_receiver(name))
            self._hops.append((rx, self._stack.enter_context(target.sender())))

    def step(self, hop: int, most: int) -> bool:
        """Pass some numbers on; return whether there were any."""
        rx, tx = self._hops[hop]
        with transaction(rx, tx) as step:
            numbers = rx.receive_many_nowait(most)
            step.send_many(made_of_all(numbers))
        return bool(numbers)

    def finish(self) -> None:
        """Run until there is nothing left."""
        for hop in (0, 1):
            while self.step(hop, 7):
                pass

    def purge(self) -> None:
        """Run until there is nothing left, and purge the channel in the middle: both stages know their positions
        anyway.
        """
        self.finish()
        self.channels[1].purge()

    def check(self, sent: int) -> int:
        """What is there was made of what was taken, once and in order; return how many numbers were sent."""
        a, b, c = self.contents()
        assert a == list(range(len(a))), a
        assert len(a) >= sent, f"{sent - len(a)} numbers are lost"
        middle = self.channels[1].statistics()
        first = middle.next_sequence - middle.messages  # those before it were purged
        assert made_of_all(a)[first : middle.next_sequence] == b, (a, b)
        assert made_of_all(made_of_all(a)[: middle.next_sequence])[: len(c)] == c, (b, c)
        return len(a)

    def check_finished(self) -> None:
        """All of it was taken."""
        a, _, c = self.contents()
        assert self.channels[1].statistics().next_sequence == len(made_of_all(a))
        assert c == made_of_all(made_of_all(a)), (a, c)

    def contents(self) -> list[list[int]]:
        """Return what is in each channel."""
        return [list(channel.replay()) for channel in self.channels]

    def close(self) -> None:
        """Close everything."""
        self._stack.close()


@contextmanager
def chain(path: Path, durability: Durability) -> Iterator[Chain]:
    """Open a chain for a `with` block."""
    opened = Chain(path, durability)
    try:
        yield opened
    finally:
        opened.close()


def check(path: Path, durability: Durability, sent: int) -> int:
    """Check that nothing is lost or duplicated, now and after running to the end; return how many were sent."""
    with chain(path, durability) as it:
        sent = it.check(sent)
        it.finish()
        it.check(sent)
        it.check_finished()
        return sent


# Death at every step


def _scenario(path: Path, durability: Durability, counts: Counts) -> None:
    with chain(path, durability) as it:
        for _ in range(2):
            for size in (1, 3, 8):
                first = counts["sent"]
                it.subscription.send_many(range(first, first + size))
                counts["sent"] = first + size
                it.step(0, 2)
                it.step(1, 5)
        it.channels[1].flush()
        it.step(0, 4)
        it.purge()
        first = counts["sent"]
        it.subscription.send_many(range(first, first + 8))
        counts["sent"] = first + 8
        it.step(0, 100)
        it.step(1, 100)


def die_at_every_call(directory: Path, durability: Durability, *, each: bool) -> int:
    """Kill it before each of its calls to the operating system, or before the first of every kind; return how often."""

    def live(last: int) -> Counts:
        counts, path = Counts(), directory / str(last)
        files = DyingFiles(last, counts)

        def work() -> None:
            open_stores.Files = lambda: files  # type: ignore[assignment, misc]
            _scenario(path, durability, counts)

        die_in_child(work)
        check(path, durability, counts["sent"])
        shutil.rmtree(path)
        return counts

    return die_at_each_step(live, each=each)


class _Tracer:
    """Dies before the n-th line of our own code that is run."""

    def __init__(self, last: int) -> None:
        self._left = last
        self._known: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        code = frame.f_code
        if code not in self._known:
            parts = Path(code.co_filename).parts
            ours = "filechannel" in parts and any(part in parts for part in TRACED)
            self._known[code] = ours and parts[-1] not in NOT_TRACED
        return self._line if self._known[code] else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        self._left -= event == "line"
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def die_at_every_line(directory: Path, durability: Durability, first: int, stride: int) -> int:
    """Kill it before every so many-th line of a step, and of the first one of a process; return how often."""
    template, deaths = directory / "template", 0
    with chain(template, durability) as it:
        it.subscription.send_many(range(20))
        it.step(0, 3)
        it.step(1, 2)
    last = first
    while True:
        path = directory / str(last)
        shutil.copytree(template, path)

        def work() -> None:
            with chain(path, durability) as it:  # noqa: B023
                sys.settrace(_Tracer(last))  # noqa: B023
                it.step(0, 3)
                it.step(0, 2)
                sys.settrace(None)

        finished = die_in_child(work)
        check(path, durability, 20)
        shutil.rmtree(path)
        if finished:
            return deaths
        last, deaths = last + stride, deaths + 1


# Death at any moment


def _live(path: Path, durability: Durability, counts: Counts, random: Random) -> None:
    with chain(path, durability) as it:
        counts["sent"] = number = len(it.contents()[0])
        while True:
            size = random.choice((0, 1, 1, 5))
            it.subscription.send_many(range(number, number + size))
            number += size
            counts["sent"] = number
            it.step(random.choice((0, 0, 1)), random.choice((1, 2, 10)))
            if random.random() < 0.02:
                it.channels[random.randrange(3)].flush()
            if random.random() < 0.02:
                it.purge()


def die_at_any_moment(directory: Path, seed: int, times: int) -> int:
    """Kill it at random moments, so many times; return how often."""
    random, deaths = Random(seed), 0
    while deaths < times:
        path, counts = directory / str(deaths), Counts()
        durability = random.choice((Durability.OS, Durability.FSYNC))
        with chain(path, durability):
            pass
        for _ in range(8):
            life, lived = random.getrandbits(32), random.uniform(0.0, 0.05)
            die_in_child(lambda: _live(path, durability, counts, Random(life)), after=lived)  # noqa: B023
            deaths += 1
            # Every other time the next process finds what the dead one has left, with none in between.
            if random.random() < 0.5:
                counts["sent"] = check(path, durability, counts["sent"])
        check(path, durability, counts["sent"])
        shutil.rmtree(path)
    return deaths


def main(mode: str, *arguments: str) -> None:
    """Run one of them."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as directory:
        if mode == "any-moment":
            count = die_at_any_moment(Path(directory), int(arguments[0]), int(arguments[1]))
        else:
            durability = Durability.FSYNC if arguments[0] == "fsync" else Durability.OS
            if mode == "every-call":
                count = die_at_every_call(Path(directory), durability, each=arguments[1] == "each")
            else:
                count = die_at_every_line(Path(directory), durability, int(arguments[1]), int(arguments[2]))
    sys.stdout.write(f"{count}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
