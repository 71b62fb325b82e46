"""A process of a play: ``child.py ROLE TOLD``, where the second is what :class:`Told` makes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pyarrow as pa
from histories.others import collector, jobs, reader
from histories.process import Process, Told
from histories.safeguards import SAFEGUARDS
from histories.writers import lances, ours

ROLES: dict[str, Callable[[Process], None]] = {
    "writer": ours,
    "lance": lances,
    "reader": reader,
    "jobs": jobs,
    "collector": collector,
}


def main() -> None:
    """Live until somebody ends the process."""
    pa.set_cpu_count(1)
    told = Told(**json.loads(sys.argv[2]))
    if told.without:
        SAFEGUARDS[told.without]()
    ROLES[sys.argv[1]](Process(told))


if __name__ == "__main__":
    main()
