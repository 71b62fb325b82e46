"""Tags that end by themselves."""

from datetime import UTC, datetime, timedelta

import pytest
from support.data.tables import age, folder

import memwal
from memwal.base_table.refs import (
    ReadTag,
    delete_tag,
    list_read_tags,
    parse_read_tag,
    parse_read_tag_key,
    place_tag,
    renew_tag,
    user_tag_names,
)
from memwal.errors import ObjectNotFoundError


@pytest.mark.parametrize("tag", [ReadTag(1, 1, "a"), ReadTag(21600, (1 << 64) - 1, "0f" * 32)])
def test_a_name_tells_all(tag: ReadTag) -> None:
    assert parse_read_tag(tag.name) == tag
    assert parse_read_tag_key(tag.key) == tag


@pytest.mark.parametrize(
    "name",
    [
        "report",
        "memwal-read-me",
        "memwal-read-0-1-a",
        "memwal-read-60-1",
        "memwal-read-60-1-A",
        "memwal-read-60-1-a-b",
        "my-memwal-read-60-1-a",
        "memwal-read-60-01-a",
    ],
)
def test_names_of_others(name: str) -> None:
    assert parse_read_tag(name) is None
    assert parse_read_tag_key(f"_refs/tags/{name}.json") is None


def test_other_objects_are_no_tags() -> None:
    name = ReadTag(60, 1, "a").name
    for key in (f"_refs/branches/{name}.json", f"_refs/tags/{name}", f"_refs/tags/x/{name}.json"):
        assert parse_read_tag_key(key) is None


class TestLife:
    tag = ReadTag(4000, 1, "a")

    def test_placed_once(self, table: memwal.Table) -> None:
        base = table.base()
        assert place_tag(base, self.tag)
        assert not place_tag(base, self.tag)
        assert base.dataset.tags.list()[self.tag.name]["version"] == 1
        assert list(list_read_tags(table.location)) == [self.tag]

    def test_a_version_that_is_not_there(self, table: memwal.Table) -> None:
        with pytest.raises(ObjectNotFoundError):
            place_tag(table.base(), ReadTag(4000, 99, "a"))
        assert list_read_tags(table.location) == {}

    def test_renewed_when_a_quarter_has_passed(self, table: memwal.Table) -> None:
        place_tag(table.base(), self.tag)
        first = list_read_tags(table.location)[self.tag]
        assert renew_tag(table.location, self.tag)
        assert list_read_tags(table.location)[self.tag] == first
        age(table, 1100, pattern="_refs/tags/*")
        content = (folder(table) / self.tag.key).read_bytes()
        assert renew_tag(table.location, self.tag)
        assert list_read_tags(table.location)[self.tag] >= first
        assert (folder(table) / self.tag.key).read_bytes() == content

    def test_one_that_ended_or_is_gone_does_not_come_back(self, table: memwal.Table) -> None:
        place_tag(table.base(), self.tag)
        ended = datetime.now(UTC) + timedelta(seconds=4001)
        assert not renew_tag(table.location, self.tag, now=ended)
        delete_tag(table.location, self.tag)
        delete_tag(table.location, self.tag)
        assert not renew_tag(table.location, self.tag)
        assert table.base().dataset.tags.list() == {}

    def test_a_renewal_on_its_way_disturbs_nobody(self, table: memwal.Table) -> None:
        """What stands in the folder while a local object is replaced."""
        place_tag(table.base(), self.tag)
        (folder(table) / "_refs/tags/.half-a-tag.json.tmp").write_bytes(b"{")
        assert list(table.base().dataset.tags.list()) == [self.tag.name]
        assert list(list_read_tags(table.location)) == [self.tag]


def test_messages_name_the_tags_of_people_only() -> None:
    tags = {
        "monthly": {"branch": None},
        "elsewhere": {"branch": "side"},
        "memwal-read-60-5-abc": {"branch": None},
        "a": {"branch": None},
    }
    assert user_tag_names(tags) == "a, monthly"
