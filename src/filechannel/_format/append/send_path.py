"""Encoding an object and appending it as a record: the pure-Python implementation of send_path.c.

`encode` checks its argument. Items whose type is exactly one of `exact` need no check: they go through `encode_into`,
which saves creating a bytes object. Without `encode` any buffer is its own payload. `refuse` is called with an item
that cannot be encoded, and raises the error.
"""

# The C core checks the types of its arguments, and so does this implementation.
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

from typing_extensions import Buffer

from ..._errors import Busy
from ..clock import charge_slice, slice_is_over
from ..memory.arguments import unsigned
from .writer import Writer


class SendPath:
    """Encodes items of one type into one writer."""

    def __init__(
        self,
        writer: Writer,
        encode: Callable[[object], bytes] | None,
        refuse: Callable[[object, Exception | None, int | None], NoReturn],
        encode_into: Callable[[object, bytearray], object] | None = None,
        exact: tuple[type, ...] = (),
        /,
    ) -> None:
        if not isinstance(writer, Writer):
            raise TypeError(f"writer must be a Writer, not {type(writer).__name__}")
        if not isinstance(exact, tuple):
            raise TypeError("exact must be a tuple of types")
        self._writer = writer
        self._encode = encode
        self._refuse = refuse
        self._encode_into = encode_into
        self._exact = exact

    @property
    def deferred(self) -> bool:
        """Whether publishing is left to the flush."""
        return self._writer.deferred

    def put(self, item: object, /) -> int:
        """Encode and append one item; return its offset."""
        return self._writer.append(self._encoded(item, None))

    def put_or_yield(self, item: object, /) -> int | None:
        """Like `put`, for a coroutine: None, with nothing done, if it has to yield or to wait for another process."""
        try:
            return None if self._writer.deferred or slice_is_over() else self.put(item)
        except Busy:
            return None

    def put_all(self, items: list[object], /) -> int:
        """Encode and append a list as one batch; return the first offset."""
        return self._writer.append_all(self._encoded_list(items, 0))

    def encode_all(self, items: list[object], first: int, /) -> list[bytes]:
        """Encode a list of items; the index in an error message counts from *first*."""
        payloads = self._encoded_list(items, first)
        for payload in payloads:  # the caller encodes slice by slice, and checks in between whether to yield
            charge_slice(len(payload))
        return payloads

    def _encoded_list(self, items: list[object], first: int) -> list[bytes]:
        if type(items) is not list:
            raise TypeError("items must be a list")
        first, count = unsigned(first), len(items)
        payloads: list[bytes] = []
        for index in range(count):
            if len(items) != count:
                raise RuntimeError("the list changed size while it was encoded")
            payloads.append(self._encoded(items[index], first + index))
        return payloads

    def _encoded(self, item: object, index: int | None) -> bytes:
        error = None
        try:
            if self._encode is not None or _is_buffer(item):
                payload = self._payload(item)
                if isinstance(payload, bytes):
                    return payload
                raise TypeError(f"the codec's encode() returned {type(payload).__name__}, not bytes")
        except Exception as failure:
            error = failure
        self._refuse(item, error, index)
        raise SystemError("refuse() must raise")

    def _payload(self, item: object) -> bytes:
        if self._encode_into is not None and type(item) in self._exact:
            buffer = bytearray()
            self._encode_into(item, buffer)
            return bytes(buffer)
        return _raw(item) if self._encode is None else self._encode(item)


def _raw(item: object) -> bytes:
    """In raw mode any buffer is its own payload."""
    return item if type(item) is bytes else memoryview(cast("Buffer", item)).tobytes()


def _is_buffer(item: object) -> bool:
    try:
        memoryview(cast("Buffer", item)).release()
    except TypeError:
        return False
    return True
