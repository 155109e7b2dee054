"""`open_channel` knows the type of the messages, however it is given."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

from typing_extensions import TypeForm

from filechannel import ChannelContext, ChannelOptions, Durability, FileChannel, JsonCodec, MsgpackCodec, open_channel
from tests.typing.messages import Cancel, Order, Page, Point, Reading


async def a_class() -> None:
    """A Struct, a dataclass and a TypedDict."""
    assert_type(open_channel("orders", Order), ChannelContext[Order])
    assert_type(await open_channel(Path("orders"), Order), FileChannel[Order])
    async with open_channel("orders", Order) as orders:
        assert_type(orders, FileChannel[Order])
    async with open_channel("points", Point) as points:
        assert_type(points, FileChannel[Point])
    async with open_channel("readings", Reading) as readings:
        assert_type(readings, FileChannel[Reading])


async def a_builtin() -> None:
    """Plain types, raw bytes and generic ones."""
    assert_type(await open_channel("numbers", int), FileChannel[int])
    assert_type(await open_channel("raw", bytes), FileChannel[bytes])
    assert_type(await open_channel("maps", dict[str, float]), FileChannel[dict[str, float]])
    assert_type(await open_channel("pairs", tuple[int, str]), FileChannel[tuple[int, str]])
    assert_type(await open_channel("pages", Page[int]), FileChannel[Page[int]])


async def a_type_form() -> None:
    """Unions and None, which are not classes."""
    assert_type(await open_channel("events", Order | Cancel), FileChannel[Order | Cancel])
    assert_type(await open_channel("maybe", int | None), FileChannel[int | None])
    assert_type(await open_channel("nothing", None), FileChannel[None])
    async with open_channel("events", Order | Cancel) as events:
        assert_type(events, FileChannel[Order | Cancel])
        assert_type(events.message_type, TypeForm[Order | Cancel])


async def with_arguments() -> None:
    """Options and codecs do not change the type."""
    options = ChannelOptions(durability=Durability.interval(1), segment_size=1 << 20, validate=True)
    async with open_channel("orders", Order, options=options, create=False, readonly=True, strict_owner=True) as orders:
        assert_type(orders, FileChannel[Order])
    async with open_channel("orders", Order, codec="json") as orders:
        assert_type(orders, FileChannel[Order])
    async with open_channel("orders", Order, codec=JsonCodec(Order)) as orders:
        assert_type(orders, FileChannel[Order])
    async with open_channel("events", Order | Cancel, codec=MsgpackCodec(Order | Cancel)) as events:
        assert_type(events, FileChannel[Order | Cancel])


class Upper:
    """A codec of one's own is whatever has a name, encode and decode."""

    name = "upper"

    def encode(self, value: str, /) -> bytes:
        """Return capital letters."""
        return value.upper().encode()

    def decode(self, payload: bytes, /) -> str:
        """Return small letters."""
        return payload.decode().lower()


async def with_a_codec_of_ones_own() -> None:
    """A codec needs no base class, and its type has to fit."""
    assert_type(await open_channel("texts", str, codec=Upper()), FileChannel[str])
    open_channel("orders", Order, codec=Upper())  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def wrong_arguments() -> None:
    """What is not a path, type, codec or option is an error."""
    open_channel(3, Order)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    open_channel("orders", 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    open_channel("orders", Order, codec="pickle")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    open_channel("orders", Order, options={})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ChannelOptions(durability="fsync")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ChannelOptions(segments=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_variable(form: TypeForm[Order | Cancel], untyped: Any) -> None:
    """A type in a variable keeps its type argument."""
    assert_type(open_channel("events", form), ChannelContext[Order | Cancel])
    open_channel("anything", untyped)
