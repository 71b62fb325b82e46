"""Quality rules of a table's policy, and a YAML reader that admits plain values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Self

from memwal.errors import InvalidInputError
from memwal.quality.expectations import Expectation, read_suite
from memwal.storage.uris import parse_uri
from memwal.util.clock import MAX_SECONDS
from memwal.util.optional_deps import requires_extra
from memwal.util.records import JsonRecord
from memwal.util.safe_json import check_data, read_json


class Mode(StrEnum):
    """Action of a merge on rows that fail a critical expectation."""

    OFF = "off"
    WARN = "warn"
    QUARANTINE = "quarantine"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRules(JsonRecord):
    """Expectations of a table, and the action on rows that fail them.

    Raises
    ------
    InvalidInputError
        A value is wrong; the message names it.
    """

    mode: Mode = Mode.OFF
    """Mode of the gate in the merge. ``warn`` merges all rows and reports; ``quarantine`` writes
    failing rows to the quarantine table instead; ``skip`` does not merge the region."""
    suite: tuple[Expectation, ...] = ()
    """Also accepted: the list, or the whole object, that Great Expectations writes."""
    quarantine_uri: str | None = None
    """Address of the quarantine table; None puts it beside the table."""
    check_schedule_seconds: float | None = None
    """Interval between checks of the base table itself; None for checks by hand only."""
    check_sample_rows: int | None = 100_000
    """Rows of a check, chosen at random; None checks all rows."""

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "mode", Mode(self.mode))
        except ValueError:
            raise InvalidInputError(
                f"quality mode {self.mode!r} is none of {', '.join(Mode)}"
            ) from None
        object.__setattr__(self, "suite", read_suite(self.suite))
        if self.mode != Mode.OFF and not self.suite:
            raise InvalidInputError(
                f"the quality mode {self.mode} needs a suite; memwal quality propose makes one"
            )
        uri = self.quarantine_uri
        if uri is not None and (not isinstance(uri, str) or not uri.strip()):
            raise InvalidInputError("quarantine_uri is the address of a table, or None")
        if uri is not None:
            # The address is stored and shown, so it must hold no password.
            parse_uri(uri)
        for key, low in (("check_schedule_seconds", 60), ("check_sample_rows", 1)):
            value = getattr(self, key)
            whole = key == "check_sample_rows"
            number = isinstance(value, int if whole else int | float)
            if value is not None and (not number or isinstance(value, bool) or not value >= low):
                raise InvalidInputError(f"quality {key} is {value!r}; give {low} or more, or None")
            if not whole and value is not None and value > MAX_SECONDS:
                raise InvalidInputError(f"quality {key} is {value!r}; give {MAX_SECONDS} at most")

    @property
    def gates(self) -> bool:
        """Return whether a merge evaluates the rows that enter."""
        return self.mode != Mode.OFF

    def quarantine_of(self, uri: str) -> str:
        """Return the normalized address of the quarantine of the table at ``uri``."""
        return str(parse_uri(self.quarantine_uri or quarantine_beside(uri)))

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Build rules of ``values`` as :meth:`to_dict` returns; absent keys take their defaults.

        Raises
        ------
        InvalidInputError
            A key is unknown or a value is wrong.
        """
        if not isinstance(values, Mapping):
            raise InvalidInputError("quality is an object with the keys mode and suite")
        names = [field.name for field in fields(cls)]
        unknown = sorted(str(key) for key in values if key not in names)
        if unknown:
            raise InvalidInputError(
                f"unknown keys of quality: {', '.join(map(repr, unknown))}; known are: "
                f"{', '.join(names)}"
            )
        return cls(**values)


def quarantine_beside(uri: str) -> str:
    """Return the default address of the quarantine of the table at an address."""
    return f"{str(parse_uri(uri)).removesuffix('.lance')}__quarantine.lance"


def read_rules(text: str) -> QualityRules:
    """Read rules from a command-line argument: JSON, or ``@`` and the name of a JSON file.

    Raises InvalidInputError if the file cannot be read, or the rules are not valid.
    """
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInputError(
                f"the quality rules in {text[1:]!r} cannot be read: {type(error).__name__}"
            ) from error
    try:
        return QualityRules.from_dict(read_json(text))
    except ValueError as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"the quality rules are not JSON: {error}") from error


def read_yaml(text: str) -> object:
    """Parse a YAML text of plain values; ValueError for tags, aliases and other values.

    A few lines of nested aliases expand to more than fits into memory, already during parsing.
    """
    with requires_extra("quality"):
        import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("aliases (*name) are not supported; write the value out")
            return super().compose_node(parent, index)

    try:
        loader = Plain(text)
        try:
            data = loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:
        # PyYAML's constructors do not validate their input, and raise errors of any type.
        raise ValueError(str(error) or type(error).__name__) from error
    check_data(data)
    return data
