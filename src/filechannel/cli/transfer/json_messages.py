"""Converts messages to JSON and back by the schema in the manifest, with the same result as `JsonCodec`.

Bytes are base64, and so are whole messages of a channel with a custom codec.
"""

from __future__ import annotations

from typing import TypeAlias, cast, final

import msgspec

from ..._channel.lifecycle.channel_description import Description

Message: TypeAlias = object
"""A message of a channel, as the channel returns or accepts it."""


class NotAMessageError(ValueError):
    """A text that is not a message of the channel. The error says why."""


@final
class Json:
    """Converts the messages of one channel to JSON and back."""

    def __init__(self, description: Description) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=_without_equal, decimal_format="string").encode
        self._decode = msgspec.json.Decoder(description.message_type).decode
        self._has_floats = any(node.kind == "float" for node in description.schema.nodes())

    def text(self, message: Message) -> bytes:
        """Return a message as JSON, in one line. Raise `ValueError` if JSON cannot represent it."""
        try:
            return self._encode(message)
        except (TypeError, NotImplementedError, msgspec.MsgspecError) as error:
            raise ValueError(f"JSON cannot represent it: {error}") from error

    def exact(self, message: Message) -> bytes:
        """Return a message as JSON from which it can be restored. Raise `ValueError` if JSON would lose information."""
        text = self.text(message)
        # Infinity and NaN become null, which does not decode as a float.
        if b"null" in text and self._has_floats:
            try:
                self._decode(text)
            except msgspec.MsgspecError:
                raise ValueError("JSON has no infinity and no NaN: export to Parquet") from None
        return text

    def message(self, text: bytes) -> Message:
        """Return the message of a JSON text. `NotAMessageError` names the field that is wrong."""
        try:
            return cast("Message", self._decode(text))
        except msgspec.MsgspecError as error:
            raise NotAMessageError(str(error)) from error


def _without_equal(value: object) -> object:
    """Return a representation of a value that JSON has no type for."""
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data": value.data}
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")
