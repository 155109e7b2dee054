"""Lets FastAPI use msgspec types where it expects pydantic models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, cast, final

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_DEEPEST_SHOWN: Final = 32  # FastAPI copies the input recursively
_DEEPEST: Final = 128
"""The deepest nesting of lists and objects: pydantic serializes 255 levels, and models around the value count."""


@final
class ByMsgspec:
    """Marks a type as validated and serialized by msgspec: `Annotated[Order, Body(), ByMsgspec]`.

    For bodies and responses of FastAPI, and fields of models. Invalid input gets the status 422, which says what is
    wrong and where. So does input that no channel can store or no response can contain: an integer beyond 64 bits, a
    lone surrogate, or more than 128 nested values. The schema is part of the app's OpenAPI document.

    A type with a `msgspec.Raw` field cannot be a response: its bytes do not say with which codec they are encoded.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Validate with msgspec, and serialize with it."""
        return core_schema.chain_schema(
            [
                core_schema.no_info_plain_validator_function(partial(_convert, source)),
                core_schema.no_info_plain_validator_function(_refuse),
            ],
            metadata={"filechannel": source},
            serialization=core_schema.plain_serializer_function_ser_schema(partial(msgspec.to_builtins, str_keys=True)),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        """Return the JSON schema that msgspec generates, with all references inlined."""
        source = cast("Mapping[str, Mapping[str, object]]", schema)["metadata"]["filechannel"]
        (described,), components = msgspec.json.schema_components((source,), ref_template="{name}")
        return cast("dict[str, object]", _inline(described, components, ()))


@final
class _Refused(str):
    """The description of an invalid input that FastAPI could not include in its response."""

    __slots__ = ("reason",)

    reason: str


def _convert(source: object, value: object) -> object:
    """Return a value of the type. Return `_Refused` instead of raising if the error must not include the input."""
    try:
        converted = msgspec.convert(value, source, str_keys=True)
        msgspec.msgpack.encode(converted)  # raises for values that fit the type and cannot be stored
        if _is_nested_deeper(value, _DEEPEST):
            raise RecursionError
    except (msgspec.ValidationError, ValueError, OverflowError, RecursionError) as error:
        reason = _reason(error)
        if _is_showable(value, _DEEPEST_SHOWN):
            raise _error(reason) from error
        refused = _Refused("(not shown: it cannot be repeated as JSON)")
        refused.reason = reason
        return refused
    return converted


def _refuse(value: object) -> object:
    """Raise the error for a refused input. FastAPI then includes the description instead of the input."""
    if isinstance(value, _Refused):
        raise _error(value.reason)
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, OverflowError):
        return "Expected every `int` within 64 bits"
    if isinstance(error, UnicodeEncodeError):
        return "Expected every `str` without lone surrogates"
    if isinstance(error, RecursionError):
        return "Expected fewer nested values"
    return str(error)


def _error(reason: str) -> PydanticCustomError:
    # The reason may quote a key of the input.
    return PydanticCustomError("msgspec", "{reason}", {"reason": reason.encode(errors="backslashreplace").decode()})


def _is_nested_deeper(value: object, depth: int) -> bool:
    """Return whether lists and objects of a parsed JSON value are nested more than *depth* levels deep."""
    level = [value]
    for _ in range(depth):
        level = [item for each in level for item in _items(each) if isinstance(item, (dict, list))]
        if not level:
            return False
    return True


def _items(value: object) -> Iterable[object]:
    match value:
        case dict():
            return cast("dict[object, object]", value).values()
        case list():
            return cast("list[object]", value)
        case _:
            return ()


def _is_showable(value: object, depth: int) -> bool:
    """Return whether FastAPI can repeat a parsed JSON value in a response. It fails on what JSON does not allow."""
    match value:
        case str():
            return not any("\ud800" <= each <= "\udfff" for each in value)
        case float():
            return math.isfinite(value)
        case dict():
            items = cast("dict[object, object]", value).items()
            return depth > 0 and all(_is_showable(k, 0) and _is_showable(v, depth - 1) for k, v in items)
        case list():
            return depth > 0 and all(_is_showable(item, depth - 1) for item in cast("list[object]", value))
        case _:
            return True


def _inline(part: object, components: dict[str, object], around: tuple[str, ...]) -> object:
    """Replace references by their definitions. A recursive reference becomes an object of any content."""
    if isinstance(part, list):
        return [_inline(item, components, around) for item in cast("list[object]", part)]
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, object]", part)
    if "$ref" in fields:
        name = str(fields["$ref"])
        return {"title": name} if name in around else _inline(components[name], components, (*around, name))
    return {key: _inline(item, components, around) for key, item in fields.items() if key != "discriminator"}
