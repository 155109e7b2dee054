"""Every exception says what happened and what to do, and survives pickling and copying."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from filechannel import _errors as errors
from filechannel._offset import Offset

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

EXAMPLES: list[tuple[errors.FileChannelError, dict[str, object]]] = [
    (errors.FileChannelError("something"), {}),
    (errors.ChannelNotFoundError("data/orders"), {"path": Path("data/orders")}),
    (errors.ChannelNotFoundError("data/orders", readonly=True), {"path": Path("data/orders")}),
    (errors.NotAChannelError("data", "it is a file"), {"path": Path("data"), "reason": "it is a file"}),
    (errors.ChannelSealedError(Path("data")), {"path": Path("data")}),
    (errors.ChannelFullError("data", 108, 4), {"size": 108, "messages": 4, "has_consumers": True}),
    (errors.ChannelFullError("data", 8, 1, has_consumers=False), {"path": Path("data"), "has_consumers": False}),
    (
        errors.ChannelLockedError("data", 4711, "box", SINCE),
        {"path": Path("data"), "pid": 4711, "host": "box", "since": SINCE},
    ),
    (
        errors.ChannelMismatchError("data", "channel a", "channel b", "box"),
        {"path": Path("data"), "expected": "channel a", "found": "channel b", "host": "box"},
    ),
    (errors.ChannelLockedError("data", None, None, None), {"pid": None, "host": None, "since": None}),
    (
        errors.ChannelLockedError("data", 4711, "box", SINCE, "its lock was deleted"),
        {"path": Path("data"), "pid": 4711, "host": "box", "since": SINCE},
    ),
    (
        errors.UntrustedChannelError("data", "it is odd", 1000, None),
        {"path": Path("data"), "reason": "it is odd", "owner": 1000, "mode": None},
    ),
    (
        errors.OptionsMismatchError("segment_size", 4096, 8192),
        {"option": "segment_size", "stored": 4096, "given": 8192, "path": None},
    ),
    (
        errors.OptionsMismatchError("mode", 0o600, 0o644, "think again", path="data"),
        {"option": "mode", "stored": 0o600, "given": 0o644, "path": Path("data")},
    ),
    (
        errors.SchemaMismatchError("Order.qty", "int", "str"),
        {"field": "Order.qty", "expected": "int", "found": "str", "path": None},
    ),
    (
        errors.SchemaMismatchError("Order.qty", "int", "str", "think again", path="data"),
        {"field": "Order.qty", "expected": "int", "found": "str", "path": Path("data")},
    ),
    (errors.CodecError("too odd"), {"reason": "too odd", "index": None}),
    (errors.CodecError("too odd", 3), {"reason": "too odd", "index": 3}),
    (errors.MessageTypeError("Order", "dict", 1), {"expected": "Order", "found": "dict", "index": 1}),
    (
        errors.DecodeError(Offset(10), Offset(20), "truncated", b"\xc1"),
        {"offset": 10, "next_offset": 20, "reason": "truncated", "payload": b"\xc1", "index": None},
    ),
    (errors.MessageTooLargeError(2000, 1000), {"size": 2000, "limit": 1000, "index": None}),
    (errors.MessageTooLargeError(20, 10, unit="messages"), {"size": 20, "limit": 10, "unit": "messages"}),
    (errors.MessageTooLargeError(2000, 1000, 7), {"size": 2000, "limit": 1000, "index": 7}),
    (errors.ConsumerError("billing", "odd"), {"name": "billing", "reason": "odd"}),
    (
        errors.HandlerError("billing", Offset(10), 5, "ValueError: no", path="data"),
        {"name": "billing", "offset": 10, "attempts": 5, "path": Path("data")},
    ),
    (
        errors.ConsumerBusyError("billing", 4711, "box", SINCE),
        {"name": "billing", "pid": 4711, "host": "box", "since": SINCE},
    ),
    (
        errors.ConsumerMismatchError("billing", "a group", "a single consumer"),
        {"name": "billing", "found": "a group", "wanted": "a single consumer"},
    ),
    (errors.ConsumerDamagedError("billing", path="data"), {"name": "billing", "path": Path("data")}),
    (errors.UnknownConsumerError("billing"), {"name": "billing", "path": None}),
    (errors.UnknownConsumerError("billing", path="data"), {"name": "billing", "path": Path("data")}),
    (
        errors.HandlerError("billing", Offset(10), 5, "ValueError: no", path="data"),
        {"name": "billing", "offset": 10, "attempts": 5, "path": Path("data")},
    ),
    (
        errors.ConsumerBusyError("billing", 4711, "box", SINCE, "think again", path="data"),
        {"name": "billing", "pid": 4711, "path": Path("data")},
    ),
    (errors.ConsumerMismatchError("billing", "a group", "a single consumer", path="data"), {"path": Path("data")}),
    (errors.AckError("billing", "ack(3) with 2 outstanding"), {"name": "billing"}),
    (errors.LeaseExpiredError("billing", Offset(7)), {"name": "billing", "offset": 7}),
    (errors.StorageError("odd"), {"reason": "odd"}),
    (errors.DiskFullError("data", 4096), {"path": Path("data"), "needed": 4096}),
    (errors.DataExpiredError(5, Offset(100)), {"missed": 5, "oldest": 100}),
    (
        errors.CorruptRecordError("0.seg", Offset(3), "checksum mismatch"),
        {"segment": "0.seg", "offset": 3, "reason": "checksum mismatch"},
    ),
    (
        errors.UnexpectedFileError("data/control", "a FIFO", channel="data"),
        {"path": Path("data/control"), "found": "a FIFO", "wanted": "a regular file", "channel": Path("data")},
    ),
    (
        errors.UnexpectedFileError("data/control", "a file with 2 names", "one of its own", linked=True),
        {"found": "a file with 2 names", "wanted": "one of its own", "channel": None, "linked": True},
    ),
    (errors.UnsupportedFormatError(7, 1), {"found": 7, "supported": 1, "path": None}),
    (errors.UnsupportedFormatError(7, 1, path="data"), {"found": 7, "supported": 1, "path": Path("data")}),
    (errors.UnsupportedFormatError("zstd", "none", "install it"), {"found": "zstd", "supported": "none"}),
]

every_error = pytest.mark.parametrize(
    ("error", "attributes"), EXAMPLES, ids=[type(error).__name__ for error, _ in EXAMPLES]
)


def _public_classes() -> list[type[errors.FileChannelError]]:
    return [getattr(errors, name) for name in errors.__all__]


def test_every_error_has_an_example() -> None:
    """The examples of this file cover every public exception."""
    assert {type(error) for error, _ in EXAMPLES} == set(_public_classes())


def test_every_error_is_ours() -> None:
    """One except clause catches every error of the package."""
    assert all(issubclass(cls, errors.FileChannelError) for cls in _public_classes())


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    """The module docstring draws every exception under its real parent."""
    parents: list[str] = []
    drawn: dict[str, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if "── " not in line:
            continue
        depth, name = line.index("── ") // 4, line.split("── ")[1].split()[0]
        parents[depth:] = [name]
        drawn[name] = parents[depth - 1] if depth > 1 else "FileChannelError"
    names = [name for name in errors.__all__ if name != "FileChannelError"]
    assert drawn == {name: _drawn_parent(getattr(errors, name)) for name in names}


def _drawn_parent(cls: type) -> str:
    return next(base.__name__ for base in inspect.getmro(cls)[1:] if base.__name__ in errors.__all__)


@every_error
def test_attributes_are_kept(error: errors.FileChannelError, attributes: dict[str, object]) -> None:
    """What the constructor takes is found again in typed attributes."""
    assert {name: getattr(error, name) for name in attributes} == attributes


@every_error
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_pickles(error: errors.FileChannelError, attributes: dict[str, object], protocol: int) -> None:
    """An error that crosses a process keeps its class, its message and its attributes."""
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


@every_error
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_every_error_copies(
    error: errors.FileChannelError,
    attributes: dict[str, object],
    duplicate: Callable[[errors.FileChannelError], errors.FileChannelError],
) -> None:
    """A copy has the same message and attributes and does not share them."""
    again = duplicate(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
    again.add_note("only here")
    assert not hasattr(error, "__notes__")


def test_notes_travel_with_an_error() -> None:
    """A note added on one side of a process boundary is there on the other."""
    error = errors.UnknownConsumerError("billing")
    error.add_note("while joining")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while joining"]


def test_errors_of_a_user_subclass_pickle_whatever_they_take() -> None:
    """A subclass with another constructor needs nothing of its own to pickle."""
    assert str(pickle.loads(pickle.dumps(OwnError(1, two="2")))) == "1 and 2"


class OwnError(errors.StorageError):
    """An error as an application may derive it."""

    def __init__(self, one: int, *, two: str) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.ChannelNotFoundError("data/orders"), ["data/orders", "create=True"]),
        (errors.ChannelNotFoundError("data/orders", readonly=True), ["data/orders", "readonly=True"]),
        (
            errors.NotAChannelError("data", "it is a file"),
            ["it is a file", "nothing was changed", "another path"],
        ),
        (errors.NotAChannelError("data", "cut off", "mend it"), ["data", "cut off", "nothing was changed, mend it"]),
        (errors.NotAChannelError.without_manifest("data", "cut off"), ["filechannel repair --like OTHER data --apply"]),
        (errors.ChannelSealedError("data"), ["data", "sealed"]),
        (errors.ChannelLockedError("data", 4711, "box", SINCE), ["4711", "box", "2026-01-02 03:04:05+00:00"]),
        (errors.ChannelLockedError("data", None, None, None), ["another process"]),
        (
            errors.ChannelMismatchError("data", "channel a", "channel b", "box"),
            ["data on host box is channel b, expected channel a", "see the same directory"],
        ),
        (errors.ChannelLockedError("data", 4711, "box", SINCE, "its lock was deleted"), ["(its lock was deleted)"]),
        (
            errors.UntrustedChannelError("data", "it is odd", 1000, 0o660),
            ["this user alone: it is odd"],
        ),
        (errors.OptionsMismatchError("mode", 0o600, 0o644), ["mode=0o600", "not 0o644", "fixed at creation"]),
        (errors.OptionsMismatchError("codec", "a", "b", "use a", path="data"), ["data", "codec='a'", "'b'; use a"]),
        (errors.SchemaMismatchError("Order.qty", "int", "str"), ["Order.qty", "int", "str", "configure(schema="]),
        (errors.SchemaMismatchError("Order.qty", "int", "str", "use int", path="data"), ["data", "str; use int"]),
        (errors.MessageTypeError("Order", "dict"), ["Order", "dict"]),
        (errors.DecodeError(Offset(10), Offset(20), "odd", b""), ["10", "odd", "seek(20)"]),
        (errors.MessageTooLargeError(2000, 1000), ["2,000", "1,000"]),
        (errors.ConsumerBusyError("billing", 4711, "box", SINCE), ["'billing'", "4711", "clone()", "group()"]),
        (errors.ConsumerMismatchError("billing", "a group", "single"), ["a group", "single", "remove_consumer()"]),
        (errors.ConsumerDamagedError("billing"), ["'billing'", "filechannel repair CHANNEL --apply"]),
        (errors.ConsumerDamagedError("billing", path="my data"), ["filechannel repair 'my data' --apply", "remove_"]),
        (errors.UnknownConsumerError("billing"), ["'billing'", "consumers()"]),
        (errors.LeaseExpiredError("billing", Offset(7)), ["'billing'", "7", "extend()"]),
        (errors.ChannelFullError("data", 108, 4), ["data", "108", "4 messages", "slowest", "consumers()"]),
        (
            errors.ChannelFullError("data", 8, 1, has_consumers=False),
            ["data", "no consumer", "every stored", "purge()"],
        ),
        (errors.DiskFullError("data", 4096), ["data", "4,096 bytes", "nothing was written", "try again"]),
        (errors.DiskFullError("data", 0), ["data", "one more file", "nothing was written", "try again"]),
        (errors.DataExpiredError(5, Offset(100)), ["5", "100"]),
        (errors.CorruptRecordError("0.seg", Offset(3), "odd"), ["0.seg", "3", "odd", "on_corruption='skip'"]),
        (errors.CorruptRecordError("0.seg", Offset(3), "odd", path="data"), ["filechannel repair data --apply"]),
        (errors.UnexpectedFileError("d/x", "a FIFO", channel="d"), ["d/x is a FIFO", "filechannel repair d --apply"]),
        (
            errors.UnexpectedFileError("d/x", "a file with 2 names", "one of its own", channel="d", linked=True),
            ["d/x is a file with 2 names", "'filechannel repair d --apply' replaces it with a copy"],
        ),
        (errors.UnsupportedFormatError(7, 1), ["version 7", "version 1", "newer filechannel"]),
        (errors.UnsupportedFormatError(7, 1, path="data"), ["data", "version 7", "version 1", "nothing was changed"]),
        (errors.UnsupportedFormatError("zstd", "none", "install filechannel[zstd]"), ["zstd", "filechannel[zstd]"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_messages_name_the_thing_and_what_to_do(error: errors.FileChannelError, words: list[str]) -> None:
    """A message names what is wrong, with its values, and the way out."""
    assert [word for word in words if word not in str(error)] == []


def test_what_cannot_be_created_read_only_is_not_advised() -> None:
    """A read-only open creates nothing: the error does not send the user to create=True."""
    assert "create=" not in str(errors.ChannelNotFoundError("data/orders", readonly=True))


def test_a_busy_consumer_is_a_busy_resource_to_anyio() -> None:
    """Code written for anyio's streams catches a busy consumer, with our message."""
    with pytest.raises(anyio.BusyResourceError, match=r"'billing'.*clone\(\).*group\(\)"):
        raise errors.ConsumerBusyError("billing", None, None, None)


def test_a_wrong_type_is_a_type_error_too() -> None:
    """A value of the wrong type is caught as TypeError as well as CodecError."""
    error = errors.MessageTypeError("Order", "dict")
    assert isinstance(error, TypeError)
    assert isinstance(error, errors.CodecError)


@pytest.mark.parametrize(
    "error",
    [errors.CodecError("odd"), errors.MessageTypeError("Order", "dict"), errors.MessageTooLargeError(2, 1)],
)
def test_at_returns_the_error_of_an_item(
    error: errors.CodecError | errors.MessageTooLargeError,
) -> None:
    """An error about a value becomes one about an item of a batch, with the same cause."""
    error.__cause__ = ValueError("why")
    item = error.at(4)
    assert type(item) is type(error)
    assert (item.index, str(item)) == (4, f"item 4 of the batch: {error}")
    assert item.__cause__ is error.__cause__
    assert error.index is None
    assert str(pickle.loads(pickle.dumps(item))) == str(item)


def test_at_replaces_an_index() -> None:
    """An item of a part of a batch can be renumbered for the whole."""
    assert str(errors.CodecError("odd", 1).at(11)) == "item 11 of the batch: odd"
