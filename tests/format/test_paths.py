from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memwal.errors import CorruptDataError, InvalidInputError
from memwal.format import paths

REGION = UUID("5b8e1f0c-6a34-4c1e-9d52-0f8a7b3c2d11")
U64 = st.integers(0, 2**64 - 1)
COUNTERS = st.integers(0, paths.MAX_COUNTER)


def test_bit_reversed_puts_the_least_significant_digit_first() -> None:
    assert paths.bit_reversed(5) == "101" + "0" * 61
    assert paths.bit_reversed(2**63) == "0" * 63 + "1"


@settings(deadline=None)
@given(U64)
def test_bit_reversed_round_trip(number: int) -> None:
    text = paths.bit_reversed(number)
    assert len(text) == 64
    assert paths.from_bit_reversed(text) == number


@pytest.mark.parametrize("number", [-1, 2**64])
def test_bit_reversed_refuses_what_does_not_fit(number: int) -> None:
    with pytest.raises(InvalidInputError):
        paths.bit_reversed(number)


@pytest.mark.parametrize(
    "text", ["", "1", "0" * 63, "0" * 65, "2" * 64, "0" * 63 + "\n", "\u0660" * 64]
)
def test_from_bit_reversed_refuses_other_text(text: str) -> None:
    with pytest.raises(InvalidInputError):
        paths.from_bit_reversed(text)


def test_keys_stand_below_the_region() -> None:
    one = "1" + "0" * 63
    root = f"_mem_wal/{REGION}"
    assert paths.region_dir(REGION) == root
    assert paths.manifest_dir(REGION) == f"{root}/manifest"
    assert paths.wal_dir(REGION) == f"{root}/wal"
    assert paths.manifest_key(REGION, 1) == f"{root}/manifest/{one}.binpb"
    assert paths.version_hint_key(REGION) == f"{root}/manifest/version_hint.json"
    assert paths.wal_key(REGION, 1) == f"{root}/wal/{one}.arrow"


@settings(deadline=None)
@given(COUNTERS)
def test_manifest_and_wal_names_parse_back(number: int) -> None:
    manifest = paths.manifest_key(REGION, number).rsplit("/", 1)[1]
    wal = paths.wal_key(REGION, number).rsplit("/", 1)[1]
    assert paths.parse_manifest_name(manifest) == number
    assert paths.parse_wal_name(wal) == number
    assert paths.parse_manifest_name(wal) is None
    assert paths.parse_wal_name(manifest) is None


def test_what_nothing_counts_up_to_is_no_name() -> None:
    beyond = paths.MAX_COUNTER + 1
    assert paths.parse_wal_name(paths.wal_key(REGION, beyond).rpartition("/")[2]) is None
    assert paths.parse_manifest_name(paths.manifest_key(REGION, beyond).rpartition("/")[2]) is None
    assert paths.parse_generation_name(f"0123abcd_gen_{beyond}") is None


@pytest.mark.parametrize(
    "name",
    ["", ".binpb", "version_hint.json", "1.binpb", "0" * 64, "0" * 64 + ".binpb.tmp", "x" * 64],
)
def test_other_names_are_no_manifest_and_no_entry(name: str) -> None:
    assert paths.parse_manifest_name(name) is None
    assert paths.parse_wal_name(name.replace("binpb", "arrow")) is None


def test_region_names_parse_back() -> None:
    assert paths.parse_region_name(str(REGION)) == REGION
    for other in ("", "wal", str(REGION).upper(), REGION.hex, f"{{{REGION}}}"):
        assert paths.parse_region_name(other) is None


@settings(deadline=None)
@given(COUNTERS, st.binary(min_size=4, max_size=4))
def test_generation_names_parse_back(generation: int, token: bytes) -> None:
    name = paths.generation_name(generation, token.hex())
    assert paths.parse_generation_name(name) == generation
    assert paths.generation_dir(REGION, name) == f"_mem_wal/{REGION}/{name}"


@pytest.mark.parametrize("token", ["", "abc", "ABCDEF01", "0123456g", "012345678", "../01234"])
def test_generation_name_refuses_other_tokens(token: str) -> None:
    with pytest.raises(InvalidInputError):
        paths.generation_name(1, token)


def test_generation_name_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvalidInputError):
        paths.generation_name(2**64, "01234567")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "wal",
        "01234567_gen_",
        "01234567_gen_01",
        "01234567_gen_-1",
        "01234567_gen_1/",
        "01234567_gen_1\n",
        "../01234567_gen_1",
        "/01234567_gen_1",
        "01234567_gen_1/../../x",
        "01234567_gen_1.",
        "0123456_gen_1",
        "ABCDEF01_gen_1",
        "01234567_gen_\u0661",
        "01234567_gen_18446744073709551616",
    ],
)
def test_no_path_leads_out_of_the_region(name: str) -> None:
    assert paths.parse_generation_name(name) is None
    with pytest.raises(CorruptDataError):
        paths.generation_dir(REGION, name)


def test_table_manifest_keys_newest_naming_first() -> None:
    assert paths.table_manifest_keys(1) == (
        "_versions/18446744073709551614.manifest",
        "_versions/1.manifest",
    )
    assert paths.table_manifest_keys(2**64 - 1)[0] == "_versions/00000000000000000000.manifest"
    with pytest.raises(InvalidInputError):
        paths.table_manifest_keys(-1)
