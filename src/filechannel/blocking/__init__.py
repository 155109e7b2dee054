"""The same channel without async, for threads, scripts and Spark executors.

    from filechannel.blocking import open_channel

    with open_channel("data/orders", Order) as orders, orders.sender() as tx:
        tx.send(Order(1, "pen", 3))

Methods that wait take a *timeout* in seconds and raise `TimeoutError` when it is over. They release the GIL while they
wait, and Ctrl-C interrupts them. Any thread may use any object. Everything that does not wait is the same code as in
the async classes.
"""

from __future__ import annotations

from .._channel.base.ack_receiver import Acknowledgable
from .._channel.base.receiver import Record
from .._channel.subscription.delivery import Delivery
from .ack_receiver import AckReceiver, GroupReceiver
from .channel import FileChannel
from .open_channel import open_channel
from .receiver import FanOutReceiver, Receiver
from .redrive import redrive
from .sender import Sender
from .service import Service
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
