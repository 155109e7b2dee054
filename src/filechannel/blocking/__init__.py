"""The same channel without async, for threads, scripts and Spark executors.

    from filechannel.blocking import open_channel

    with open_channel("data/orders", Order) as orders, orders.sender() as tx:
        tx.send(Order(1, "pen", 3))

Methods that wait take a *timeout* in seconds and raise `TimeoutError` when it is over; they let go of the GIL while
they wait, and Ctrl-C interrupts them. Any thread may use any object. Everything that does not wait is the same code as
in the async classes.
"""

from __future__ import annotations

from .._channel.any_ack_receiver import Acknowledgable
from .._channel.any_receiver import Record
from .._channel.delivery import Delivery
from .._channel.thread_service import Service
from .acknowledging import AckReceiver, GroupReceiver
from .channel import FileChannel
from .opening import open_channel
from .receiver import FanOutReceiver, Receiver
from .redrive import redrive
from .sender import Sender
from .transaction import Step, transaction

__all__ = [
    "AckReceiver",
    "Acknowledgable",
    "Delivery",
    "FanOutReceiver",
    "FileChannel",
    "GroupReceiver",
    "Receiver",
    "Record",
    "Sender",
    "Service",
    "Step",
    "open_channel",
    "redrive",
    "transaction",
]
