"""Encodes the arguments of a call to bytes, by the type hints of the function. Never uses pickle."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from types import GenericAlias
from typing import Union, final, get_type_hints

import msgspec
from pydantic import BaseModel

from ..._channel.base.dead_letter import error_line
from ..._errors import CodecError


@final
class Arguments:
    """Encodes and decodes the arguments of one function. Raises `TypeError` if its type hints do not allow it.

    Arguments are stored as a map of names to values, without those that the caller omitted. So a function may get more
    parameters with defaults, or other defaults, while calls of it are stored.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        for parameter in self._signature.parameters.values():
            if parameter.name not in hints:
                raise TypeError(f"{name}: {parameter.name!r} has no type hint, which is needed to store it")
        fields = [_field(parameter, hints[parameter.name]) for parameter in self._signature.parameters.values()]
        try:
            self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self._encoder = msgspec.msgpack.Encoder(enc_hook=_encode_model)
            self._decoder = msgspec.msgpack.Decoder(self._struct, dec_hook=_decode_model)
        except TypeError as error:
            raise TypeError(f"{name}: its arguments cannot be stored: {error}") from error

    def encode(self, args: tuple[object, ...], kwargs: dict[str, object]) -> bytes:
        """Return the arguments of a call as bytes.

        Raises `TypeError` if the function does not accept the arguments, `CodecError` if they do not match its type
        hints.
        """
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self._name}: {error}") from None
        try:
            content = self._encoder.encode(self._struct(**given))
            self._decoder.decode(content)  # fail now, while the caller can still react
        except Exception as error:
            raise CodecError(f"{self._name}: the arguments cannot be stored: {error_line(error)}") from error
        return content

    def decode(self, content: msgspec.Raw) -> inspect.BoundArguments:
        """Return the arguments of a stored call. Raise `msgspec.ValidationError` if the function now takes others."""
        stored = msgspec.structs.asdict(self._decoder.decode(content))
        given = {name: value for name, value in stored.items() if value is not msgspec.UNSET}
        return inspect.BoundArguments(self._signature, OrderedDict(given))


def _field(parameter: inspect.Parameter, hint: object) -> tuple[str, object] | tuple[str, object, object]:
    if parameter.kind is parameter.VAR_POSITIONAL:
        hint = GenericAlias(tuple, (hint, ...))
    elif parameter.kind is parameter.VAR_KEYWORD:
        hint = GenericAlias(dict, (str, hint))
    elif parameter.default is parameter.empty:
        return parameter.name, hint
    return parameter.name, Union[hint, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007 (a hint may be a string)


def _encode_model(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump_json(by_alias=True, round_trip=True)
    raise NotImplementedError(f"msgspec does not know {type(value).__name__}: use a Struct, a dataclass or a model")


def _decode_model(kind: type, value: object) -> object:
    if issubclass(kind, BaseModel) and isinstance(value, str):
        return kind.model_validate_json(value)
    raise NotImplementedError(f"msgspec does not know {kind.__name__}")
