"""Ctrl-C: a waiting thread is interrupted, and everything keeps working afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from filechannel._format import PURE
from filechannel.blocking import open_channel
from tests.blocking.children import HOLDER, running

INTERRUPTED = """
def interrupted(call):
    try:
        call()
    except KeyboardInterrupt:
        return
    raise AssertionError("it returned")

def announce(condition):
    def look():
        until(condition)
        say("waiting")
    threading.Thread(target=look).start()
"""

RECEIVING = """
with open_channel(path, int, options=ChannelOptions(durability=DURABILITY)) as channel:
    with channel.sender() as tx, channel.receiver() as rx:
        for call in (rx.receive, lambda: rx.receive(3600), rx.receive_record, lambda: rx.receive_many(5),
                     lambda: rx.receive_many(5, 3600.0), lambda: next(rx)):
            announce(lambda: channel.statistics().waiters == 1)
            interrupted(call)
            assert channel.statistics().waiters == 0
            tx.send(1)
            assert rx.receive(timeout=10) == 1
        assert rx.statistics().next_sequence == 6
say("fine")
"""

SENDING = """
with open_channel(path, int) as channel, channel.sender() as tx, channel.receiver() as rx:
    for call in (lambda: tx.send(1), lambda: tx.send(1, 3600), lambda: tx.send_many([1, 1])):
        announce(waits_for_the_writer_word)
        interrupted(call)
    say("interrupted")
    sys.stdin.readline()
    tx.send(2)
    assert rx.receive_many(9) == [2]
    channel.flush()
say("fine")
"""


@pytest.mark.parametrize("poll", ["", "1"], ids=["futex", "polling"])
@pytest.mark.parametrize("durability", ["Durability.OS", "Durability.interval(0.05)", "Durability.FSYNC"])
def test_a_receive_that_waits_is_interrupted(path: Path, durability: str, poll: str) -> None:
    """Ctrl-C raises `KeyboardInterrupt` in every method that waits for a message; nothing is taken, and no waiter is
    left.
    """
    program = INTERRUPTED + RECEIVING.replace("DURABILITY", durability)
    with running(program, path, FILECHANNEL_POLL=poll) as child:
        for _ in range(6):
            child.expect("waiting")
            os.kill(child.process.pid, signal.SIGINT)
        child.expect("fine")
        child.end()


@pytest.mark.skipif(PURE, reason="the pure implementation has a channel for itself")
def test_a_send_that_waits_for_a_stopped_process_is_interrupted(path: Path) -> None:
    """Ctrl-C raises `KeyboardInterrupt` in a send that waits for a stopped process, and nothing is sent."""
    open_channel(path, int).close()
    with running(HOLDER, path) as holder:
        holder.expect("held")
        os.kill(holder.process.pid, signal.SIGSTOP)
        with running(INTERRUPTED + SENDING, path) as child:
            for _ in range(3):
                child.expect("waiting")
                os.kill(child.process.pid, signal.SIGINT)
            child.expect("interrupted")
            os.kill(holder.process.pid, signal.SIGCONT)
            holder.resume()
            holder.expect("released")
            child.resume()
            child.expect("fine")
            child.end()


STORM = """
keep = Retention(after_consumed="keep")
options = ChannelOptions(durability=DURABILITY, segment_size=4096, retention=keep)
with open_channel(path, int, options=options) as channel:
    with channel.sender() as tx, channel.receiver() as rx:
        sent, got = 0, []
        stop = threading.Event()

        def interrupt():
            global armed
            unarmed = 0
            while not stop.wait(0.002):
                os.kill(os.getpid(), signal.SIGINT)
                unarmed = 0 if armed else unarmed + 1
                if unarmed > 100:
                    armed = True  # the interrupt came in some __del__, where Python drops it

        attempts = 0
        armed = False

        def interrupted_if_armed(*_):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupted_if_armed)  # not while an interrupt is being counted
        threading.Thread(target=interrupt).start()
        while attempts < 300:
            try:
                armed = True
                while True:
                    tx.send(sent)
                    sent += 1
                    tx.send_many([sent])
                    sent += 1
                    got += rx.receive_many_nowait(9)
                    try:
                        rx.receive(timeout=0.0001)
                    except TimeoutError:
                        pass
            except KeyboardInterrupt:
                attempts += 1
        stop.set()
        # Everything still works: locks are free, waits end, the order is one, and other threads get through.
        done = []
        threading.Thread(target=lambda: (tx.send(-1), channel.flush(), done.append(1))).start()
        until(lambda: done)
        with channel.replay() as history:
            numbers = list(history)
        assert numbers[-1] == -1 and sorted(numbers[:-1]) == numbers[:-1]
        assert set(numbers) >= set(range(sent))
        assert channel.statistics().waiters == 0
say("fine")
"""


@pytest.mark.parametrize("durability", ["Durability.OS", "Durability.FSYNC"])
def test_interrupts_at_any_moment(path: Path, durability: str) -> None:
    """Hundreds of interrupts in the middle of sends and receives leave no lock behind, and lose nothing sent."""
    if PURE:
        pytest.skip("without the C core an interrupt may tear an append, which is taken back when it is noticed")
    with running(STORM.replace("DURABILITY", durability), path) as child:
        child.expect("fine")
        child.end()
