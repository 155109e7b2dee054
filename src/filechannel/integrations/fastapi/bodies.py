"""Types of msgspec where FastAPI expects models."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast, final

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


@final
class ByMsgspec:
    """Says that a type is checked, and shown, by msgspec: `Annotated[Order, Body(), ByMsgspec]`.

    For bodies and responses of FastAPI, and fields of models. What does not fit gets the status 422, with what is wrong
    where; the schema is part of the app's OpenAPI document.
    """

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check with msgspec, and serialize with it."""
        return core_schema.no_info_plain_validator_function(
            partial(_convert, source),
            metadata={"filechannel": source},
            serialization=core_schema.plain_serializer_function_ser_schema(partial(msgspec.to_builtins, str_keys=True)),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, object]:
        """Describe it as msgspec does, in one piece."""
        source = cast("Mapping[str, Mapping[str, object]]", schema)["metadata"]["filechannel"]
        (described,), components = msgspec.json.schema_components((source,), ref_template="{name}")
        return cast("dict[str, object]", _inline(described, components, ()))


def _convert(source: object, value: object) -> object:
    try:
        return msgspec.convert(value, source, str_keys=True)
    except msgspec.ValidationError as error:
        raise PydanticCustomError("msgspec", "{reason}", {"reason": str(error)}) from error


def _inline(part: object, components: dict[str, object], around: tuple[str, ...]) -> object:
    """Put definitions where they are referred to; one that contains itself is any object there."""
    if isinstance(part, list):
        return [_inline(item, components, around) for item in cast("list[object]", part)]
    if not isinstance(part, dict):
        return part
    fields = cast("dict[str, object]", part)
    if "$ref" in fields:
        name = str(fields["$ref"])
        return {"title": name} if name in around else _inline(components[name], components, (*around, name))
    return {key: _inline(item, components, around) for key, item in fields.items() if key != "discriminator"}
