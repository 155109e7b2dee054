"""What children do: send, receive and pass things on."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from random import Random
from threading import Barrier

import anyio
from anyio import EndOfStream

from filechannel import (
    ChannelOptions,
    DataExpiredError,
    Durability,
    FileChannel,
    FileChannelError,
    Sender,
    StorageError,
    blocking,
    open_channel,
)
from filechannel._storage.durability.flusher import Flusher
from filechannel._wakeup import waiters, watchdog
from tests.backends import BACKENDS
from tests.processes.hooked_files import die, hooked, stop_here
from tests.processes.order_checker import Accepted, Message, OrderChecker, batches
from tests.processes.workers import TIMEOUT, Link
from tests.storage.faults import input_output_error
from tests.storage.handling import handle

SMALL = ChannelOptions(segment_size=4096)


async def create(path: Path, options: ChannelOptions = SMALL) -> None:
    """Make a channel of raw bytes."""
    async with open_channel(path, bytes, options=options):
        pass


async def write(link: Link, path: Path, writer: int, total: int, seed: int) -> None:
    """Send so many messages as fast as possible, when the test starts it."""
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        for batch in batches(writer, Random(seed), stop=total):
            if len(batch) == 1:
                await tx.send(batch[0])
            else:
                await tx.send_many(batch)


async def read(link: Link, path: Path, total: int) -> tuple[str, dict[int, int]]:
    """Receive so many messages, check each, and return a digest of their order."""
    checker = OrderChecker()
    async with open_channel(path, bytes, create=False) as channel:
        with channel.replay(stop=None) as rx:
            link.meet()
            while checker.total < total:
                for payload in await rx.receive_many(1000):
                    checker.add(payload)
    return checker.digest, checker.counts


async def read_to_the_end(link: Link, path: Path) -> tuple[str, dict[int, int]]:
    """Receive until the channel is sealed, checking each message."""
    checker = OrderChecker()
    async with open_channel(path, bytes, create=False) as channel:
        with channel.replay(stop=None) as rx:
            link.meet()
            try:
                while True:
                    for payload in await rx.receive_many(1000):
                        checker.add(payload)
            except EndOfStream:
                return checker.digest, checker.counts


async def send_for_ever(link: Link, path: Path, accepted: Path, writer: int, seed: int) -> None:
    """Send until the test ends it, reporting what was accepted; flush and reopen the channel now and then."""
    random, reported = Random(seed), Accepted(accepted, writer)
    source = batches(writer, random)
    link.send("ready")
    while not link.has_message:
        async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
            for _ in range(random.randrange(1, 200)):
                batch = next(source)
                if len(batch) == 1:
                    await tx.send(batch[0])
                else:
                    await tx.send_many(batch)
                reported.count += len(batch)
                if link.has_message:
                    break
                if random.random() < 0.02:
                    await channel.flush()


async def pass_on(link: Link, path: Path, place: int, ring: int, rounds: int) -> int:
    """Send the next number whenever one arrives that is for this index of the ring; return how many there were."""
    passed = 0
    async with open_channel(path, int, create=False) as channel, channel.sender() as tx:
        with channel.replay(stop=None) as rx:
            link.meet()
            async for token in rx:
                if token >= rounds:
                    break
                if token % ring == place:
                    await tx.send(token + 1)
                    passed += 1
    return passed


def without_watchdog() -> None:
    """Turn the watchdog off in this process, so that no waiter rescans after a lost wakeup."""
    watchdog._RESCAN_SECONDS = 3600.0


async def answer(link: Link, path: Path, polls: bool = False) -> int:
    """Send back every number that comes, until the channel of the questions is sealed."""
    answers = 0
    assert polls == waiters.POLL
    without_watchdog()
    async with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:
        with ping.replay(stop=None) as rx, pong.sender() as tx:
            link.meet()
            async for number in rx:
                await tx.send(number)
                answers += 1
    return answers


async def ask(link: Link, path: Path, rounds: int, polls: bool = False) -> None:
    """Ask, wait for the answer, ask again; then seal the channel of the questions."""
    assert polls == waiters.POLL
    without_watchdog()
    async with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:
        with ping.sender() as tx, pong.replay(stop=None) as rx:
            link.meet()
            for number in range(rounds):
                await tx.send(number)
                assert await rx.receive() == number
            await ping.seal()


def answer_in_threads(link: Link, path: Path, names: list[str]) -> None:
    """Answer from several event loops in several threads, each of which sends back every number."""
    without_watchdog()
    ready = Barrier(len(names) + 1)

    async def answer_here() -> None:
        async with open_channel(path / "ping", int) as ping, open_channel(path / "pong", int) as pong:
            with ping.replay(stop=None) as rx, pong.sender() as tx:
                ready.wait()
                async for number in rx:
                    await tx.send(number)

    loops = [BACKENDS[name] for name in names]
    with ThreadPoolExecutor(len(loops)) as threads:
        running = [
            threads.submit(anyio.run, answer_here, backend=name, backend_options=options) for name, options in loops
        ]
        ready.wait()
        link.send("ready")
        for each in running:
            each.result()


async def wait_in_the_slot_of_a_dead_waiter(link: Link, path: Path, slot: str) -> bytes:
    """Get the slot of a process that died waiting, with a pause while its FIFO still exists; then
    wait for a message.
    """
    without_watchdog()
    files = hooked(_nothing_happens)

    def hook(call: str, name: str) -> None:
        if call == "unlink" and name == slot:
            files.hook = _nothing_happens
            link.meet()

    files.hook = hook
    async with open_channel(path, bytes, create=False) as channel:
        assert channel._store.processes is not None
        assert channel._store.processes.slot == int(slot)
        with channel.replay("latest", None) as rx:
            link.send("opened")
            return await rx.receive()


async def wait_for_one(link: Link, path: Path) -> bytes:
    """Wait for what is sent from now on, and return it."""
    async with open_channel(path, bytes, create=False) as channel:
        with channel.replay("latest", None) as rx:
            link.send("ready")
            return await rx.receive()


async def obey(link: Link, path: Path) -> None:
    """Execute the commands of the test one by one, and report each result: None, or an error. "end" ends it."""
    async with open_channel(path, bytes, create=False) as channel:
        await _obey(link, channel)


async def _obey(link: Link, channel: FileChannel[bytes]) -> None:
    with channel.sender() as tx:
        orders = {
            "send": tx.send,
            "flush": channel.flush,
            "seal": channel.seal,
            "purge": channel.purge,
            "configure": lambda durability: channel.configure(durability=durability),
        }
        link.send("ready")
        while (order := await link.receive_async())[0] != "end":
            name, *arguments = order
            try:
                await orders[name](*arguments)
                link.send(None)
            except FileChannelError as error:
                link.send(f"{type(error).__name__}: {error}")


async def obey_without_flushing(link: Link, path: Path) -> None:
    """The same in a process that flushes nothing unless the test asks for it."""
    Flusher.flush_finished_later = lambda _: None  # type: ignore[method-assign]
    await obey(link, path)


async def obey_until_a_flush_fails(link: Link, path: Path) -> None:
    """The same in a process in which the first flush of a segment reports to the test, waits for it, and fails."""

    def hook(call: str, name: str) -> None:
        if call == "flush" and name.endswith(".seg"):
            files.hook = _nothing_happens
            link.send("flushing")
            link.receive()
            raise input_output_error(Path(name))

    async with open_channel(path, bytes, create=False):
        pass  # which may flush what others left
    files = hooked(hook)
    await obey_without_flushing(link, path)


async def read_what_is_left(link: Link, path: Path) -> tuple[int, int]:
    """Receive until the channel is sealed, and return how many messages there were, and how many had been purged."""
    received = missed = 0
    checker = OrderChecker()
    async with open_channel(path, bytes, create=False) as channel:
        with channel.replay(stop=None) as rx:
            link.meet()
            while True:
                try:
                    record = await rx.receive_record()
                except DataExpiredError as error:
                    missed += error.missed
                    checker.skip()
                except EndOfStream:
                    return received, missed
                else:
                    assert record.sequence == received + missed, "a message that is not in its place"
                    checker.add(record.value)
                    received += 1


# Dying, and standing still


async def act_at(link: Link, path: Path, accepted: Path, writer: int, work: str, step: int, action: str) -> None:
    """Do a piece of work, and die or stop at its n-th call to the file system."""
    reported, steps = Accepted(accepted, writer), count()
    files = hooked(_nothing_happens)

    def hook(_call: str, _name: str) -> None:
        if next(steps) == step:
            {"die": die, "stop": stop_here}[action]()

    if work == "open":
        files.hook = hook
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        if work != "open":
            link.meet()
            files.hook = hook
        await WORKS[work](channel, tx, writer, reported)


async def _send(tx: Sender[bytes], writer: int, reported: Accepted, sizes: list[list[int]]) -> None:
    for size in sizes:
        first, total = reported.count, len(size)
        batch = [Message(writer, first + i, i, total).pack(padding) for i, padding in enumerate(size)]
        await (tx.send_many(batch) if total > 1 else tx.send(batch[0]))
        reported.count += total


async def _roll(_: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    await _send(tx, writer, reported, [[600]] * 8 + [[1500] * 4, [9000], [10], [4000], [700] * 9])


async def _allocate(_: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    await _send(tx, writer, reported, [[10], [1_500_000], [700_000] * 3, [10]])


async def _flush(channel: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    for _ in range(2):
        await _send(tx, writer, reported, [[1500] * 4, [10]])
        await channel.flush()


async def _open(_: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    await _send(tx, writer, reported, [[10]])


async def _configure(channel: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    for durability in (Durability.FSYNC, Durability.OS):
        await _send(tx, writer, reported, [[600] * 3, [10]])
        await channel.configure(durability=durability)


async def _purge(channel: FileChannel[bytes], tx: Sender[bytes], writer: int, reported: Accepted) -> None:
    for _ in range(2):
        await _send(tx, writer, reported, [[1500] * 4, [10]])
        await channel.purge()


WORKS = {
    "roll": _roll,
    "allocate": _allocate,
    "flush": _flush,
    "open": _open,
    "configure": _configure,
    "purge": _purge,
}


def _nothing_happens(_call: str, _name: str) -> None:
    pass


async def stop_in_a_roll(link: Link, path: Path, writer: int) -> None:
    """Send, and stop in the middle of a roll, with the writer lock; continue after SIGCONT."""
    files = hooked(_nothing_happens)

    def hook(call: str, name: str) -> None:
        if call == "replace" and name.startswith("new-"):
            files.hook = _nothing_happens
            stop_here()

    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        files.hook = hook
        numbers = range(20)
        for number in numbers:
            await tx.send(Message(writer, number, 0, 1).pack(600))


async def publish_and_die(link: Link, path: Path, payload: bytes) -> None:
    """Send one message, and die before any waiter is woken."""
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        link.meet()
        handle(channel._store.events.message_published, die)
        await tx.send(payload)


# Coming in


async def open_together(link: Link, directory: Path, rounds: int) -> None:
    """Make or open one channel after the other, each at the moment the test says, and send to it."""
    for number in range(rounds):
        me = link.meet()
        async with open_channel(directory / f"{number}", bytes, options=SMALL) as channel, channel.sender() as tx:
            for index in range(3):
                await tx.send(Message(me, index, 0, 1).pack())
            with channel.receiver(f"{me}") as rx:
                await rx.receive()


async def roll_together(link: Link, path: Path, me: int, rounds: int) -> None:
    """Send messages each of which needs a segment of its own, at the moment the test says."""
    async with open_channel(path, bytes, create=False) as channel, channel.sender() as tx:
        for number in range(rounds):
            link.meet()
            for index in range(3):
                await tx.send(Message(me, 3 * number + index, 0, 1).pack(4000))


def as_user(link: Link, user: int, groups: list[int], task: Callable[..., Awaitable[object]], *rest: object) -> object:
    """Do something as another user, with an umask that gives other users no permission."""
    os.umask(0o077)
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    return anyio.run(task, link, *rest)


async def make_and_obey(link: Link, path: Path, options: ChannelOptions) -> None:
    """Make a channel, have a consumer there, and do what the test says."""
    async with open_channel(path, bytes, options=options) as channel:
        with channel.receiver(f"user-{os.getuid()}"):
            await _obey(link, channel)


async def fail_to_open(link: Link, path: Path) -> str:
    """Return the error of a user who may not open a channel."""
    del link
    try:
        async with open_channel(path, bytes):
            return "opened"
    except StorageError as error:
        return str(error)


# Groups


def work_in_group(link: Link, path: Path, lease: float, restless: int | None = None) -> list[tuple[int, int]]:
    """Receive and ack until the channel is sealed and done; return each number with its attempt.

    With a seed, leave and join now and then, with outstanding messages.
    """
    random, done = Random(restless), list[tuple[int, int]]()
    with blocking.open_channel(path, int, create=False) as channel:
        rx = channel.group("workers", lease=lease)
        link.meet()
        while True:
            try:
                delivery = rx.receive_delivery(timeout=TIMEOUT)
            except EndOfStream:
                return done
            if restless is not None and random.random() < 0.02:
                rx.close()
                rx = channel.group("workers", lease=lease)
                continue
            done.append((delivery.value, delivery.attempt))
            delivery.ack()


def hold_in_group(link: Link, path: Path, lease: float, many: int) -> None:
    """Receive so many messages, do with each what the test says (ack, nack or extend), and report the result."""
    with blocking.open_channel(path, int, create=False) as channel, channel.group("workers", lease=lease) as rx:
        held = [rx.receive_delivery(timeout=TIMEOUT) for _ in range(many)]
        link.send([delivery.value for delivery in held])
        while True:
            call, index = link.receive()
            try:
                getattr(held[index], call)()
                link.send("done")
            except FileChannelError as error:
                link.send(type(error).__name__)


async def process_in_group(link: Link, path: Path, lease: float) -> int:
    """Process one message for as long as the test wants."""
    async with open_channel(path, int, create=False) as channel:
        with channel.group("workers", lease=lease) as rx:
            async with rx.processing() as item:
                link.send(item)
                await link.receive_async()
                return item


async def wait_in_group(link: Link, path: Path) -> tuple[int, int, float]:
    """Wait for one message, ack it, and return it with its attempt, and when it came."""
    without_watchdog()
    async with open_channel(path, int, create=False) as channel:
        with channel.group("workers") as rx:
            link.send("ready")
            delivery = await rx.receive_delivery()
            came = time.monotonic()
            delivery.ack()
            return delivery.value, delivery.attempt, came


def churn_in_group(link: Link, path: Path, acked: Path, me: int) -> None:
    """Receive, ack and nack in every way for ever, writing each number to a file before it is acked."""
    random = Random(me)
    with blocking.open_channel(path, int, create=False) as channel, acked.open("ab", buffering=0) as reported:
        rx = channel.group("workers", lease=60)
        link.send("ready")
        while True:
            items = [rx.receive_delivery()]
            with suppress(TimeoutError):
                while len(items) < random.randrange(1, 4):
                    items.append(rx.receive_delivery(timeout=0))
            random.shuffle(items)
            for delivery in items:
                if random.random() < 0.1:
                    delivery.nack()
                else:
                    reported.write(b"%d\n" % delivery.value)
                    delivery.ack()
                    reported.write(b"%d!\n" % delivery.value)
