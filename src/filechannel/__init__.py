"""A durable, typed channel for asyncio that lives in a directory.

It feels like an anyio memory stream, survives restarts and `kill -9`, and needs no broker.
"""

from __future__ import annotations

from ._channel.ack import AckReceiver
from ._channel.any_ack_receiver import Acknowledgable
from ._channel.any_receiver import Record
from ._channel.channel import FileChannel
from ._channel.codec import Codec, JsonCodec, MsgpackCodec, RawCodec
from ._channel.consumers import Consumer
from ._channel.delivery import Delivery
from ._channel.opening import ChannelContext, open_channel
from ._channel.receiver import FanOutReceiver, Receiver
from ._channel.sender import Sender
from ._channel.statistics import ChannelStatistics, Process, ReceiverStatistics, RoomStatistics, SenderStatistics
from ._errors import (
    AckError,
    ChannelFullError,
    ChannelLockedError,
    ChannelNotFoundError,
    ChannelSealedError,
    CodecError,
    ConsumerBusyError,
    ConsumerError,
    ConsumerMismatchError,
    CorruptRecordError,
    DataExpiredError,
    DecodeError,
    DiskFullError,
    FileChannelError,
    LeaseExpiredError,
    MessageTooLargeError,
    MessageTypeError,
    NotAChannelError,
    OptionsMismatchError,
    SchemaMismatchError,
    StorageError,
    UnknownConsumerError,
    UnsupportedFormatError,
)
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
    "ChannelNotFoundError",
    "ChannelOptions",
    "ChannelSealedError",
    "ChannelStatistics",
    "Codec",
    "CodecError",
    "Compression",
    "Consumer",
    "ConsumerBusyError",
    "ConsumerError",
    "ConsumerMismatchError",
    "CorruptRecordError",
    "DataExpiredError",
    "DecodeError",
    "Delivery",
    "DiskFullError",
    "Durability",
    "FanOutReceiver",
    "FileChannel",
    "FileChannelError",
    "JsonCodec",
    "LeaseExpiredError",
    "MessageTooLargeError",
    "MessageTypeError",
    "MsgpackCodec",
    "NotAChannelError",
    "Offset",
    "OptionsMismatchError",
    "Process",
    "RawCodec",
    "Receiver",
    "ReceiverStatistics",
    "Record",
    "Retention",
    "RoomStatistics",
    "SchemaMismatchError",
    "Sender",
    "SenderStatistics",
    "StorageError",
    "UnknownConsumerError",
    "UnsupportedFormatError",
    "open_channel",
]
