import json
from datetime import UTC, datetime, timedelta, tzinfo

import pytest

import memwal.catalog.catalog as catalog_module
from memwal.catalog import Catalog, Policy
from memwal.errors import InvalidInputError, ObjectNotFoundError
from memwal.quality.rules import QualityRules


def test_a_registered_table_comes_back_as_it_was(each_catalog: Catalog) -> None:
    policy = Policy(
        merge_at_generations=9,
        tags=("air", "eu"),
        schedule="@hourly",
        quiet_hours=("22:00-06:00 Europe/Berlin",),
    )
    before = datetime.now(UTC)
    table = each_catalog.register(
        "flights",
        uri="s3://lake/flights.lance",
        storage_options_ref="airflow:lake",
        policy=policy,
        owner="data team",
    )
    assert each_catalog.get("flights") == table
    assert table.policy == policy
    assert table.enabled
    assert before <= table.created_at == table.updated_at <= datetime.now(UTC)
    assert table.created_at.tzinfo is UTC


def test_a_name_is_taken_once(each_catalog: Catalog) -> None:
    each_catalog.register("flights", uri="/data/a.lance")
    with pytest.raises(InvalidInputError, match="'flights'"):
        each_catalog.register("flights", uri="/data/b.lance")
    assert each_catalog.get("flights").uri == "/data/a.lance"


def test_an_update_changes_what_is_named_and_nothing_else(catalog: Catalog) -> None:
    table = catalog.register("flights", uri="/data/a.lance", owner="data")
    changed = catalog.update("flights", enabled=False, policy=Policy(priority=5))
    assert (changed.enabled, changed.policy.priority) == (False, 5)
    assert (changed.uri, changed.owner, changed.created_at) == (
        table.uri,
        table.owner,
        table.created_at,
    )
    assert changed.updated_at >= table.updated_at
    assert catalog.get("flights") == changed


def test_the_revision_changes_with_each_change_whatever_the_clocks_say(
    each_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=30)

    revisions = [each_catalog.revision()]

    def changed() -> bool:
        revisions.append(each_catalog.revision())
        return revisions[-1] not in revisions[:-1]

    for name in ("flights", "trains"):
        each_catalog.register(name, uri=f"/data/{name}.lance")
        assert changed()
    with monkeypatch.context() as patched:
        patched.setattr(catalog_module, "datetime", Ahead)
        each_catalog.update("flights", owner="data")
    assert changed()
    each_catalog.update("trains", enabled=False)
    assert changed()
    each_catalog.unregister("trains")
    assert changed()
    assert each_catalog.revision() == revisions[-1]


@pytest.mark.parametrize(
    "changes",
    [{"name": "other"}, {"uri": "s3://k:s@b/t"}, {"storage_options_ref": "secret"}, {"owner": " "}],
)
def test_a_wrong_update_changes_nothing(catalog: Catalog, changes: dict[str, str]) -> None:
    table = catalog.register("flights", uri="/data/a.lance")
    with pytest.raises(InvalidInputError):
        catalog.update("flights", **changes)  # type: ignore[misc]
    assert catalog.get("flights") == table


def _gated(quarantine_uri: str | None = None) -> Policy:
    return Policy(quality=QualityRules(quarantine_uri=quarantine_uri))


def test_a_table_gets_no_quarantine_of_another_one(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance", policy=_gated("/data/kept.lance"))
    catalog.register("b", uri="/data/b.lance", policy=_gated())
    for uri in ("file:///data/kept.lance", "/data/b__quarantine.lance"):
        with pytest.raises(InvalidInputError, match=r"\b[ab]\b.*\bc\b"):
            catalog.register("c", uri="/data/c.lance", policy=_gated(uri))
    catalog.register("c", uri="/data/c.lance", policy=_gated("/data/c-kept.lance"))
    with pytest.raises(InvalidInputError, match=r"\ba\b.*\bc\b"):
        catalog.update("c", policy=_gated("/data/kept.lance/"))
    with pytest.raises(InvalidInputError, match=r"\bc\b.*\bb\b"):
        catalog.update("b", uri="/data/b.lance", policy=_gated("/data/c-kept.lance"))
    assert catalog.get("c").policy == _gated("/data/c-kept.lance")
    assert [table.name for table in catalog.list()] == ["a", "b", "c"]


def test_two_names_of_one_table_have_one_quarantine(catalog: Catalog) -> None:
    catalog.register("a", uri="/data/a.lance", policy=_gated())
    catalog.register("b", uri="file:///data/a.lance/", policy=_gated())
    assert catalog.update("b", policy=_gated("/data/b.lance")).policy.quality is not None


def test_what_is_not_there_is_named(catalog: Catalog) -> None:
    for call in (catalog.get, catalog.unregister, catalog.update):
        with pytest.raises(ObjectNotFoundError, match="nothing"):
            call("nothing")  # type: ignore[operator]
    with pytest.raises(ObjectNotFoundError, match="77"):
        catalog.finish_run(77, error="x")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 10_000, "../flights"])
def test_what_is_no_name_is_not_there(each_catalog: Catalog, name: str) -> None:
    with pytest.raises(ObjectNotFoundError):
        each_catalog.get(name)


def test_listing_is_by_name_and_may_leave_out_the_disabled(catalog: Catalog) -> None:
    for name in ("c", "a", "b"):
        catalog.register(name, uri="/data/t.lance", enabled=name != "a")
    assert [table.name for table in catalog.list()] == ["a", "b", "c"]
    assert [table.name for table in catalog.list(enabled_only=True)] == ["b", "c"]


def test_unregistering_keeps_the_history_and_frees_the_name(catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/a.lance")
    run = catalog.start_run("flights", "merge")
    assert catalog.unregister("flights").name == "flights"
    assert catalog.list() == []
    assert [found.run_id for found in catalog.runs(table="flights")] == [run]
    catalog.register("flights", uri="/data/b.lance")


def test_secrets_reach_neither_the_database_nor_the_snapshot(
    catalog: Catalog, tmp_path_factory: pytest.TempPathFactory, url: str
) -> None:
    folder = tmp_path_factory.mktemp("out")
    options = folder / "options.json"
    options.write_text(json.dumps({"aws_secret_access_key": "hunter2"}))
    catalog.register("a", uri="s3://lake/a.lance", storage_options_ref=str(options))
    for wrong in ("s3://key:hunter2@lake/b.lance", '{"aws_secret_access_key": "hunter2"}'):
        with pytest.raises(InvalidInputError):
            catalog.register("b", uri=wrong, storage_options_ref=wrong)
    catalog.export_snapshot(folder / "tables.json")
    catalog.close()
    assert "hunter2" not in (folder / "tables.json").read_text()
    database = url.removeprefix("sqlite:///")
    with open(database, "rb") as file:
        assert b"hunter2" not in file.read()
