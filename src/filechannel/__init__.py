"""A durable, typed channel for asyncio that lives in a directory.

It feels like an anyio memory stream, survives restarts and `kill -9`, and needs no broker.
"""

from __future__ import annotations

from . import _starting as _starting  # isort: skip - before everything that takes a while to import
from ._channel.ack import AckReceiver
from ._channel.any_ack_receiver import Acknowledgable
from ._channel.any_receiver import Record
from ._channel.channel import FileChannel
from ._channel.codec import Codec, JsonCodec, MsgpackCodec, RawCodec
from ._channel.consumers import Consumer
from ._channel.dead_letter import DeadLetter
from ._channel.delivery import Delivery
from ._channel.group import GroupReceiver
from ._channel.opening import ChannelContext, open_channel
from ._channel.receiver import FanOutReceiver, Receiver
from ._channel.redrive import redrive
from ._channel.retry import RetryPolicy
from ._channel.sender import Sender
from ._channel.serve import Service
from ._channel.statistics import (
    ChannelStatistics,
    MaintenanceStatistics,
    Process,
    ReceiverStatistics,
    RoomStatistics,
    SenderStatistics,
    ServiceStatistics,
)
from ._channel.transaction import Step, transaction
from ._errors import (
    AckError,
    ChannelFullError,
    ChannelLockedError,
    ChannelMismatchError,
    ChannelNotFoundError,
    ChannelSealedError,
    CodecError,
    ConsumerBusyError,
    ConsumerDamagedError,
    ConsumerError,
    ConsumerMismatchError,
    CorruptRecordError,
    DataExpiredError,
    DecodeError,
    DiskFullError,
    FileChannelError,
    HandlerError,
    LeaseExpiredError,
    MessageTooLargeError,
    MessageTypeError,
    NotAChannelError,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    UnexpectedFileError,
    UnknownConsumerError,
    UnsupportedFormatError,
    UntrustedChannelError,
)
from ._maintenance.retention import Pin
from ._offset import Offset
from ._options import Capacity, ChannelOptions, Compression, Durability, Retention

__all__ = [
    "AckError",
    "AckReceiver",
    "Acknowledgable",
    "Capacity",
    "ChannelContext",
    "ChannelFullError",
    "ChannelLockedError",
    "ChannelMismatchError",
    "ChannelNotFoundError",
    "ChannelOptions",
    "ChannelSealedError",
    "ChannelStatistics",
    "Codec",
    "CodecError",
    "Compression",
    "Consumer",
    "ConsumerBusyError",
    "ConsumerDamagedError",
    "ConsumerError",
    "ConsumerMismatchError",
    "CorruptRecordError",
    "DataExpiredError",
    "DeadLetter",
    "DecodeError",
    "Delivery",
    "DiskFullError",
    "Durability",
    "FanOutReceiver",
    "FileChannel",
    "FileChannelError",
    "GroupReceiver",
    "HandlerError",
    "JsonCodec",
    "LeaseExpiredError",
    "MaintenanceStatistics",
    "MessageTooLargeError",
    "MessageTypeError",
    "MsgpackCodec",
    "NotAChannelError",
    "Offset",
    "OptionsMismatchError",
    "Pin",
    "Process",
    "RawCodec",
    "Receiver",
    "ReceiverStatistics",
    "Record",
    "Retention",
    "RetryPolicy",
    "RoomStatistics",
    "SchemaMismatchError",
    "Sender",
    "SenderStatistics",
    "Service",
    "ServiceStatistics",
    "Step",
    "StorageError",
    "UnexpectedFileError",
    "UnknownConsumerError",
    "UnsupportedFormatError",
    "UntrustedChannelError",
    "open_channel",
    "redrive",
    "transaction",
]
