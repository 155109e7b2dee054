"""Forking in the middle of everything: no deadlock in the child, and nothing taken from the parent."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from filechannel import ConsumerBusyError
from filechannel._format import PURE
from filechannel.blocking import open_channel
from tests.blocking.children import running
from tests.blocking.threads import until

FORKING = """
import asyncio, pickle, traceback
import filechannel

def in_child(work):
    "Run in a forked child, for not too long; its exit code is 0 if it did what it should."
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(30)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)

def check(child):
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"a child ended with {code}"

def locked_out(call):
    try:
        call()
    except ChannelLockedError as error:
        assert error.pid == os.getppid(), error
    else:
        raise AssertionError("opened")
"""

STORM = """
stop = threading.Event()
os_ = open_channel(path + "/os", int, options=ChannelOptions(segment_size=8192))
fsync = open_channel(path + "/fsync", int, options=ChannelOptions(durability=Durability.FSYNC))
interval = open_channel(path + "/interval", int, options=ChannelOptions(durability=Durability.interval(0.005)))
purged = open_channel(path + "/purged", int)
lazy = pickle.loads(pickle.dumps(os_))
channels = [os_, fsync, interval, lazy, purged]

def again_and_again(work):
    def run():
        while not stop.is_set():
            work()
    return threading.Thread(target=run, daemon=True)

def send(channel):
    with channel.sender() as tx:
        for number in range(20):
            tx.send(number)
            tx.send_many([number] * 10)
            tx.send_nowait(number)

def receive(channel):
    with channel.receiver("mine") as rx:
        for _ in range(100):
            try:
                rx.receive(timeout=0.001)
            except TimeoutError:
                pass

def open_and_close():
    name = str(os.getpid())
    with open_channel(path + "/other", int) as channel, channel.receiver(name) as rx, channel.sender() as tx:
        tx.send(1)
        rx.receive()
        rx.unsubscribe()
        channel.configure(durability=Durability.OS)

def with_a_loop():
    async def main():
        async with filechannel.open_channel(path + "/fsync", int) as channel:
            async with channel.sender() as tx, channel.receiver("loop") as rx:
                await tx.send(1)
                await rx.receive()
    asyncio.run(main())

def purge():
    os_.flush()
    fsync.flush()
    send(purged)
    purged.purge()

threads = [again_and_again(work) for work in (
    lambda: send(os_), lambda: send(fsync), lambda: send(lazy), lambda: send(interval), lambda: receive(os_),
    lambda: receive(fsync), open_and_close, with_a_loop, purge)]
for thread in threads:
    thread.start()

def use_everything():
    for channel in channels[:-1]:  # what is sent to the last one may be purged before it is received
        with channel.receiver(str(os.getpid()), start="latest") as rx, channel.sender() as tx:
            tx.send(os.getpid())
            while os.getpid() not in rx.receive_many(1000, timeout=20):
                pass
    for channel in channels:
        channel.close()
    open_and_close()

def be_refused():
    for channel in channels[:3]:
        locked_out(channel.sender)

children = []
for number in range(ROUNDS):
    children.append(in_child(be_refused if PURE else use_everything))
    if len(children) > 3:
        check(children.pop(0))
for child in children:
    check(child)
stop.set()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
for channel in channels:
    channel.close()
say("fine")
"""


@pytest.mark.parametrize("rounds", [15, pytest.param(600, marks=pytest.mark.soak)])
def test_forking_while_other_threads_are_in_the_middle_of_everything(path: Path, rounds: int) -> None:
    """Children that send and receive end well, again and again, whatever the parent's threads were doing."""
    with running(FORKING + STORM.replace("ROUNDS", str(rounds)), path) as child:
        child.expect("fine")
        child.end()


ORPHAN = """
channel = open_channel(path, int)
rx, tx = channel.receiver("mine"), channel.sender()
tx.send(1)
child = os.fork()
if not child:
    say(str(os.getpid()))
    sys.stdin.readline()
    os._exit(0)
with channel._store.log.writing():
    time.sleep(3600)
"""


def test_the_child_of_a_killed_process_keeps_nothing_of_it(path: Path) -> None:
    """When a parent is killed its slot, writer lock and names are free, although a child that it forked is alive."""
    with running(ORPHAN, path) as parent:
        assert parent.process.stdout is not None
        child = int(parent.process.stdout.readline())
        try:
            os.kill(parent.process.pid, signal.SIGKILL)
            os.waitpid(parent.process.pid, 0)
            parent.process.returncode = -signal.SIGKILL
            os.kill(child, 0)
            with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver("mine") as rx:
                assert [writer.pid for writer in channel.statistics().writers] == [os.getpid()]
                tx.send(2, timeout=30)
                assert [rx.receive(), rx.receive()] == [1, 2]
        finally:
            os.kill(child, signal.SIGKILL)


PARENT = """
with open_channel(path, int) as channel, channel.receiver("mine") as rx, channel.sender() as tx:
    tx.send(1)
    child = in_child(lambda: None)
    check(child)
    say("forked")
    sys.stdin.readline()
    tx.send(2)
    assert [rx.receive(), rx.receive()] == [1, 2]
say("fine")
"""


def test_a_parent_keeps_what_it_has(path: Path) -> None:
    """A forked child that ends, however it was closed, releases nothing that its parent holds."""
    with running(FORKING + PARENT, path) as parent:
        parent.expect("forked")
        if not PURE:
            with open_channel(path, int) as channel:
                assert len(channel.statistics().writers) == 2
                with pytest.raises(ConsumerBusyError) as failure:
                    channel.receiver("mine")
                assert failure.value.pid == parent.process.pid
        parent.resume()
        parent.expect("fine")
        parent.end()


LOOP = """
async def main():
    async with filechannel.open_channel(path, int) as channel:
        async with channel.sender() as tx, channel.receiver() as rx:
            waiting = asyncio.create_task(rx.receive())
            await asyncio.sleep(0)

            async def in_the_child():
                await tx.send(1)
                async with channel.receiver("child", start="latest") as own:
                    await tx.send(2)
                    assert await own.receive() == 2
                await channel.aclose()

            async def refused():
                try:
                    await tx.send(1)
                except ChannelLockedError:
                    return
                raise AssertionError("sent")

            child = in_child(lambda: asyncio.run(refused() if PURE else in_the_child()))
            await asyncio.to_thread(check, child)
            if PURE:
                tx.send_nowait(1)
            assert await waiting == 1

asyncio.run(main())
say("fine")
"""


def test_forking_in_an_event_loop(path: Path) -> None:
    """A child may run a loop of its own, and its sends wake the task that waits in the parent's."""
    with running(FORKING + LOOP, path) as child:
        child.expect("fine")
        child.end()


OPTIONS = """
with open_channel(path, int, options=ChannelOptions(durability=Durability.FSYNC, spin=0.001)) as channel:
    with channel.sender() as tx, channel.receiver() as rx:
        tx.send(1)
        channel.configure(durability=Durability.OS)
        check(in_child(lambda: tx.send(2)))
        assert rx.receive_many(9) == [1, 2]
say("fine")
"""


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_child_uses_the_current_options_of_the_channel(path: Path) -> None:
    """A forked child opens the channel with options that were changed after the parent opened it."""
    with running(FORKING + OPTIONS, path) as child:
        child.expect("fine")
        child.end()


UNUSED = """
import gc, warnings
warnings.simplefilter("error")
channel = open_channel(path, int)
tx, rx = channel.sender(), channel.receiver()

def drop():
    global channel, tx, rx
    rx.close()
    tx.close()
    del channel, tx, rx
    gc.collect()

check(in_child(drop))
tx.send(1)
assert rx.receive() == 1
channel.close()
say("fine")
"""


def test_a_child_need_not_close_what_it_did_not_use(path: Path) -> None:
    """A child drops what it inherited and did not use without a warning, and the parent continues."""
    with running(FORKING + UNUSED, path) as child:
        child.expect("fine")
        child.end()
        assert child.process.stderr is not None


def test_a_killed_process_gives_its_names_up(path: Path) -> None:
    """A consumer name is free soon after its owner was killed."""
    program = "channel = open_channel(path, int)\nrx = channel.receiver('mine')\nsay('ready')\ntime.sleep(3600)\n"
    with running(program, path) as owner:
        owner.expect("ready")
        owner.process.kill()
        owner.process.wait()

        def is_free() -> bool:
            try:
                with open_channel(path, int) as channel:
                    channel.receiver("mine").close()
            except ConsumerBusyError:
                return False
            return True

        until(is_free)
