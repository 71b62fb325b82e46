"""The provider's description: its modules, settings and links, in Airflow's schema.

Airflow reads it through an entry point of group ``apache_airflow_provider``, in every process, so
that nothing here imports Airflow or Lance when it is loaded. ``airflow providers`` lists it, and
``airflow config list`` the settings.
"""

from __future__ import annotations

from textwrap import fill
from typing import Any, Final

from memwal_airflow import SECTION
from memwal_airflow.provider.connection_form import CONNECTION_TYPE
from memwal_airflow.provider.settings import SETTINGS

_NAME: Final = "MemWAL"
_ROOT: Final = __name__.partition(".")[0]
_TYPES: Final = {str: "string", int: "integer", float: "float"}


def get_provider_info() -> dict[str, Any]:
    """Describe the package in Airflow's schema of providers."""
    return {
        "package-name": "lance-memwal",
        "name": _NAME,
        "description": "Maintenance of Lance tables with MemWAL.",
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://lance.org",
                "tags": ["software"],
            }
        ],
        "operators": _modules(
            "operators.base", "operators.maintenance", "operators.verify", "drain.operator"
        ),
        "sensors": _modules("sensors.gate", "sensors.table"),
        "hooks": _modules("hooks.memwal", "spark.submit"),
        "triggers": _modules("triggers.changes", "triggers.due", "triggers.gate", "triggers.table"),
        "bundles": _modules("dag_bundle"),
        "notifications": [f"{_ROOT}.notifications.notifier.MemWalNotifier"],
        "extra-links": [f"{_ROOT}.links.{name}" for name in ("SparkUiLink", "TablePageLink")],
        "asset-uris": [
            {
                "schemes": ["memwal"],
                "handler": f"{_ROOT}.assets.check_uri",
                "factory": f"{_ROOT}.assets.create_asset",
                "to_openlineage_converter": f"{_ROOT}.assets.convert_to_dataset",
            }
        ],
        "connection-types": [CONNECTION_TYPE],
        "config": {
            SECTION: {
                "description": "Settings of memwal.",
                "options": {
                    setting.key: {
                        "description": fill(setting.description, 79),
                        "version_added": setting.version_added,
                        "type": _TYPES[type(setting.default)],
                        "example": setting.example,
                        "default": str(setting.default),
                    }
                    for setting in SETTINGS
                },
            }
        },
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    return [{"integration-name": _NAME, "python-modules": [f"{_ROOT}.{name}" for name in names]}]
