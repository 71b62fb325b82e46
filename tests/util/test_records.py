import json
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

from memwal.util.records import JsonRecord, plain_value

REGION = UUID(int=7)


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    color: Color


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner(JsonRecord):
    size: int

    json_properties: ClassVar = ("large",)

    @property
    def large(self) -> bool:
        return self.size > 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer(JsonRecord):
    region: UUID
    at: datetime | None
    color: Color
    inner: tuple[Inner, ...]
    points: dict[str, Point]
    note: str = ""


def outer() -> Outer:
    return Outer(
        region=REGION,
        at=datetime(2026, 1, 2, tzinfo=UTC),
        color=Color.RED,
        inner=(Inner(size=1), Inner(size=11)),
        points={"a": Point(1, Color.RED)},
    )


def test_a_record_is_shown_with_its_fields_and_properties_in_plain_values() -> None:
    expected: dict[str, Any] = {
        "region": str(REGION),
        "at": "2026-01-02T00:00:00+00:00",
        "color": "red",
        "inner": [{"size": 1, "large": False}, {"size": 11, "large": True}],
        "points": {"a": {"x": 1, "color": "red"}},
        "note": "",
    }
    shown = outer().to_dict()
    assert shown == expected
    assert type(shown["color"]) is str
    assert json.loads(json.dumps(shown)) == expected


def test_the_plain_form_shares_no_container_with_the_record() -> None:
    record = outer()
    record.to_dict()["points"].clear()
    assert record.points


def test_values_without_a_json_form_stay_as_they_are() -> None:
    value = object()
    assert plain_value(value) is value
    assert plain_value(None) is None
    assert plain_value(1.5) == 1.5


def test_a_record_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(outer())) == outer()
