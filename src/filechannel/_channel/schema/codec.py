"""Encoding messages to bytes, and decoding them.

``Codec`` is the interface for custom serializers; msgpack, JSON and raw bytes are included. ``Payloads`` combines a
codec with the message type of a channel: it refuses values that are not messages before anything is written, and
converts every error into a ``CodecError`` that names the type and the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, NoReturn, Protocol, TypeAlias, TypeVar, cast, final

import msgspec
from typing_extensions import Buffer, TypeForm

from ..._checks import with_article
from ..._errors import CodecError, DecodeError, MessageTypeError
from ..._offset import Offset
from . import Schema, describe, describe_opaque, type_name
from .message_types import MessageCheck

__all__ = ["Codec", "CodecName", "JsonCodec", "MsgpackCodec", "Payloads", "RawCodec", "codec_for"]

T = TypeVar("T")

CodecName: TypeAlias = Literal["msgpack", "json", "raw"]
EncodeHook: TypeAlias = Callable[[object], object]
"""Converts a value that msgspec does not support into one that it does; ``NotImplementedError`` for other values."""
DecodeHook: TypeAlias = Callable[[type, object], object]
"""Converts a decoded value back into the given type; ``NotImplementedError`` for other types."""


class Codec(Protocol[T]):
    """Encodes messages to bytes and decodes them.

    Both methods may be called from any thread at any time, and may raise any ``Exception`` to refuse a value. The
    channel stores the name: it can only be opened with a codec of the name it was created with.
    """

    @property
    def name(self) -> str:
        """The name stored in the manifest: short. Change it when the format changes."""
        ...

    def encode(self, value: T, /) -> bytes:
        """Return the payload of *value*."""
        ...

    def decode(self, payload: bytes, /) -> T:
        """Return the value of *payload*."""
        ...


_Encoder: TypeAlias = msgspec.msgpack.Encoder | msgspec.json.Encoder
_Decoder: TypeAlias = "msgspec.msgpack.Decoder[object] | msgspec.json.Decoder[object]"


class _MsgspecCodec(Generic[T]):
    """The base class of the msgspec codecs."""

    if TYPE_CHECKING:

        def encode(self, value: T, /) -> bytes:
            """Return the payload of *value*. Only checks that it can be encoded."""
            ...

        def encode_into(self, value: T, buffer: bytearray, /) -> None:
            """Replace the content of *buffer* by the payload of *value*."""
            ...

        def decode(self, payload: bytes, /) -> T:
            """Return the value. Raise ``msgspec.DecodeError`` if it is not of the message type."""
            ...

    def __init__(
        self,
        message_type: TypeForm[T],
        *,
        enc_hook: EncodeHook | None = None,
        dec_hook: DecodeHook | None = None,
    ) -> None:
        _check_encodable(message_type, hooks=enc_hook is not None and dec_hook is not None)
        self.message_type: TypeForm[T] = message_type
        self._hooks: tuple[EncodeHook | None, DecodeHook | None] = enc_hook, dec_hook
        encoder, decoder = self._coders()
        vars(self).update(encode=encoder.encode, encode_into=encoder.encode_into, decode=decoder.decode)

    def _coders(self) -> tuple[_Encoder, _Decoder]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the constructor arguments."""
        enc_hook, dec_hook = self._hooks
        return partial(type(self), enc_hook=enc_hook, dec_hook=dec_hook), (self.message_type,)


@final
class MsgpackCodec(_MsgspecCodec[T]):
    """MessagePack with msgspec, the default: compact, and by far the fastest.

    ``encode`` and ``decode`` are msgspec's own functions, with no Python frame in between. Types that msgspec does not
    support need both hooks. Raises ``TypeError`` for a type that cannot be a message.
    """

    name: str = "msgpack"

    def _coders(self) -> tuple[_Encoder, _Decoder]:
        enc_hook, dec_hook = self._hooks
        decoder = msgspec.msgpack.Decoder(self.message_type, dec_hook=dec_hook)
        return msgspec.msgpack.Encoder(enc_hook=enc_hook), decoder


@final
class JsonCodec(_MsgspecCodec[T]):
    """JSON with msgspec: readable with any tool, but larger and slower than msgpack. Otherwise like `MsgpackCodec`."""

    name: str = "json"

    def _coders(self) -> tuple[_Encoder, _Decoder]:
        enc_hook, dec_hook = self._hooks
        decoder = msgspec.json.Decoder(self.message_type, dec_hook=dec_hook)
        return msgspec.json.Encoder(enc_hook=enc_hook), decoder


@final
class RawCodec:
    """Bytes, unchanged: accepts any buffer, returns ``bytes``."""

    name: str = "raw"

    def encode(self, value: Buffer, /) -> bytes:
        """Return *value* itself if it is ``bytes``, a copy of any other buffer."""
        if type(value) is bytes:
            return value
        try:
            view = memoryview(value)
        except TypeError:
            raise MessageTypeError("bytes or another buffer", type(value).__name__) from None
        with view:
            return view.tobytes()

    def decode(self, payload: bytes, /) -> bytes:
        """Return *payload*."""
        return payload


def codec_for(message_type: TypeForm[T], codec: Codec[T] | CodecName | None = None) -> Codec[T]:
    """Return the codec that *codec* means for *message_type*.

    ``None`` is raw for ``bytes`` and msgpack for everything else. Raises ``TypeError`` for a type that the codec cannot
    handle and for an object that is not a codec, and ``ValueError`` for an unknown name.
    """
    if codec is None:
        codec = "raw" if message_type is bytes else "msgpack"
    if isinstance(codec, str):
        return _named_codec(message_type, codec)
    _check_codec(message_type, codec)
    return codec


def schema_of(message_type: TypeForm[object], codec: Codec[T]) -> Schema:
    """Return the schema for the manifest: complete if msgspec encodes the type, only its name for other codecs."""
    ours = isinstance(codec, MsgpackCodec | JsonCodec | RawCodec)
    return describe(message_type) if ours else describe_opaque(message_type)


@final
class Payloads(Generic[T]):
    """Encodes and decodes the messages of a channel: a message type, its codec and whether to validate.

    ``encode`` does everything. A faster path may split it: a value whose type is in ``exact_types`` needs only
    ``codec.encode``, and ``refuse`` raises the error if that fails.
    """

    __slots__ = (
        "_check",
        "_validate",
        "codec",
        "decode",
        "exact_types",
        "is_raw",
        "message_type",
        "type_name",
    )

    def __init__(self, message_type: TypeForm[T], codec: Codec[T], *, validate: bool = False) -> None:
        check = MessageCheck(message_type)
        direct = isinstance(codec, MsgpackCodec | JsonCodec) and not validate
        self.is_raw: bool = _is_raw(codec)
        self._check = None if self.is_raw else check
        self._validate = validate
        self.exact_types: frozenset[type] = check.exact_types if direct else frozenset()
        self.codec: Codec[T] = codec
        self.decode: Callable[[bytes], T] = codec.decode
        self.message_type: TypeForm[T] = message_type
        self.type_name: str = type_name(message_type)

    def encode(self, value: T, /) -> bytes:
        """Return the payload of *value*.

        Raises ``MessageTypeError`` if it is not of the message type, and ``CodecError`` if it cannot be encoded or,
        with validation, could not be decoded again.
        """
        if self._check is not None and not self._check.accepts(value):
            self.refuse(value, None)
        try:
            payload = self.codec.encode(value)
        except Exception as error:
            self.refuse(value, error)
        if type(payload) is not bytes:
            found = type(payload).__name__
            raise CodecError(f"{self.type_name}: codec {self.codec.name!r} returned {found}, not bytes")
        if self._validate:
            self.check(payload)
        return payload

    def refuse(self, value: object, error: Exception | None, index: int | None = None) -> NoReturn:
        """Raise the ``CodecError`` for a value that the codec refused with *error*, or that is not a message.

        *index* is its index in a batch.
        """
        if error is None:
            expected = "bytes or another buffer" if self.is_raw else self.type_name
            raise MessageTypeError(expected, type(value).__name__, index)
        if isinstance(error, CodecError):
            raise error if index is None else error.at(index) from error.__cause__
        reason = f"{self.type_name} cannot be encoded as {self.codec.name}: {_reason(error)}"
        raise CodecError(reason, index) from error

    def refuse_payload(self, offset: int, next_offset: int, payload: bytes, error: Exception) -> NoReturn:
        """Raise the ``DecodeError`` for a payload that the codec refused with *error*."""
        raise self._undecodable(offset, next_offset, payload, error, in_group=False) from error

    def refuse_payload_in_group(self, offset: int, next_offset: int, payload: bytes, error: Exception) -> NoReturn:
        """Raise the ``DecodeError`` for a payload that a member of a group has received."""
        raise self._undecodable(offset, next_offset, payload, error, in_group=True) from error

    def _undecodable(
        self, offset: int, next_offset: int, payload: bytes, error: Exception, *, in_group: bool
    ) -> DecodeError:
        reason = f"it is not {with_article(self.type_name)}: {_reason(error)}"
        return DecodeError(Offset(offset), Offset(next_offset), reason, payload, in_group=in_group)

    def check(self, payload: bytes) -> None:
        """Raise ``CodecError`` if a payload does not decode."""
        try:
            self.decode(payload)
        except Exception as error:
            raise CodecError(f"it is not a valid {self.type_name}: {_reason(error)}") from error


def _is_raw(codec: object) -> bool:
    return isinstance(codec, RawCodec)


def _named_codec(message_type: TypeForm[T], name: str) -> Codec[T]:
    if name == "msgpack":
        return MsgpackCodec(message_type)
    if name == "json":
        return JsonCodec(message_type)
    if name != "raw":
        raise ValueError(f"codec={name!r}: must be 'msgpack', 'json', 'raw' or an object with name, encode and decode")
    codec = cast("Codec[T]", RawCodec())
    _check_codec(message_type, codec)
    return codec


def _check_codec(message_type: TypeForm[T], codec: Codec[T]) -> None:
    if not all(callable(getattr(codec, name, None)) for name in ("encode", "decode")):
        raise TypeError(f"codec={codec!r}: must have a name and the methods encode and decode")
    if not isinstance(getattr(codec, "name", None), str) or not codec.name:
        raise TypeError(f"codec={codec!r}: its name must be a str that is not empty")
    own_type = bytes if _is_raw(codec) else getattr(codec, "message_type", message_type)
    if own_type != message_type:
        raise TypeError(f"codec {codec.name!r} is for {type_name(own_type)}, not for {type_name(message_type)}")


def _check_encodable(message_type: TypeForm[object], *, hooks: bool) -> None:
    """Raise ``TypeError`` if msgspec cannot handle the type, or if a part of it needs hooks."""
    custom = [node.name for node in describe(message_type).nodes() if node.kind == "custom"]
    if custom and not hooks:
        name = type_name(message_type)
        raise TypeError(
            f"{name} cannot be a message type: msgspec does not know {custom[0]}; "
            "use a Struct or dataclass, or a codec with enc_hook and dec_hook"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, msgspec.MsgspecError):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
