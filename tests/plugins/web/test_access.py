"""Which DAG the page links a table to, and starts runs of."""

import pytest
from memwal_airflow.web.access import has_drain, maintaining_dag

from memwal.catalog import Catalog, Policy


def test_airflow_tells_whether_tables_are_drained(airflow_database: None) -> None:
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session

    with create_session(scoped=False) as session:
        assert not has_drain(session)
        session.add(DagBundleModel(name="of-this-test"))
        session.flush()
        model = DagModel(dag_id="memwal_drain", bundle_name="of-this-test", is_stale=False)
        session.add(model)
        session.flush()
        assert has_drain(session)
        model.is_stale = True
        session.flush()
        assert not has_drain(session)
        session.rollback()


@pytest.mark.parametrize("drained", [True, False])
def test_tables_that_do_not_start_when_due_have_their_own(catalog: Catalog, drained: bool) -> None:
    found = {
        table.name: maintaining_dag(table, drained=drained)
        for table in (
            catalog.register("due", uri="/due"),
            catalog.register("hourly", uri="/hourly", policy=Policy(schedule="@hourly")),
            catalog.register("off", uri="/off", enabled=False),
        )
    }
    assert found.pop("due") == ("memwal_drain" if drained else "memwal__due")
    assert found == {"hourly": "memwal__hourly", "off": "memwal__off"}
