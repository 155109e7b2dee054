"""Messages as JSON and back, by the schema in the manifest: what `JsonCodec` would make of them.

Bytes are base64 there, and so are whole messages of a channel whose codec only its users know.
"""

from __future__ import annotations

from typing import TypeAlias, cast, final

import msgspec

from .._channel.untyped import Description

Message: TypeAlias = object
"""A message of some channel, as the channel hands it out or takes it."""


class NotAMessageError(ValueError):
    """A text that is no message of the channel; it says why."""


@final
class Json:
    """The messages of one channel as JSON."""

    def __init__(self, description: Description) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=_without_equal, decimal_format="string").encode
        self._decode = msgspec.json.Decoder(description.message_type).decode
        self._has_floats = any(node.kind == "float" for node in description.schema.nodes())

    def text(self, message: Message) -> bytes:
        """Return a message as JSON, in one line; `ValueError` if JSON has no words for it."""
        try:
            return self._encode(message)
        except (TypeError, NotImplementedError, msgspec.MsgspecError) as error:
            raise ValueError(f"JSON cannot say it: {error}") from error

    def exact(self, message: Message) -> bytes:
        """Return a message as JSON from which it can be made again; `ValueError` if JSON cannot have all of it."""
        text = self.text(message)
        # What is no number becomes null, which is taken for a number nowhere.
        if b"null" in text and self._has_floats:
            try:
                self._decode(text)
            except msgspec.MsgspecError:
                raise ValueError("JSON has no infinity, and nothing that is no number: export to Parquet") from None
        return text

    def message(self, text: bytes) -> Message:
        """Return the message that a JSON text is; `NotAMessageError` if it is none, naming the field."""
        try:
            return cast("Message", self._decode(text))
        except msgspec.MsgspecError as error:
            raise NotAMessageError(str(error)) from error


def _without_equal(value: object) -> object:
    """Show what JSON has nothing like."""
    if isinstance(value, msgspec.msgpack.Ext):
        return {"ext": value.code, "data": value.data}
    raise NotImplementedError(f"{type(value).__name__} has no form in JSON")
