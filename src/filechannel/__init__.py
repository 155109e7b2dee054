"""A durable, typed channel for asyncio, stored in a directory.

The API follows the memory object streams of anyio. Messages survive restarts and `kill -9`, and no broker is needed.
"""

from __future__ import annotations

from . import _quiet_interrupt as _quiet_interrupt  # isort: skip - must run before the imports that take a while
from ._channel.aio.ack_receiver import AckReceiver
from ._channel.aio.channel import FileChannel
from ._channel.aio.group_receiver import GroupReceiver
from ._channel.aio.open_channel import ChannelContext, open_channel
from ._channel.aio.receiver import FanOutReceiver, Receiver
from ._channel.aio.redrive import redrive
from ._channel.aio.sender import Sender
from ._channel.aio.service import Service
from ._channel.aio.transaction import Step, transaction
from ._channel.base.ack_receiver import Acknowledgable
from ._channel.base.dead_letter import DeadLetter
from ._channel.base.receiver import Record
from ._channel.base.retry_policy import RetryPolicy
from ._channel.schema.codec import Codec, JsonCodec, MsgpackCodec, RawCodec
from ._channel.status.consumer_status import Consumer
from ._channel.status.statistics import (
    ChannelStatistics,
    MaintenanceStatistics,
    Process,
    ReceiverStatistics,
    RoomStatistics,
    SenderStatistics,
    ServiceStatistics,
)
from ._channel.subscription.delivery import Delivery
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
from ._maintenance.background.plan_reclaim import Pin
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
