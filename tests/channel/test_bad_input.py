"""Wrong arguments, codecs that fail, messages that do not decode, and hooks that do strange things."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import anyio
import msgspec
import pytest
from anyio import EndOfStream

from filechannel import (
    ChannelOptions,
    CodecError,
    DecodeError,
    JsonCodec,
    MsgpackCodec,
    OptionsMismatchError,
    open_channel,
)
from tests.channel.messages import Order

pytestmark = pytest.mark.anyio


class Upper:
    """A codec of the user: text in capital letters."""

    name = "upper"

    def encode(self, value: str, /) -> bytes:
        """Refuse what has no letters."""
        if not value.strip():
            raise ValueError("nothing to say")
        return value.upper().encode()

    def decode(self, payload: bytes, /) -> str:
        """Return the text in small letters."""
        return payload.decode().lower()


class Moment:
    """A type that msgspec does not know."""

    def __init__(self, value: int) -> None:
        self.value = value


def moments(
    encode: Callable[[object], object] = lambda value: value.value,  # type: ignore[attr-defined]
    decode: Callable[[type, object], object] = lambda _, value: Moment(value),  # type: ignore[arg-type]
) -> MsgpackCodec[Moment]:
    """Return a codec with hooks."""
    return MsgpackCodec(Moment, enc_hook=encode, dec_hook=decode)


# Wrong arguments, and what the objects say of themselves


@pytest.mark.parametrize("count", [0, -1, 1.5, True, None], ids=repr)
async def test_a_number_of_messages_that_is_none_is_named(path: Path, count: int) -> None:
    """An invalid number of messages raises an error with the argument's name and the value."""
    error = ValueError if type(count) is int else TypeError
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        with pytest.raises(error, match=f"^max_items={count!r}: must be"):
            await rx.receive_many(count)
        with pytest.raises(error, match=f"^max_items={count!r}: must be"):
            rx.receive_many_nowait(count)
        with pytest.raises(error, match=f"^n={count!r}: must be"):
            rx.peek(count)


async def test_an_error_about_a_position_names_the_argument(path: Path) -> None:
    """`receiver` and `replay` name `start`, `seek` names `to`."""
    async with open_channel(path, int) as channel, channel.receiver() as rx:
        with pytest.raises(ValueError, match=r"^to='newest': must be 'earliest'"):
            await rx.seek("newest")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^start='newest': must be 'earliest'"):
            channel.replay("newest")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"^start='newest': must be 'earliest'"):
            channel.receiver("other", start="newest")  # type: ignore[arg-type]


async def test_every_object_says_what_it_is(path: Path) -> None:
    """A repr has the class, the directory, a consumer's name, and whether it is closed."""
    async with open_channel(path, int) as channel:
        objects = [channel, channel.sender(), channel.receiver("a b"), channel.replay()]
        words = [f"FileChannel '{path}'", f"Sender '{path}'", f"FanOutReceiver '{path}' name='a b'"]
        words.append(f"Receiver '{path}'")
        assert [repr(item) for item in objects] == [f"<{word}>" for word in words]
        clone = channel.receiver("c").clone()
        clone.close()
        assert repr(clone) == f"<FanOutReceiver '{path}' name='c' closed>"
    assert [repr(item) for item in objects] == [f"<{word} closed>" for word in words]
    async with open_channel(path, int, readonly=True) as channel:
        assert repr(channel) == f"<FileChannel '{path}' read-only>"


# Codecs of the user


async def test_a_codec_of_ones_own(path: Path) -> None:
    """Any object with a name, `encode` and `decode` can be a codec."""
    async with open_channel(path, str, codec=Upper()) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send("one")
        tx.send_many_nowait(["two", "three"])
        assert await rx.receive() == "one"
        assert rx.peek(5) == rx.receive_many_nowait(5) == ["two", "three"]
    assert b"THREE" in (path / "segments" / f"{0:020}.seg").read_bytes()


async def test_a_codec_of_ones_own_is_remembered_by_its_name(path: Path) -> None:
    """A channel opens only with a codec of the same name."""
    async with open_channel(path, str, codec=Upper()):
        pass
    with pytest.raises(OptionsMismatchError, match="upper"):
        await open_channel(path, str)
    async with open_channel(path, str, codec=Upper()):
        pass


async def test_the_schema_of_a_codec_of_ones_own_can_be_changed(path: Path) -> None:
    """`configure` describes a type as an open with the same codec would."""

    class Shout(str):
        """What only the codec understands."""

        __slots__ = ()

    async with open_channel(path, str, codec=Upper()) as channel:
        await channel.configure(schema=Shout)
    async with open_channel(path, Shout, codec=Upper()):  # type: ignore[arg-type]
        pass


async def test_an_error_of_a_codec_is_a_codec_error(path: Path) -> None:
    """What a codec raises while encoding is the cause of a `CodecError`, and nothing is written."""
    async with open_channel(path, str, codec=Upper()) as channel, channel.sender() as tx:
        for send in (tx.send_nowait, lambda value: tx.send_many_nowait(["fine", value])):
            with pytest.raises(CodecError, match="nothing to say") as caught:
                send(" ")
            assert isinstance(caught.value.__cause__, ValueError)
        with pytest.raises(CodecError, match="nothing to say"):
            await tx.send(" ")
        assert tx.write_offset == 0


@pytest.mark.parametrize(
    "payload", ["text", None, 3, bytearray(b"x"), memoryview(b"x")], ids=lambda value: type(value).__name__
)
async def test_a_codec_that_does_not_return_bytes_is_refused(path: Path, payload: object) -> None:
    """A payload that is not `bytes` is a `CodecError` that names its type, and nothing is written."""
    codec = SimpleNamespace(name="odd", encode=lambda _: payload, decode=bytes)
    async with open_channel(path, str, codec=codec) as channel, channel.sender() as tx:
        with pytest.raises(CodecError, match=type(payload).__name__):
            await tx.send("x")
        with pytest.raises(CodecError, match=type(payload).__name__):
            await tx.send_many(["x"])
        assert tx.write_offset == 0


@pytest.mark.parametrize(
    "codec",
    [
        SimpleNamespace(),
        SimpleNamespace(name="x", encode=bytes),
        SimpleNamespace(name="", encode=bytes, decode=bytes),
        SimpleNamespace(name=3, encode=bytes, decode=bytes),
        MsgpackCodec(int),
        3,
    ],
    ids=["nothing", "no decode", "empty name", "number as name", "another type", "number"],
)
def test_an_object_that_is_not_a_codec_is_refused_at_once(path: Path, codec: object) -> None:
    """A codec without a name or a method, or for another type, is a `TypeError` of the call itself."""
    with pytest.raises(TypeError, match="codec"):
        open_channel(path, str, codec=codec)  # type: ignore[call-overload]


async def test_an_interrupt_in_a_codec_changes_nothing(path: Path) -> None:
    """What is not an `Exception` passes through a codec unchanged; nothing is sent, and nothing is consumed."""

    class Stop(BaseException):
        pass

    stop = False

    def decode(_: type, value: object) -> Moment:
        if stop:
            raise Stop
        return Moment(value)  # type: ignore[arg-type]

    def encode(value: object) -> object:
        if stop:
            raise Stop
        return value.value  # type: ignore[attr-defined]

    async with open_channel(path, Moment, codec=moments(encode, decode)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            tx.send_many_nowait([Moment(1), Moment(2)])
            stop = True
            for action in (
                lambda: tx.send_nowait(Moment(3)),
                lambda: tx.send_many_nowait([Moment(3)]),
                rx.receive_nowait,
                lambda: rx.receive_many_nowait(5),
                rx.peek,
            ):
                with pytest.raises(Stop):
                    action()
            with pytest.raises(Stop):
                await tx.send(Moment(3))
            with pytest.raises(Stop):
                await rx.receive()
            stop = False
            assert channel.statistics().messages == 2
            assert [item.value for item in rx.receive_many_nowait(5)] == [1, 2]


# Messages that do not decode


async def mixed(path: Path) -> list[int]:
    """Make a channel of Orders in which the numbers 1, 2000 and 2001 are something else; return all offsets."""
    async with open_channel(path, object) as channel, channel.sender() as tx:
        offsets = [
            tx.send_nowait({"id": number, "sku": "pen", "qty": 1} if number not in (1, 2000, 2001) else "no order")
            for number in range(2003)
        ]
        await channel.configure(schema=Order)
        await channel.seal()
    return offsets


async def test_an_undecodable_message_can_be_skipped(path: Path) -> None:
    """`DecodeError` has the position of the message and the next one; the position stays until a seek."""
    offsets = await mixed(path)
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        assert await rx.receive() == Order(0)
        for _ in range(2):
            with pytest.raises(DecodeError) as caught:
                await rx.receive()
            error = caught.value
            assert (error.offset, error.next_offset) == (offsets[1], offsets[2])
            assert msgspec.msgpack.decode(error.payload) == "no order"
            assert isinstance(error.__cause__, msgspec.DecodeError)
            assert "Order" in str(error)
            assert rx.read_offset == offsets[1]
        for again in (rx.receive_nowait, rx.peek, lambda: rx.receive_many_nowait(5)):
            with pytest.raises(DecodeError):
                again()
        for later in (rx.receive_record, lambda: rx.receive_many(5), lambda: rx.receive_many(5000), rx.__anext__):
            with pytest.raises(DecodeError):
                await later()
        await rx.seek(error.next_offset)
        record = await rx.receive_record()
        assert (record.value, record.sequence) == (Order(2), 2)


@pytest.mark.parametrize("many", [10, 1000, 3000])
async def test_many_messages_before_one_that_does_not_decode(path: Path, many: int) -> None:
    """What comes before a message that does not decode is received first, however many are asked for."""
    await mixed(path)
    got, refused = list[int](), list[int]()
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        while True:
            try:
                got += [order.id for order in await rx.receive_many(many)]
            except DecodeError as error:
                refused.append(error.offset)
                await rx.seek(error.next_offset)
            except EndOfStream:
                break
    assert got == [number for number in range(2003) if number not in (1, 2000, 2001)]
    assert len(refused) == 3


async def test_peek_stops_before_a_message_that_does_not_decode(path: Path) -> None:
    """`peek` returns the messages before one that does not decode."""
    await mixed(path)
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        assert rx.peek(10) == [Order(0)]


async def test_a_message_that_does_not_decode_survives_reopening(path: Path) -> None:
    """A consumer that stopped at such a message is still there after reopening."""
    offsets = await mixed(path)
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        await rx.receive()
        with pytest.raises(DecodeError):
            await rx.receive()
    async with open_channel(path, Order) as orders, orders.receiver() as rx:
        assert rx.read_offset == offsets[1]


# Hooks that do strange things


async def test_a_hook_that_sends(path: Path) -> None:
    """A hook that sends while its message is encoded sends first; nothing is torn."""
    inner = True

    def encode(value: object) -> object:
        nonlocal inner
        if inner:
            inner = False
            tx.send_nowait(Moment(100))
        return value.value  # type: ignore[attr-defined]

    async with open_channel(path, Moment, codec=moments(encode)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            await tx.send(Moment(1))
            inner = True
            await tx.send_many([Moment(2), Moment(3)])
            assert [item.value for item in rx.receive_many_nowait(9)] == [100, 1, 100, 2, 3]


async def test_a_hook_that_receives_from_its_own_receiver(path: Path) -> None:
    """A hook that uses the receiver that is decoding gets an error, which becomes the error of the message."""

    def decode(_: type, value: object) -> Moment:
        if reenter:
            rx.receive_nowait()
        return Moment(value)  # type: ignore[arg-type]

    async with open_channel(path, Moment, codec=moments(decode=decode)) as channel:
        with channel.sender() as tx, channel.receiver() as rx:
            await tx.send_many([Moment(1), Moment(2)])
            reenter = True
            with pytest.raises(DecodeError, match="the same thread is already reading"):
                await rx.receive()
            with pytest.raises(DecodeError, match="the same thread is already reading"):
                rx.receive_many_nowait(5)
            reenter = False
            assert [item.value for item in rx.receive_many_nowait(5)] == [1, 2]


async def test_a_hook_that_receives_from_another_receiver(path: Path) -> None:
    """A hook may use another receiver of the channel, and send."""

    def decode(_: type, value: object) -> Moment:
        nonlocal depth
        if depth == 0:
            depth += 1
            assert other.receive_nowait().value == value
            tx.send_nowait(Moment(100))
            depth -= 1
        return Moment(value)  # type: ignore[arg-type]

    depth = 0
    async with open_channel(path, Moment, codec=moments(decode=decode)) as channel:
        with channel.sender() as tx, channel.receiver("a") as rx, channel.receiver("b") as other:
            await tx.send_many([Moment(1), Moment(2)])
            assert [item.value for item in (await rx.receive(), await rx.receive())] == [1, 2]
            assert channel.statistics().messages == 4


async def test_a_hook_that_closes_its_own_receiver(path: Path) -> None:
    """A hook that closes the receiver that is decoding ends the receiver, and nothing crashes."""

    def decode(_: type, value: object) -> Moment:
        rx.close()
        return Moment(value)  # type: ignore[arg-type]

    async with open_channel(path, Moment, codec=moments(decode=decode)) as channel, channel.sender() as tx:
        await tx.send_many([Moment(1), Moment(2), Moment(3)])
        for many in (1, 3):
            rx = channel.receiver()
            assert 1 <= len(rx.receive_many_nowait(many)) <= many
            with pytest.raises(anyio.ClosedResourceError):
                rx.receive_nowait()


async def test_a_hook_that_closes_its_sender(path: Path) -> None:
    """A hook that closes the sender that is encoding does not lose the message that is on its way."""

    def encode(value: object) -> object:
        tx.close()
        return value.value  # type: ignore[attr-defined]

    async with open_channel(path, Moment, codec=moments(encode)) as channel, channel.receiver() as rx:
        tx = channel.sender()
        await tx.send(Moment(1))
        with pytest.raises(anyio.ClosedResourceError):
            await tx.send(Moment(2))
        assert [item.value for item in rx.receive_many_nowait(5)] == [1]


async def test_a_hook_that_changes_the_batch(path: Path) -> None:
    """A list that changes while it is encoded is refused as a whole, or sent as it was."""

    def encode(value: object) -> object:
        batch.clear()
        return value.value  # type: ignore[attr-defined]

    async with open_channel(path, Moment, codec=moments(encode)) as channel, channel.sender() as tx:
        batch = [Moment(1), Moment(2)]
        with pytest.raises(RuntimeError, match="changed size"):
            tx.send_many_nowait(batch)
        assert channel.statistics().messages == 0
        batch = [Moment(1), Moment(2)]
        await tx.send_many(batch)
        assert channel.statistics().messages == 2


async def test_validation_needs_the_decoder_to_agree(path: Path) -> None:
    """With `validate` what could not be decoded again is refused, whatever the codec."""

    def decode(_: type, value: object) -> Moment:
        if value == 13:
            raise ValueError("unlucky")
        return Moment(value)  # type: ignore[arg-type]

    options = ChannelOptions(validate=True)
    async with open_channel(path, Moment, codec=moments(decode=decode), options=options) as channel:
        with channel.sender() as tx:
            await tx.send(Moment(12))
            with pytest.raises(CodecError, match="unlucky"):
                await tx.send(Moment(13))
            with pytest.raises(CodecError, match="item 1 of the batch"):
                tx.send_many_nowait([Moment(1), Moment(13)])
            assert channel.statistics().messages == 1


async def test_hooks_with_json(path: Path) -> None:
    """Hooks work with the JSON codec as well."""
    codec = JsonCodec(
        Moment,
        enc_hook=lambda value: value.value,  # type: ignore[attr-defined]
        dec_hook=lambda _, value: Moment(value),  # type: ignore[arg-type]
    )
    async with open_channel(path, Moment, codec=codec) as channel, channel.sender() as tx, channel.receiver() as rx:
        await tx.send(Moment(5))
        assert (await rx.receive()).value == 5
