"""Predicates at random, in the SQL of Lance, over columns of the types that divide tables."""

from collections.abc import Mapping, Sequence
from random import Random

import pyarrow as pa
import pyarrow.types as pt

_SIGNS = ("=", "!=", "<>", "<", "<=", ">", ">=")
_DAYS = ("1969-12-31", "2025-11-15", "2025-12-31", "2026-03-01", "2026-03-15")
_PARTS = ("year", "month", "day", "hour")


class RandomPredicates:
    """Draws predicates.

    Parameters
    ----------
    random : Random
    schema : pyarrow.Schema
        Of the columns that predicates name.
    values : mapping of str to sequence of str
        Literals to compare each column with, as SQL; a boolean column needs none.
    """

    def __init__(
        self, random: Random, schema: pa.Schema, values: Mapping[str, Sequence[str]]
    ) -> None:
        self._random = random
        self._schema = schema
        self._values = values
        self._booleans = [field.name for field in schema if pt.is_boolean(field.type)]

    def draw(self, *, leaves: int = 4) -> str:
        """One predicate of at most so many comparisons."""
        if leaves <= 1 or self._chance(0.3):
            return self._comparison()
        kind = self._random.random()
        if kind < 0.15:
            return f"not ({self.draw(leaves=leaves)})"
        left = self._random.randint(1, leaves - 1)
        word = "and" if kind < 0.6 else "or"
        return f"({self.draw(leaves=left)} {word} {self.draw(leaves=leaves - left)})"

    def _comparison(self) -> str:
        column = self._random.choice([*self._values, *self._booleans])
        if column in self._booleans:
            return self._random.choice(
                [
                    column,
                    f"not {column}",
                    f"{column} = true",
                    f"{column} != true",
                    f"{column} is true",
                    f"{column} is not true",
                    f"{column} is false",
                    f"{column} is null",
                    f"{column} in (false)",
                ]
            )
        data_type = self._schema.field(column).type
        if (pt.is_timestamp(data_type) or pt.is_date(data_type)) and self._chance(0.35):
            return self._of_a_part(column, data_type)
        if pt.is_string(data_type) and self._chance(0.35):
            return self._of_a_text(column)
        return self._plain(column)

    def _plain(self, column: str) -> str:
        value = self._value(column)
        no = self._random.choice(["", "not "])
        match self._random.randrange(7):
            case 6:
                return self._random.choice(
                    [
                        f"({column} is {no}distinct from {value})",
                        f"{column} {no}in ({value}, null)",
                        f"({column} = {value}) is {no}true",
                        f"({column} < {value}) is {no}false",
                        f"({column} is {no}null) is {self._random.choice(['', 'not '])}true",
                        f"({column} is null) is {no}false",
                    ]
                )
            case 0:
                return f"{value} {self._random.choice(_SIGNS)} {column}"
            case 1:
                chosen = ", ".join(self._value(column) for _ in range(self._random.randint(1, 3)))
                return f"{column} {no}in ({chosen})"
            case 2:
                return f"{column} {no}between {value} and {self._value(column)}"
            case 3:
                return f"{column} is {no}null"
            case _:
                return f"{column} {self._random.choice(_SIGNS)} {value}"

    def _of_a_part(self, column: str, data_type: pa.DataType) -> str:
        if pt.is_timestamp(data_type) and self._chance(0.1):
            day = self._random.choice(_DAYS)
            return f"{column} {self._random.choice(_SIGNS)} cast('{day} 12:30:00' as date)"
        if self._chance(0.3):
            day = self._random.choice(_DAYS)
            name = self._random.choice(["cast({} as date)", "{}::date"]).format(column)
            value = self._random.choice(["date '{}'", "cast('{}' as date)"]).format(day)
            return f"{name} {self._random.choice(_SIGNS)} {value}"
        part = self._random.choice(_PARTS[: 4 if pt.is_timestamp(data_type) else 3])
        numbers = {"year": (1969, 2025, 2026), "month": (1, 3, 12), "day": (1, 15, 31)}
        number = self._random.choice(numbers.get(part, (0, 12, 23)))
        name = self._random.choice(["date_part", "DATE_PART", "datepart"])
        call = f"{name}('{part}', {column})"
        match self._random.randrange(4):
            case 0:
                return f"{call} in ({number}, {number + 1})"
            case 1:
                return f"{call} between {number - 1} and {number}"
            case _:
                return f"{call} {self._random.choice(_SIGNS)} {number}"

    def _of_a_text(self, column: str) -> str:
        text = self._value(column)[1:-1]
        no = self._random.choice(["", "", "not "])
        if self._chance(0.2):
            return f"starts_with({column}, '{text}')"
        ending = self._random.choice(["%", "%", "", "_", "%a", "_%"])
        return f"{column} {no}like '{text}{ending}'"

    def _value(self, column: str) -> str:
        value = self._random.choice(self._values[column])
        data_type = self._schema.field(column).type
        if value.isdigit() and self._chance(0.1):
            return f"cast({value} as {'bigint' if pt.is_int64(data_type) else 'int'})"
        return value

    def _chance(self, chance: float) -> bool:
        return self._random.random() < chance
