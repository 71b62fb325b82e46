"""What the roles may do, by the policies that are written for them."""

import json
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from support.docs.pages import ROOT
from support.stores.iam import Act as Request
from support.stores.iam import allows
from typer.testing import CliRunner

from memwal.base_table.refs import ConsumerTag
from memwal.cli.commands.app import app
from memwal.errors import InvalidInputError
from memwal.format.paths import (
    ORPHAN_MARK_NAME,
    applied_key,
    consumer_key,
    generation_dir,
    index_file_key,
    manifest_key,
    region_mark_key,
    table_manifest_keys,
    version_hint_key,
    wal_key,
)
from memwal.jobs.merge.run_files import run_dir
from memwal.permissions import Action, Role, permissions_of, s3_policy

URI = "s3://lake/air/flights.lance"
REGION = UUID(int=7)
GENERATION = generation_dir(REGION, "0123abcd_gen_4")
KEYS = {
    "data": "data/0.lance",
    "deletion": "_deletions/0-1-2.arrow",
    "index": index_file_key(UUID(int=1), "page_data.lance"),
    "snapshot": index_file_key(UUID(int=2), "index.lance"),
    "transaction": "_transactions/0-1.txn",
    "version": table_manifest_keys(3)[0],
    "staged": f"{table_manifest_keys(3)[0]}-{UUID(int=5)}",
    "merge keys": f"{run_dir(UUID(int=6))}/0.arrow",
    "region mark": region_mark_key(REGION, 1, 1, 3),
    "tag": "_refs/tags/report.json",
    "read tag": "_refs/tags/memwal-read-60-1-r.json",
    "consumer": consumer_key("c"),
    "consumer tag": ConsumerTag("c", 1, 2, "x").key,
    "branch": "_refs/branches/b.json",
    "manifest": manifest_key(REGION, 2),
    "hint": version_hint_key(REGION),
    "log": wal_key(REGION, 2),
    "book": applied_key(REGION, 2),
    "abandoned": f"_mem_wal/{REGION}/abandoned/x.json",
    "generation": f"{GENERATION}/data/0.lance",
    "bloom filter": f"{GENERATION}/bloom_filter.bin",
    "key index": f"{GENERATION}/_pk_index/page_data.lance",
    "generation's version": f"{GENERATION}/{table_manifest_keys(1)[0]}",
    "orphan mark": f"{GENERATION}/{ORPHAN_MARK_NAME}",
    "probe": "_probe-0",
    "staged rows": "_memwal/writes/0b5d6f4e-9c1d-4a3d-8a53-0b5d6f4e9c1d.arrow",
    "anything": "x",
}
GENERATIONS = {
    "generation",
    "bloom filter",
    "key index",
    "generation's version",
    "orphan mark",
}
COMMIT = {"snapshot", "transaction", "staged"}
COLLECTED = {
    "manifest",
    "log",
    "book",
    "index",
    "snapshot",
    "staged",
    "merge keys",
    "staged rows",
    "read tag",
    "consumer tag",
    *GENERATIONS,
}

# What each role may create when the name is free, store in any case, and delete.
MAY: dict[Role, tuple[set[str], set[str], set[str]]] = {
    Role.READER: (set(), set(), set()),
    Role.PINNER: (set(), {"read tag"}, {"read tag"}),
    Role.CONSUMER: ({"consumer tag"}, {"consumer"}, {"consumer tag"}),
    Role.WRITER: (
        {"manifest", "log", "book", "region mark"},
        {"hint", "abandoned", "staged rows", *GENERATIONS},
        {"staged rows"},
    ),
    Role.MERGER: (
        {"version", "region mark"},
        {"data", "deletion", "index", "merge keys", *COMMIT},
        {"staged", "merge keys", "region mark"},
    ),
    Role.PUBLISHER: ({"version", "manifest", "region mark"}, {"hint", *COMMIT}, {"staged"}),
    Role.COLLECTOR: (
        {"manifest", "book", "region mark"},
        {"hint", "orphan mark", "consumer"},
        COLLECTED,
    ),
    Role.CLEANER: (
        {"manifest", "book", "region mark"},
        {"hint", "orphan mark", "consumer"},
        COLLECTED | {"data", "deletion", "transaction", "version"},
    ),
    Role.REPAIRER: (
        {"version", "manifest", "log", "region mark"},
        {"hint", "index", *GENERATIONS, *COMMIT},
        {"staged"},
    ),
    Role.ADMINISTRATOR: (set(), set(KEYS), set(KEYS)),
}


def request(action: str, key: str, **context: str) -> Request:
    return Request(f"s3:{action}", f"lake/air/flights.lance/{KEYS[key]}", context)


def create(key: str) -> Request:
    made = request("PutObject", key)
    return Request(made.action, made.resource, {"s3:if-none-match": "*"})


def allowed(policy: Mapping[str, Any], action: str) -> set[str]:
    return {key for key in KEYS if allows(policy, request(action, key))}


@pytest.mark.parametrize("role", Role)
def test_what_each_role_may_change(role: Role) -> None:
    policy = s3_policy(URI, [role])
    creates, puts, deletes = MAY[role]

    assert allowed(policy, "PutObject") == puts
    assert {key for key in KEYS if allows(policy, create(key))} == creates | puts
    assert allowed(policy, "DeleteObject") == deletes
    assert allowed(policy, "AbortMultipartUpload") == puts
    assert allowed(policy, "GetObject") == set(KEYS)
    assert allowed(policy, "PutObjectAcl") == set()


@pytest.mark.parametrize("role", Role)
def test_nothing_beside_the_table(role: Role) -> None:
    policy = s3_policy(URI, [role])
    for action in ("GetObject", "PutObject", "DeleteObject"):
        for resource in ("lake/air/flights.lance2/x", "lake/x", "other/air/flights.lance/x"):
            assert not allows(policy, Request(f"s3:{action}", resource))
    listed = {
        prefix: allows(policy, Request("s3:ListBucket", "lake", {"s3:prefix": prefix}))
        for prefix in ("air/flights.lance", "air/flights.lance/_mem_wal/", "", "air/", "air/flig")
    }
    assert [prefix for prefix, allowed in listed.items() if allowed] == list(listed)[:2]
    # What stores ask before they say that an object is absent.
    assert allows(policy, Request("s3:ListBucket", "lake"))
    assert not allows(policy, Request("s3:ListBucket", "other"))


def test_roles_together_may_what_any_of_them_may() -> None:
    policy = s3_policy(URI, [Role.MERGER, Role.PUBLISHER, Role.COLLECTOR])

    puts = set().union(*(MAY[role][1] for role in (Role.MERGER, Role.PUBLISHER, Role.COLLECTOR)))
    assert allowed(policy, "PutObject") == puts
    assert allowed(policy, "DeleteObject") == COLLECTED | {"region mark"}
    assert len(policy["Statement"]) == 5
    everything = permissions_of(Role)
    assert [right.keys for right in everything if right.action in (Action.PUT, Action.DELETE)] == [
        ("*",)
    ] * 2


def test_a_policy_without_conditions() -> None:
    policy = s3_policy(URI, [Role.WRITER], conditions=False)

    assert allowed(policy, "PutObject") == MAY[Role.WRITER][0] | MAY[Role.WRITER][1]


@pytest.mark.parametrize("role", Role)
def test_policies_are_as_short_as_aws_wants_them(role: Role) -> None:
    long = f"s3://{'b' * 63}/{'p' * 100}/flights.lance"
    # A managed policy has 6,144 characters at most, not counting blanks.
    assert len(json.dumps(s3_policy(long, [role]), separators=(",", ":"))) < 6144


def test_a_table_that_is_a_whole_bucket() -> None:
    policy = s3_policy("s3://lake", [Role.READER])

    assert allows(policy, Request("s3:GetObject", "lake/data/0.lance"))
    assert allows(policy, Request("s3:ListBucket", "lake", {"s3:prefix": ""}))
    assert not allows(policy, Request("s3:GetObject", "lake2/data/0.lance"))


@pytest.mark.parametrize(
    "uri", ["gs://lake/t", "/data/t", "s3://lake/*", "s3://lake/a%3Fb", "s3://lake/${aws:userid}"]
)
def test_addresses_that_no_policy_can_be_for(uri: str) -> None:
    with pytest.raises(InvalidInputError):
        s3_policy(uri, [Role.READER])


def cli(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["rights", *arguments])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_the_command() -> None:
    assert json.loads(cli("writer", "--policy", URI)) == s3_policy(URI, [Role.WRITER])
    plain = cli("writer", "merger", "--policy", URI, "--without-conditions")
    both = [Role.WRITER, Role.MERGER]
    assert json.loads(plain) == s3_policy(URI, both, conditions=False)
    shown = json.loads(cli("--json"))
    assert list(shown) == list(Role)
    assert shown["pinner"]["put"] == ["_refs/tags/memwal-read-*"]
    assert list(json.loads(cli("reader", "writer", "--json"))) == ["reader+writer"]
    assert "_mem_wal/*/wal/*.arrow" in cli("writer")
    refused = CliRunner().invoke(app, ["rights", "--policy", URI])
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_every_role_is_on_the_page() -> None:
    page = (ROOT / "docs" / "guides" / "security.md").read_text()
    table = page.partition("## Rights on the object store")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == list(Role)
