"""memwal catalog: registering tables, policies, snapshot, upkeep of the catalog itself."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest
from support.data.policies import spoil_policy

from memwal.catalog import Policy, read_snapshot
from memwal.fleet import Fleet


def test_migrate_makes_the_catalog_that_is_named(cli, tmp_path, monkeypatch):
    monkeypatch.delenv("MEMWAL_CATALOG_URL", raising=False)
    url = f"sqlite:///{tmp_path / 'other.db'}"
    assert cli("catalog", "list", "--catalog", url).code == 2
    assert cli("catalog", "migrate", "--catalog", url, "--json").json == {"catalog": url}
    assert cli("catalog", "migrate", "--catalog", url).code == 0
    assert cli("catalog", "list", "--catalog", url, "--json").json == []


def test_register_and_show(cli, catalog):
    added = cli(
        *("catalog", "register", "flights", "s3://lake/flights.lance"),
        *("--storage-options-ref", "airflow:lake", "--owner", "data", "--disabled"),
        *("-p", "merge_at_generations=9", "-p", "tags=air,eu", "-p", "schedule=*/5 * * * *"),
        *("-p", "quiet_hours=22:00-06:00 Europe/Berlin", "-p", "merge_at_bytes=none", "--json"),
    ).json
    table = catalog.get("flights")
    assert added == table.to_dict() == cli("catalog", "show", "flights", "--json").json
    assert (table.owner, table.enabled, table.storage_options_ref) == (
        "data",
        False,
        "airflow:lake",
    )
    assert table.policy == Policy(
        merge_at_generations=9,
        tags=("air", "eu"),
        schedule="*/5 * * * *",
        quiet_hours=("22:00-06:00 Europe/Berlin",),
        merge_at_bytes=None,
    )
    shown = cli("catalog", "show", "flights").stdout
    assert "s3://lake/flights.lance" in shown
    assert "22:00-06:00 Europe/Berlin" in shown


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["register", "Bad Name", "/data/a.lance"], "'Bad Name'"),
        (["register", "a", "s3://u:hunter2@lake/a.lance"], "password"),
        (["register", "a", "/data/a.lance", "-p", "zeal=1"], "'zeal'"),
        (["register", "a", "/data/a.lance", "-p", "zeal"], "KEY=VALUE"),
        (["register", "a", "/data/a.lance", "-p", "priority=no"], "'priority'"),
        (["register", "known", "/data/a.lance", "--no-check"], "'known'"),
        (["register", "a", "/data/absent.lance"], "/data/absent.lance"),
        (["update", "known"], "error: "),
        (
            ["update", "known", "--no-storage-options", "--storage-options-ref", "/a.json"],
            "--no-storage-options",
        ),
        (["policy", "set", "known", "quiet_hours=22-06"], "quiet_hours"),
    ],
)
def test_wrong_input_changes_nothing(cli, catalog, arguments, named):
    before = catalog.register("known", uri="/data/known.lance")
    answer = cli("catalog", *arguments)
    assert answer.code == 2
    assert named in answer.stderr
    assert "hunter2" not in answer.stderr
    assert catalog.list() == [before]


def test_register_opens_the_table_and_says_what_was_done(cli, catalog, table, monkeypatch):
    folder = Path(table.uri)
    monkeypatch.chdir(folder.parent)
    lines = cli("catalog", "register", "flights", folder.name).stdout.splitlines()
    assert len(lines) == 3
    assert f"version {table.base().version}" in lines[0]
    assert catalog.get("flights").uri == table.uri


def test_register_without_a_check_does_not_need_the_table(cli, catalog):
    answer = cli("catalog", "register", "later", "/data/later.lance", "--no-check", "--disabled")
    assert answer.code == 0
    assert "memwal catalog enable later" in answer.stdout
    assert (catalog.get("later").uri, catalog.get("later").enabled) == ("/data/later.lance", False)


def test_a_name_that_is_not_known_is_wrong_input(cli, catalog):
    for command in ("show", "update", "unregister", "enable", "disable"):
        extra = ["--owner", "x"] if command == "update" else []
        answer = cli("catalog", command, "none", *extra)
        assert answer.code == 2
        assert "'none'" in answer.stderr
    for words in (("jobs", "run", "none", "merge"), ("jobs", "retry", "none")):
        assert cli(*words).code == 2


def test_update_disable_enable_unregister(cli, catalog):
    catalog.register("a", uri="/data/a.lance", storage_options_ref="/etc/a.json")
    cli("catalog", "update", "a", "--table", "/data/b.lance", "-p", "priority=7")
    assert catalog.get("a").uri == "/data/b.lance"
    assert catalog.get("a").policy == Policy(priority=7)
    assert cli("catalog", "update", "a", "--no-storage-options").code == 0
    assert catalog.get("a").storage_options_ref is None
    assert cli("catalog", "disable", "a", "--json").json["enabled"] is False
    assert cli("catalog", "list", "--enabled", "--json").json == []
    assert cli("catalog", "enable", "a", "--json").json["enabled"] is True
    assert cli("catalog", "unregister", "a").code == 0
    assert catalog.list() == []


def test_list_by_tags(cli, catalog):
    catalog.register("a", uri="/data/a.lance", policy=Policy(tags=("air", "eu")))
    catalog.register("b", uri="/data/b.lance", policy=Policy(tags=("air",)))
    listed = [table["name"] for table in cli("catalog", "list", "--tag", "air", "--json").json]
    assert listed == ["a", "b"]
    both = cli("catalog", "list", "--tag", "air", "--tag", "eu")
    assert "/data/a.lance" in both.stdout
    assert "/data/b.lance" not in both.stdout


def test_policy_show_and_set(cli, catalog):
    catalog.register("a", uri="/data/a.lance", policy=Policy(tags=("air",)))
    changed = cli("catalog", "policy", "set", "a", "priority=3", "schedule=none", "--json").json
    assert changed == Policy(tags=("air",), priority=3, schedule=None).to_dict()
    assert cli("catalog", "policy", "show", "a", "--json").json == changed
    cli("catalog", "policy", "set", "a", "tags=")
    assert catalog.get("a").policy == Policy(priority=3, schedule=None)
    shown = cli("catalog", "policy", "set", "a", "priority=9", "schedule=none").stdout
    assert "priority" in shown
    assert "schedule" not in shown
    assert "merge_at_generations" in cli("catalog", "policy", "show", "a").stdout


def test_an_unreadable_policy_is_replaced_and_shown_whole(cli, catalog):
    catalog.register("a", uri="/data/a.lance", policy=Policy(priority=3))
    spoil_policy(catalog, "a", '{"priority": 3, "merge_at_generations": "four"}')
    shown = cli("catalog", "policy", "set", "a", "merge_at_generations=4").stdout
    assert all(key in shown for key in Policy().to_dict())
    assert catalog.get("a").policy == Policy(merge_at_generations=4)


def test_export(cli, catalog, tmp_path):
    catalog.register("a", uri="/data/a.lance")
    path = tmp_path / "out" / "tables.json"
    assert cli("catalog", "export", path, "--json").json == {"file": str(path), "tables": 1}
    assert read_snapshot(path) == catalog.list()


def test_prune(cli, catalog):
    catalog.register("a", uri="/data/a.lance", policy=Policy(run_retention_seconds=0))
    for _ in range(2):
        catalog.finish_run(catalog.start_run("a", "merge"), error="x")
    assert cli("catalog", "prune", "--json").json == {"a": {"runs": 2, "samples": 0}}
    assert catalog.runs() == []
    assert cli("catalog", "prune").code == 0


def test_discover_shows_the_tables_of_a_folder(cli, catalog, make_table):
    table = make_table()
    folder = str(Path(table.uri).parent)
    expected = {"uri": table.uri, "mem_wal": True, "problem": None, "registered_as": None}
    assert cli("catalog", "discover", folder, "--json").json == [expected]
    assert catalog.list() == []
    catalog.register("ours", uri=table.uri)
    assert cli("catalog", "discover", folder, "--json").json[0]["registered_as"] == "ours"


def test_a_second_name_of_a_table_is_said_to_be_one(cli, catalog):
    first, second = (
        cli("catalog", "register", name, "/data/t.lance", "--no-check") for name in ("one", "two")
    )
    assert "one" not in first.stderr
    assert "one" in second.stderr


def test_all_tables_of_a_folder_are_registered_also_later_ones(cli, catalog, make_table):
    table = make_table()
    folder = Path(table.uri).parent
    lance.write_dataset(pa.table({"a": [1]}), folder / "plain.lance")
    answer = cli("catalog", "register", "--all", str(folder), "-p", "tags=found", "--json")
    assert {t["name"]: t["mem_wal"] for t in answer.json} == {
        Path(table.uri).name: True,
        "plain": False,
    }
    assert {t.policy.tags for t in catalog.list(enabled_only=True)} == {("found",)}
    assert catalog.get("plain").mem_wal is False

    lance.write_dataset(pa.table({"a": [1]}), folder / "later.lance")
    Fleet(catalog).run_once()
    assert catalog.get("later").enabled
    assert cli("catalog", "folders", "--json").json[0]["uri"] == str(folder)

    cli("catalog", "unregister", "--all", str(folder))
    assert catalog.folders() == []
    assert len(catalog.list()) == 3
    assert cli("catalog", "unregister", "--all", str(folder)).code != 0


def test_one_table_or_all_are_registered(cli, catalog, tmp_path):
    for wrong in (["only"], ["--all"], ["--all", "name", str(tmp_path)]):
        assert cli("catalog", "register", *wrong).code == 2
    for missing in ("nothing", "a-file"):
        (tmp_path / "a-file").touch()
        assert cli("catalog", "register", "--all", str(tmp_path / missing)).code == 2
    assert catalog.folders() == []
    # Only Airflow can read such options: it looks for the tables.
    given = ["--all", "s3://lake/db", "--storage-options-ref", "airflow:lake"]
    assert cli("catalog", "register", *given, "--json").json == []
    assert [folder.uri for folder in catalog.folders()] == ["s3://lake/db"]
