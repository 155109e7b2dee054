"""Messages become bytes and bytes become messages; what is not a message is refused before it is written."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import enum
import json
import mmap
import pickle
import types
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from filechannel._channel.schema.codec import Codec, JsonCodec, MsgpackCodec, Payloads, RawCodec, codec_for
from filechannel._errors import CodecError, DecodeError, MessageTypeError

T = TypeVar("T")
Cents = NewType("Cents", int)


class Order(msgspec.Struct, tag=True):
    """A tagged Struct."""

    id: int
    sku: str = ""


class Cancel(msgspec.Struct, tag="cancel"):
    """The other member of a tagged union."""

    id: int


class BigOrder(Order):
    """A Struct with another tag than its parent: its own name."""

    discount: float = 0.0


class CancelAll(Cancel):
    """A Struct with the tag of its parent, and more fields."""

    reason: str = ""


class Page(msgspec.Struct, Generic[T]):
    """A generic Struct."""

    items: list[T]


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


@dataclass
class Point3(Point):
    """A dataclass with more fields than its parent."""

    z: int = 0


@dataclass
class NamedPoint(Point):
    """A dataclass whose field has another type than in its parent."""

    y: str = ""  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleVariableOverride]


class Row(TypedDict):
    """A TypedDict."""

    id: int


class Pair(NamedTuple):
    """A NamedTuple."""

    left: int
    right: int


class Colour(enum.Enum):
    """An enum of texts."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum of numbers."""

    LOW = 1


class Temperature:
    """A class that msgspec does not know."""

    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


def encode_temperature(value: object) -> object:
    """Encode a Temperature as a number."""
    if isinstance(value, Temperature):
        return value.degrees
    raise NotImplementedError


def decode_temperature(wanted: type, value: object) -> object:
    """Decode a Temperature from a number."""
    if wanted is Temperature and isinstance(value, float):
        return Temperature(value)
    raise NotImplementedError


def payloads_of(message_type: Any, codec: Any = None, *, validate: bool = False) -> Payloads[Any]:
    """Return payloads as a channel makes them."""
    return Payloads(message_type, codec_for(message_type, codec), validate=validate)


class TextCodec:
    """A serializer of the user's own."""

    name = "text"

    def encode(self, value: str, /) -> bytes:
        """Encode as ASCII."""
        return value.encode("ascii")

    def decode(self, payload: bytes, /) -> str:
        """Decode from ASCII."""
        return payload.decode("ascii")


# Codecs


def test_the_default_codec_is_msgpack() -> None:
    """Without a codec messages are MessagePack."""
    codec = codec_for(Order)
    assert isinstance(codec, MsgpackCodec)
    assert msgspec.msgpack.decode(codec.encode(Order(1, "pen"))) == {"type": "Order", "id": 1, "sku": "pen"}


def test_the_default_codec_of_bytes_is_raw() -> None:
    """Without a codec bytes are stored as they are."""
    codec = codec_for(bytes)
    assert isinstance(codec, RawCodec)
    assert codec.encode(b"x") == b"x"


def test_json_is_chosen_by_name() -> None:
    """A JSON channel holds what any tool can read."""
    codec = codec_for(Order, "json")
    assert json.loads(codec.encode(Order(1, "pen"))) == {"type": "Order", "id": 1, "sku": "pen"}


def test_bytes_can_be_messages_of_another_codec() -> None:
    """A codec that is asked for is used for bytes as well."""
    assert isinstance(codec_for(bytes, "msgpack"), MsgpackCodec)


def test_a_codec_of_the_users_own_is_used_as_it_is() -> None:
    """Any object with a name, encode and decode is a codec."""
    codec: Codec[str] = TextCodec()
    assert codec_for(str, codec) is codec
    assert payloads_of(str, codec).encode("abc") == b"abc"


@pytest.mark.parametrize("codec", [MsgpackCodec(Order), JsonCodec(Order)])
def test_encode_and_decode_are_the_functions_of_msgspec(codec: Codec[Order]) -> None:
    """A hot path calls msgspec directly, without a Python frame in between."""
    assert isinstance(codec.encode, types.BuiltinFunctionType)
    assert isinstance(codec.decode, types.BuiltinFunctionType)


@pytest.mark.parametrize(
    ("codec", "name"), [(MsgpackCodec(Order), "msgpack"), (JsonCodec(Order), "json"), (RawCodec(), "raw")]
)
def test_shipped_codecs_have_the_names_of_the_manifest(codec: Codec[Any], name: str) -> None:
    """The names are part of the format and never change."""
    assert codec.name == name


@pytest.mark.parametrize("cls", [MsgpackCodec, JsonCodec])
@pytest.mark.parametrize("message_type", [Order, Order | Cancel, dict[str, float], Page[Order], int])
def test_codecs_pickle(cls: Any, message_type: Any) -> None:
    """A codec crosses a process as what it was made of."""
    codec = pickle.loads(pickle.dumps(cls(message_type)))
    assert type(codec) is cls
    assert codec.message_type == message_type


@pytest.mark.parametrize("cls", [MsgpackCodec, JsonCodec])
def test_hooks_make_other_types_messages(cls: Any) -> None:
    """A type that msgspec does not know works with both hooks, also after pickling."""
    codec = cls(Temperature, enc_hook=encode_temperature, dec_hook=decode_temperature)
    payloads = payloads_of(Temperature, pickle.loads(pickle.dumps(codec)))
    assert payloads.decode(payloads.encode(Temperature(36.6))).degrees == 36.6
    with pytest.raises(MessageTypeError, match="accepts Temperature, not float"):
        payloads.encode(36.6)


@pytest.mark.parametrize("codec", [None, "msgpack", "json"])
@pytest.mark.parametrize("message_type", [Temperature, list[Temperature], Page[Temperature], dict[str, complex]])
def test_a_type_that_msgspec_does_not_know_is_refused(message_type: Any, codec: Any) -> None:
    """The error names the type and the part of it that is the problem."""
    with pytest.raises(TypeError, match=r"(Temp|complex).* cannot be a message type: .*(Temp|complex)"):
        codec_for(message_type, codec)


@pytest.mark.parametrize("message_type", [int | Level, Order | Point, 5, "Order", Literal[b"x"]])
def test_a_type_that_msgspec_refuses_is_refused(message_type: Any) -> None:
    """Types that msgspec cannot distinguish, and values that are not types, cannot be a message type."""
    with pytest.raises(TypeError, match="cannot be a message type"):
        codec_for(message_type)


def test_an_unknown_codec_name_is_a_value_error() -> None:
    """The error says which names there are."""
    name: Any = "xml"
    with pytest.raises(ValueError, match=r"'xml'.*'msgpack', 'json', 'raw'"):
        codec_for(Order, name)


@pytest.mark.parametrize("codec", [5, object(), json, types.SimpleNamespace(encode=len, decode=len, name="")])
def test_an_object_that_is_not_a_codec_is_a_type_error(codec: Any) -> None:
    """An object without a name, encode or decode is refused when the channel is opened."""
    with pytest.raises(TypeError, match="codec="):
        codec_for(Order, codec)


@pytest.mark.parametrize(
    ("message_type", "codec"),
    [(Order, RawCodec()), (Order, "raw"), (Order, MsgpackCodec(Cancel)), (int, JsonCodec(str))],
)
def test_a_codec_of_another_type_is_refused(message_type: Any, codec: Any) -> None:
    """A codec made for one type is not used for another."""
    with pytest.raises(TypeError, match="is for"):
        codec_for(message_type, codec)


# Raw mode


def test_raw_bytes_are_the_same_object() -> None:
    """In raw mode encoding bytes returns the same object."""
    payload = bytes(1000)
    codec = RawCodec()
    assert codec.encode(payload) is payload
    assert codec.decode(payload) is payload
    assert payloads_of(bytes).encode(payload) is payload


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        memoryview(b"a-b-c-d")[::2],
        array.array("B", b"abcd"),
        array.array("i", [1684234849]),
    ],
)
def test_any_buffer_is_accepted_and_bytes_are_returned(buffer: Any) -> None:
    """Other buffers are copied, also those with gaps and wider items."""
    assert payloads_of(bytes).encode(buffer) == b"abcd"


def test_a_mapped_file_is_accepted() -> None:
    """A map is a buffer too, and can be closed right after."""
    with mmap.mmap(-1, 4) as mapped:
        mapped[:] = b"abcd"
        payload = payloads_of(bytes).encode(mapped)
    assert payload == b"abcd"


def test_a_raw_message_is_a_copy() -> None:
    """Changing a buffer after it was sent changes nothing."""
    buffer = bytearray(b"abcd")
    payload = payloads_of(bytes).encode(buffer)
    buffer[:] = b"----"
    assert payload == b"abcd"


@pytest.mark.parametrize("value", ["text", 5, None, [1, 2], Order(1)])
def test_raw_mode_takes_nothing_but_buffers(value: Any) -> None:
    """Raw mode refuses anything but a buffer, and names its type."""
    with pytest.raises(MessageTypeError, match=f"accepts bytes or another buffer, not {type(value).__name__}"):
        payloads_of(bytes).encode(value)


def test_a_released_buffer_is_a_codec_error() -> None:
    """A buffer that cannot be read any more is refused."""
    view = memoryview(b"abcd")
    view.release()
    with pytest.raises(CodecError, match="ValueError"):
        payloads_of(bytes).encode(view)


# The check of the outermost type

ACCEPTED: list[tuple[Any, list[Any]]] = [
    (Order, [Order(1)]),
    (Cancel, [Cancel(1), CancelAll(1)]),
    (Point, [Point3(1)]),
    (Order | Cancel, [Order(1), Cancel(1)]),
    (Order | None, [Order(1), None]),
    (Page[int], [Page([1])]),
    (Point, [Point(1)]),
    (Row, [{"id": 1}, OrderedDict(id=1)]),
    (Pair, [Pair(1, 2)]),
    (Colour, [Colour.RED]),
    (Level, [Level.LOW]),
    (int, [1, -(2**63), 2**64 - 1, Level.LOW]),
    (float, [1.5, 1]),
    (int | float, [1, 1.5]),
    (int | bool, [1, True]),
    (bool, [True]),
    (str, ["a"]),
    (Annotated[str, msgspec.Meta(max_length=3, description="short")], ["abc"]),
    (Cents, [5]),
    (Literal[1, "a", None], [1, "a", None]),
    (Any, [1, "a", None, [1], {"a": 1}]),
    (object, [1, "a", None]),
    (None, [None]),
    (list[int], [[1], (1,)]),
    (Sequence[int], [[1], (1,)]),
    (set[int], [{1}, frozenset({1})]),
    (frozenset[int], [frozenset({1})]),
    (tuple[int, str], [(1, "a")]),
    (tuple[int, ...], [(), (1, 2)]),
    (dict[str, float], [{"a": 1.5}, OrderedDict(a=1)]),
    (Mapping[str, int], [{"a": 1}]),
    (dt.datetime, [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    (dt.date, [dt.date(2026, 1, 1)]),
    (dt.time, [dt.time(1, 2)]),
    (dt.timedelta, [dt.timedelta(1)]),
    (uuid.UUID, [uuid.UUID(int=1)]),
    (decimal.Decimal, [decimal.Decimal("1.5")]),
    (bytearray, [bytearray(b"x")]),
    (msgspec.Raw, [msgspec.Raw(b"\x01")]),
    (msgspec.msgpack.Ext, [msgspec.msgpack.Ext(1, b"x")]),
]

REFUSED: list[tuple[Any, list[Any]]] = [
    (Order, [None, {"id": 1}, BigOrder(1), Cancel(1), Point(1), Order, "Order", b""]),
    (Order | Cancel, [None, Point(1), {"type": "Order", "id": 1}]),
    (Page[int], [Order(1), [1]]),
    (Point, [Order(1), (1, 2), NamedPoint(1)]),
    (Row, [Order(1), [("id", 1)]]),
    (Pair, [(1, 2), [1, 2]]),
    (Colour, ["red", Level.LOW]),
    (int, [True, 1.0, "1", None]),
    (float, [True, "1.5", decimal.Decimal("1.5")]),
    (int | float, [True]),
    (bool, [1, 0, None]),
    (str, [b"a", None, 1]),
    (Cents, [5.0]),
    (Literal[1, "a"], [2, "b", True, 1.0]),
    (None, [0, False]),
    (list[int], [{1}, "ab", {1: 2}, iter([1])]),
    (set[int], [[1], (1,)]),
    (dict[str, float], [[("a", 1.5)], Order(1)]),
    (dt.datetime, [dt.date(2026, 1, 1), "2026-01-01"]),
    (dt.date, [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]),
    (uuid.UUID, ["00000000-0000-0000-0000-000000000001"]),
    (bytearray, [5]),
]


def _shown(value: Any) -> str:
    """An id must be the same in every process: no addresses in it."""
    return type(value).__name__ if " at 0x" in repr(value) else repr(value)


def _cases(table: list[tuple[Any, list[Any]]]) -> list[Any]:
    return [pytest.param(kind, value, id=f"{kind}-{_shown(value)}"[:60]) for kind, values in table for value in values]


@pytest.mark.parametrize(("message_type", "value"), _cases(ACCEPTED))
@pytest.mark.parametrize("validate", [False, True])
def test_messages_are_accepted(message_type: Any, value: Any, validate: bool) -> None:
    """A value of the message type is encoded to something that decodes again."""
    payloads = payloads_of(message_type, validate=validate)
    payload = payloads.encode(value)
    assert type(payload) is bytes
    payloads.decode(payload)


@pytest.mark.parametrize(("message_type", "value"), _cases(REFUSED))
@pytest.mark.parametrize("validate", [False, True])
def test_other_values_are_refused(message_type: Any, value: Any, validate: bool) -> None:
    """The error names the message type and the type of the value."""
    with pytest.raises(MessageTypeError) as caught:
        payloads_of(message_type, validate=validate).encode(value)
    assert caught.value.found == type(value).__name__
    assert caught.value.expected in str(caught.value)


@pytest.mark.parametrize(("message_type", "value"), _cases(REFUSED))
def test_exact_types_accept_nothing_else(message_type: Any, value: Any) -> None:
    """`exact_types` contains the message types whose direct instances need no check, and no other type."""
    assert type(value) not in payloads_of(message_type).exact_types


def test_exact_types_name_what_needs_no_check() -> None:
    """`exact_types` lists the types whose direct instances go to the codec without a check."""
    assert payloads_of(Order | Cancel | None).exact_types == {Order, Cancel, type(None)}
    assert payloads_of(int).exact_types == {int}
    assert payloads_of(float).exact_types == {float, int}
    assert payloads_of(dt.date).exact_types == {dt.date}
    assert payloads_of(Literal[1, 2]).exact_types == set()


def test_there_is_no_cheap_check_where_more_is_needed() -> None:
    """Validation, codecs of the user and types that isinstance cannot decide need the full check."""
    assert payloads_of(Order, validate=True).exact_types == set()
    assert payloads_of(str, TextCodec()).exact_types == set()


@pytest.mark.parametrize(
    ("message_type", "name"),
    [
        (Order, "Order"),
        (Order | Cancel, "Order | Cancel"),
        (Order | None, "Order | None"),
        (dict[str, list[Order]], "dict[str, list[Order]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal[1, "a"], "Literal[1, 'a']"),
        (Annotated[int, msgspec.Meta(ge=0)], "int"),
        (Page[Order], "Page[Order]"),
        (Cents, "Cents"),
        (None, "None"),
    ],
)
def test_errors_call_a_type_what_the_user_calls_it(message_type: Any, name: str) -> None:
    """Message types appear in errors as they are written in Python."""
    assert payloads_of(message_type).type_name == name


def test_a_class_that_only_its_codec_knows_is_checked() -> None:
    """With a user's codec, instances of the message class are accepted and nothing else."""

    class Packed:
        name = "packed"

        def encode(self, value: Temperature, /) -> bytes:
            return str(value.degrees).encode()

        def decode(self, payload: bytes, /) -> Temperature:
            return Temperature(float(payload))

    payloads = payloads_of(Temperature, Packed())
    assert payloads.decode(payloads.encode(Temperature(1.5))).degrees == 1.5
    with pytest.raises(MessageTypeError):
        payloads.encode("hot")


# Errors inside a codec


class Surrogate(msgspec.Struct):
    """A Struct whose fields may hold values that cannot be encoded."""

    text: Any


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (2**64, "OverflowError"),
        ("\ud800", "UnicodeEncodeError"),
        (object(), "TypeError"),
        ({1: {2, object()}}, "TypeError"),
    ],
)
def test_a_value_that_does_not_fit_is_a_codec_error(value: Any, reason: str) -> None:
    """Whatever the codec raises becomes one error that names the type and keeps the cause."""
    with pytest.raises(CodecError, match=f"Surrogate cannot be encoded as msgpack: {reason}") as caught:
        payloads_of(Surrogate).encode(Surrogate(value))
    assert type(caught.value.__cause__).__name__ == reason


def test_a_value_that_contains_itself_is_a_codec_error() -> None:
    """An endless value is refused instead of encoded."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CodecError, match="RecursionError"):
        payloads_of(list[Any]).encode(endless)


def test_fields_are_checked_only_on_request() -> None:
    """Without validate a wrong field is sent, with it the error names the field."""
    wrong: Any = "many"
    assert payloads_of(Order).encode(Order(wrong))
    with pytest.raises(CodecError, match=r"not a valid Order: Expected `int`, got `str` - at `\$.id`"):
        payloads_of(Order, validate=True).encode(Order(wrong))


def test_constraints_are_checked_only_on_request() -> None:
    """Limits of a value are part of the fields, not of the type."""
    small: Any = Annotated[int, msgspec.Meta(le=3)]
    assert payloads_of(small).encode(4)
    with pytest.raises(CodecError, match="<= 3"):
        payloads_of(small, validate=True).encode(4)


def test_validation_finds_what_json_cannot_say() -> None:
    """With `validate` a float that JSON cannot represent is refused when it is sent, not when it is received."""
    with pytest.raises(CodecError, match="not a valid float"):
        payloads_of(float, "json", validate=True).encode(float("nan"))


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), RuntimeError(), ZeroDivisionError("odd")])
def test_an_error_of_a_users_codec_is_a_codec_error(error: Exception) -> None:
    """An error of a user's codec becomes a `CodecError` with the codec's name, also if its text is empty."""

    class Failing(TextCodec):
        def encode(self, value: str, /) -> bytes:
            raise error

    with pytest.raises(CodecError, match=f"str cannot be encoded as text: {type(error).__name__}") as caught:
        payloads_of(str, Failing()).encode("a")
    assert caught.value.__cause__ is error


def test_a_codec_error_of_a_users_codec_stays_itself() -> None:
    """A `CodecError` that a user's codec raises is passed through unchanged."""

    class Failing(TextCodec):
        def encode(self, value: str, /) -> bytes:
            raise CodecError("my own words")

    with pytest.raises(CodecError, match=r"^my own words$"):
        payloads_of(str, Failing()).encode("a")


@pytest.mark.parametrize("result", [bytearray(b"a"), memoryview(b"a"), "a", None])
def test_a_codec_must_return_bytes(result: Any) -> None:
    """A codec that returns anything but bytes is refused, and the error names the codec."""

    class Odd(TextCodec):
        def encode(self, value: str, /) -> bytes:
            wrong: bytes = result
            return wrong

    with pytest.raises(CodecError, match=f"codec 'text' returned {type(result).__name__}, not bytes"):
        payloads_of(str, Odd()).encode("a")


def test_cancellation_is_not_a_codec_error() -> None:
    """What is not an Exception passes through."""

    class Stopping(TextCodec):
        def encode(self, value: str, /) -> bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        payloads_of(str, Stopping()).encode("a")


def test_refuse_explains_what_a_faster_path_met() -> None:
    """`refuse` raises the same errors for a fast path that checks and encodes on its own."""
    payloads = payloads_of(Order)
    with pytest.raises(MessageTypeError, match="item 3 of the batch: the channel accepts Order, not int"):
        payloads.refuse(5, None, 3)
    with pytest.raises(CodecError, match="item 3 of the batch: Order cannot be encoded as msgpack: ValueError: odd"):
        payloads.refuse(Order(1), ValueError("odd"), 3)
    with pytest.raises(CodecError, match=r"^Order cannot be encoded"):
        payloads.refuse(Order(1), ValueError("odd"), None)
    with pytest.raises(CodecError, match="item 3 of the batch: own words"):
        payloads.refuse(Order(1), CodecError("own words"), 3)


# Decoding


def test_a_payload_that_does_not_decode_is_explained() -> None:
    """The error has the position of the record, the next position, its payload, the reason and the cause."""
    payloads = payloads_of(Order)
    payload = msgspec.msgpack.encode({"type": "Order", "id": "one"})
    with pytest.raises(msgspec.ValidationError) as refused:
        payloads.decode(payload)
    with pytest.raises(
        DecodeError, match=r"offset 100.*not an Order: Expected `int`, got `str`.*seek\(130\)"
    ) as caught:
        payloads.refuse_payload(100, 130, payload, refused.value)
    error = caught.value
    assert (error.offset, error.next_offset, error.payload) == (100, 130, payload)
    assert error.__cause__ is refused.value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_what_is_sent_is_what_is_received(value: Any) -> None:
    """Any JSON-like value survives msgpack unchanged."""
    payloads = payloads_of(Any, validate=True)
    assert payloads.decode(payloads.encode(value)) == value


@given(st.binary())
def test_a_random_payload_decodes_or_is_refused(payload: bytes) -> None:
    """Damaged bytes raise msgspec's errors and nothing else, whatever they are."""
    payloads = payloads_of(Order | Cancel)
    try:
        value = payloads.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    assert isinstance(value, Order | Cancel)
