"""Register the page and the listener of memwal in Airflow."""

from __future__ import annotations

from functools import cache

from airflow.plugins_manager import AirflowPlugin

from memwal_airflow.links import URL_PREFIX, app_path
from memwal_airflow.notifications import listener


class _Apps:
    """Creates the app on access: every task loads this module, but only the API server serves."""

    def __get__(self, instance: object, owner: type) -> list[dict[str, object]]:
        return _apps()


@cache
def _apps() -> list[dict[str, object]]:
    from memwal_airflow.web.app import create_app

    return [{"app": create_app(), "url_prefix": URL_PREFIX, "name": "memwal"}]


class MemWalPlugin(AirflowPlugin):
    """memwal in Airflow's list of plugins, its page in the navigation, and a tab of every DAG."""

    name = "memwal"
    fastapi_apps = _Apps()
    external_views = [  # noqa: RUF012 - a variable of instances by its base
        {
            "name": "memwal",
            "href": app_path("/"),
            "destination": "nav",
            "nav_top_level": True,
            "icon": app_path("/icon.svg"),
            "url_route": "memwal",
        },
        {
            "name": "memwal",
            "href": app_path("/dags/{DAG_ID}"),
            "destination": "dag",
            "url_route": "memwal-table",
        },
    ]
    listeners = [listener]  # noqa: RUF012
