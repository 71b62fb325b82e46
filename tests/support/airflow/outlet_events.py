"""What Airflow gives to a task for the events of its outlets."""

from collections import defaultdict
from typing import Any


class OutletEvents(defaultdict[str, Any]):
    """Events by the name of their asset or alias: on Airflow 3.1 neither has a hash."""

    def __getitem__(self, outlet: Any) -> Any:
        return super().__getitem__(outlet.name)
