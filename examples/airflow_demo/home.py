"""The files of an ``AIRFLOW_HOME``: settings with their secrets, and passwords."""

from __future__ import annotations

import base64
import configparser
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

SECRETS = {
    ("core", "fernet_key"): 32,
    ("api", "secret_key"): 32,
    ("api_auth", "jwt_secret"): 64,
}
"""Section and option of each secret in ``airflow.cfg``, and how many random bytes it has."""


def write_settings(home: Path, settings: Mapping[str, Mapping[str, str]]) -> None:
    """Write ``airflow.cfg`` with these settings, readable only by its owner.

    Secrets are created with a new file and kept in an existing one, because the database holds
    values that were encrypted with them.

    Parameters
    ----------
    home : Path
        ``AIRFLOW_HOME``; exists.
    settings : mapping
        ``{"section": {"option": value}}``.
    """
    path = home / "airflow.cfg"
    merged = {section: dict(options) for section, options in settings.items()}
    for (section, option), value in _secrets(path).items():
        merged.setdefault(section, {})[option] = value
    lines: list[str] = []
    for section, options in merged.items():
        lines.append(f"[{section}]")
        # Airflow reads the file with interpolation, in which a percent sign must be doubled.
        lines += [f"{option} = {value.replace('%', '%%')}" for option, value in options.items()]
    write_private(path, "\n".join([*lines, ""]))


def write_passwords(path: Path, users: Iterable[str]) -> None:
    """Create a password for each user, unless the file exists."""
    if not path.exists():
        write_private(path, json.dumps({user: secrets.token_urlsafe(12) for user in users}))


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _secrets(path: Path) -> dict[tuple[str, str], str]:
    config = configparser.RawConfigParser()
    if config.read(path):
        return {(section, option): config[section][option] for section, option in SECRETS}
    return {
        place: base64.urlsafe_b64encode(secrets.token_bytes(size)).decode()
        for place, size in SECRETS.items()
    }
