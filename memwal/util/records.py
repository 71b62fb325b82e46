"""Records whose fields are shown as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar
from uuid import UUID

JsonObject = dict[str, Any]
JsonMapping = Mapping[str, Any]
"""The same, to be read only."""


@dataclass(frozen=True, slots=True)
class JsonRecord:
    """Base of frozen dataclasses that have a JSON form: their fields, then ``json_properties``."""

    json_properties: ClassVar[tuple[str, ...]] = ()
    """Properties that the JSON form has besides the fields."""

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON: ids and times as text, enum members as their values."""
        names = (*(field.name for field in fields(self)), *self.json_properties)
        return {name: plain_value(getattr(self, name)) for name in names}


def plain_value(value: object) -> Any:
    """Return the JSON form of a value: containers are copied, types unknown to it stay as is."""
    match value:
        case JsonRecord():
            return value.to_dict()
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case UUID():
            return str(value)
        case Mapping():
            return {key: plain_value(element) for key, element in value.items()}
        case list() | tuple():
            return [plain_value(element) for element in value]
    if is_dataclass(value):
        return {field.name: plain_value(getattr(value, field.name)) for field in fields(value)}
    return value
