"""Checks of the values of a policy; every message names the key and what it may be."""

from __future__ import annotations

import re
from typing import TypeGuard

from memwal.durations import MOST_SECONDS
from memwal.errors import InvalidInputError

MIB = 1024 * 1024
GIB = 1024 * MIB

# What databases and Arrow can count.
_MOST = 2**63 - 1

_CRON_PRESETS = frozenset({"@hourly", "@daily", "@weekly", "@monthly", "@yearly"})
_CRON_FIELD = re.compile(r"[0-9A-Za-z*/,\-#?]+")
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")


def check_integer(
    key: str, value: object, *, low: int, high: int | None = None, optional: bool = False
) -> None:
    """Refuse what is no whole number from ``low`` to ``high``; None passes when ``optional``."""
    if optional and value is None:
        return
    wrong = not isinstance(value, int) or isinstance(value, bool) or value < low
    if wrong or (high is not None and isinstance(value, int) and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        choice = ", or None for no limit" if optional else ""
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give a whole number {limits}{choice}."
        )
    if isinstance(value, int) and value > _MOST:
        raise InvalidInputError(f"Policy key {key!r} is larger than any number; give less.")


def check_seconds(key: str, value: object, *, low: float) -> None:
    """Refuse what is no number of seconds from ``low`` to a hundred years."""
    if not _is_number(value) or not value >= low:
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give a number of seconds of at least {low:g}."
        )
    if value > MOST_SECONDS:
        raise InvalidInputError(
            f"Policy key {key!r} is {value!r}; give {MOST_SECONDS} at most, which is a hundred "
            "years."
        )


def check_schedule(key: str, value: object) -> None:
    """Refuse what is no cron expression, number of seconds or None."""
    if value is None:
        return
    if isinstance(value, str):
        cron = value.split()
        if value in _CRON_PRESETS or (len(cron) == 5 and all(map(_CRON_FIELD.fullmatch, cron))):
            return
    elif _is_number(value):
        check_seconds(key, value, low=1)
        return
    raise InvalidInputError(
        f"Policy key {key!r} is {value!r}; give a cron expression of five fields, one of "
        f"{', '.join(sorted(_CRON_PRESETS))}, a number of seconds, or None for manual runs only."
    )


def check_tuple(key: str, value: object) -> tuple[object, ...]:
    """Return the value when it is a tuple, and refuse it when not."""
    if not isinstance(value, tuple):
        raise InvalidInputError(f"Policy key {key!r} is {value!r}; give a tuple of texts.")
    return value


def check_tags(key: str, value: object) -> None:
    """Refuse what is no tuple of tags."""
    for tag in check_tuple(key, value):
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise InvalidInputError(
                f"Policy key {key!r} holds {tag!r}; a tag has 1 to 64 letters, digits and "
                "any of _.:- and starts with a letter or digit."
            )


def check_pool(key: str, value: object) -> None:
    """Refuse what is no name of a pool, nor None."""
    if value is None or (isinstance(value, str) and 0 < len(value.strip()) <= 256):
        return
    raise InvalidInputError(
        f"Policy key {key!r} is {value!r}; give the name of an Airflow pool, or None for the "
        "default one."
    )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
