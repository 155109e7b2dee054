"""Commands that free space, on a file system without a free block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from filechannel import ChannelOptions, DiskFullError, blocking
from tests.cli.shell import Order, orders, report, run
from tests.cli.shell import fill as send_orders
from tests.file_systems import KINDS, fill, small_disk

pytestmark = pytest.mark.disk

SEGMENT = 32 << 10
COUNT = 20_000


@pytest.fixture(params=KINDS)
def full(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A channel of orders, of which `billing` has taken all and `audit` none, on a disk that others have filled."""
    with small_disk(tmp_path, request.param) as disk:
        path = send_orders(disk / "orders", COUNT, ChannelOptions(segment_size=SEGMENT))
        with blocking.open_channel(path, Order) as channel:
            channel.receiver("audit").close()
            with channel.receiver("billing") as receiver:
                receiver.receive_many(COUNT)
        fill(disk)
        yield path


def send_until_full(path: Path) -> int:
    """Send until the disk is full, and return how many orders were accepted."""
    sent = 0
    with blocking.open_channel(path, Order) as channel, channel.sender() as sender:
        try:
            while True:
                sender.send(Order(sent, "pen" * 100))
                sent += 1
        except DiskFullError:
            return sent


def free(path: Path) -> int:
    """Return how much space is free."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def test_removing_a_consumer_frees_space(full: Path) -> None:
    """Without the consumer that needed everything, `gc` reclaims what the others have read, and sends work again."""
    send_until_full(full)
    assert report("gc", full)["segments"] == 0
    run("consumers", "remove", full, "audit", "--yes")
    run("gc", full)  # or the background maintenance of the command before it
    assert free(full) > 4 * SEGMENT
    assert send_until_full(full) > 100


def test_compressing_frees_space(full: Path) -> None:
    """The first compressed segment takes the space that is reserved, the others that of the plain ones before them."""
    sent = send_until_full(full)
    done = report("compress", full)
    assert done["segments"] > 3
    assert done["bytes_after"] < done["bytes_before"]
    assert free(full) > SEGMENT
    assert [order.id for order in orders(full)] == [*range(COUNT), *range(sent)]
    assert send_until_full(full) > 100
