"""Folder that drivers in a cluster write their results to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from airflow.sdk.configuration import conf

from memwal.storage.credentials import read_options_file
from memwal.storage.uris import LOCAL, parse_uri
from memwal_airflow import SECTION


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultsFolder:
    """Where drivers write their results.

    ``options_file`` is a JSON file of storage options, at the same path here and in the driver's
    container; None if the environment gives the options in both places.
    """

    uri: str
    options_file: str | None

    @classmethod
    def configured(cls) -> ResultsFolder | None:
        """Read ``[memwal] results_uri`` and ``results_options_file`` of ``airflow.cfg``, if set."""
        uri = conf.get(SECTION, "results_uri", fallback="")
        if not uri:
            return None
        parsed = parse_uri(uri)
        # As a URI also where it is a folder that both sides mount: a path would be a file.
        address = f"file://{quote(parsed.path)}" if parsed.scheme == LOCAL else str(parsed)
        options_file = conf.get(SECTION, "results_options_file", fallback=None) or None
        return cls(uri=address, options_file=options_file)

    @property
    def options(self) -> dict[str, str] | None:
        """Storage options of the folder, read anew."""
        return None if self.options_file is None else read_options_file(Path(self.options_file))
