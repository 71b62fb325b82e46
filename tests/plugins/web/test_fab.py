"""The page with Airflow's FAB auth manager, and roles of the owners of tables."""

import json
from pathlib import Path

import pytest
from support.processes import python_environment, run_python

from memwal.catalog import Catalog

CHILD = Path(__file__).with_name("_fab_child.py")
MANAGER = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
# Listed, offered to start, and the status of a start: Airflow stores none of these DAGs.
HIDDEN, SEEN, STARTABLE = [False, False, 404], [True, False, 403], [True, True, 409]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_roles_see_and_start_the_tables_of_their_owner(
    catalog: Catalog, url: str, tmp_path: Path
) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    catalog.register("mine", uri="/data/mine.lance", owner="air team")
    catalog.register("theirs", uri="/data/theirs.lance", owner="sea team")
    catalog.export_snapshot(before)
    catalog.update("mine", owner="land team")
    catalog.update("theirs", owner="air team")
    catalog.export_snapshot(after)
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path / 'airflow.db'}",
        "AIRFLOW__CORE__AUTH_MANAGER": MANAGER,
        "AIRFLOW__MEMWAL__OWNER_ROLES": '{"air team": "Air"}',
        "MEMWAL_CATALOG_URL": url,
    }
    child = run_python(CHILD, before, after, env=python_environment(settings))
    first, second = (json.loads(line) for line in child.stdout.splitlines() if line[:1] == "{")
    for rights in (first, second):
        assert rights["admin"] == rights["user"] == {"mine": STARTABLE, "theirs": STARTABLE}
        assert rights["viewer"] == {"mine": SEEN, "theirs": SEEN}
        assert rights["guest"] == {"mine": HIDDEN, "theirs": HIDDEN}
    assert first["ann"] == {"mine": STARTABLE, "theirs": HIDDEN}
    assert second["ann"] == {"mine": HIDDEN, "theirs": STARTABLE}
