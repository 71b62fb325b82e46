"""What memwal takes for granted of Lance, LanceDB, Spark and Airflow, and which tests show it.

When a test of a fact fails with another version of one of them, the fact may have changed: its
report then says what leans on it and what to look at again.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that others do, and that memwal leans on.

    Attributes
    ----------
    name : str
        What it is called, as in ``pytest -m 'fact(name=...)'`` and the table.
    of : str
        Who does so.
    says : str
        What is so.
    leans : tuple of str
        Modules that lean on it.
    look : str
        What to look at again when it is not so any more.
    tests : tuple of str
        Tests that show it: files or tests below ``tests``.
    """

    name: str
    of: str
    says: str
    leans: tuple[str, ...]
    look: str
    tests: tuple[str, ...]


FACTS = (
    Fact(
        "calls",
        "Lance",
        "The calls that memwal makes exist, with the arguments that it gives.",
        ("memwal",),
        "the module that makes the call; the range of pylance in pyproject.toml",
        ("canary/test_names.py",),
    ),
    Fact(
        "bytes",
        "Lance",
        "Manifests, log entries, key indexes, filters and details have the golden bytes.",
        ("memwal/format",),
        "protos/, and whether a field that is new must be kept",
        ("format/test_golden.py", "format/test_region_manifest.py", "format/test_memwal_index.py"),
    ),
    Fact(
        "without-key",
        "Lance",
        "Generations of a table without a primary key have every row, a filter of one hash and no "
        "key index.",
        ("memwal/lsm/flush/generation.py", "memwal/format/bloom.py"),
        "what its writer puts there; whether its readers and LanceDB's accept such tables by now",
        ("interop/test_tables_without_key.py",),
    ),
    Fact(
        "staged-details",
        "Lance",
        "It takes the version that a namespace client created, whose manifest has other details of "
        "the MemWAL index than the staged one.",
        ("memwal/base_table/namespaces.py", "memwal/jobs/merge/divided.py"),
        "with_mem_wal_details in memwal/format/lance_manifest.py",
        ("interop/test_tables_without_key.py",),
    ),
    Fact(
        "merge-mark",
        "Lance",
        "The merge progress is in the commit of its rows; progress that does not increase is "
        "refused.",
        ("memwal/jobs/merge/merge_insert.py",),
        "the order of generations, and what a merger does after a conflict",
        (
            "canary/test_lance.py::test_a_mark_and_its_rows_are_one_commit",
            "canary/test_lance.py::test_a_mark_that_is_no_progress_is_refused_with_its_rows",
        ),
    ),
    Fact(
        "skipped-mark",
        "Lance",
        "Merge progress that skips generations is accepted: memwal must keep the order.",
        ("memwal/jobs/merge/job.py", "memwal/jobs/merge/merge_insert.py"),
        "if it is refused now: nothing breaks, and a check of ours may go",
        ("canary/test_lance.py::test_a_mark_that_skips_is_taken",),
    ),
    Fact(
        "uncommitted-mark",
        "Lance",
        "A merge that is executed uncommitted and committed apart loses its mark.",
        ("memwal/jobs/merge/merge_insert.py",),
        "whether merges could now be prepared apart and committed together",
        ("canary/test_lance.py::test_a_mark_is_lost_where_the_merge_is_committed_apart",),
    ),
    Fact(
        "stale-details",
        "Lance",
        "A stale commit of the MemWAL details is accepted and takes progress back.",
        ("memwal/base_table/commit.py",),
        "whether a plain commit is refused now; the strict one must still be",
        (
            "canary/test_lance.py::test_a_stale_commit_of_the_details_takes_progress_back",
            "base_table/test_commit.py",
        ),
    ),
    Fact(
        "pinned-delete",
        "Lance",
        "A delete pass that is pinned to a version is refused once another merge touched its rows.",
        ("memwal/jobs/merge/merge_insert.py",),
        "a paused merger could delete rows that came since: stop merges until it is understood",
        ("interop/test_progress_races.py",),
    ),
    Fact(
        "catch-up",
        "Lance",
        "An index build records how far it caught up; a compaction that remaps withdraws it.",
        ("memwal/jobs/index/job.py", "memwal/jobs/table/compact.py"),
        "what collection takes for covered",
        (
            "canary/test_lance.py"
            "::test_an_index_build_records_its_catch_up_and_a_compaction_withdraws_it",
        ),
    ),
    Fact(
        "tombstone-id",
        "Lance",
        "A column that is added later takes the field id that the tombstone of generations has.",
        ("memwal/region/rows.py",),
        "how columns of generations are matched with those of the table",
        (
            "canary/test_lance.py::test_a_later_column_takes_the_id_that_a_tombstone_has",
            "interop/test_schema_evolution.py",
        ),
    ),
    Fact(
        "index-order",
        "Lance",
        "Indexes are described by name.",
        ("memwal/reader/base_indexes.py",),
        "which of several indexes of a column readers choose",
        ("canary/test_lance.py::test_indexes_are_listed_by_name",),
    ),
    Fact(
        "open-predicates",
        "Lance",
        "What follows a whole predicate is ignored.",
        ("memwal/reader/predicate.py",),
        "whether filters have to be put in parentheses",
        (
            "canary/test_lance.py::test_what_follows_a_whole_predicate_is_ignored",
            "reader/test_predicate.py",
        ),
    ),
    Fact(
        "fence",
        "Lance",
        "A claim is a manifest, then a sentinel, then the replay; either client's claim fences the "
        "other's writer.",
        ("memwal/lsm/wal/claim.py", "memwal/lsm/wal/appender.py"),
        "an acknowledged write could be lost: let no writers of two kinds share a table",
        ("interop/test_fencing.py", "format/test_wal_entry.py"),
    ),
    Fact(
        "takeover",
        "Lance",
        "Either kind of writer replays what the other left in the log.",
        ("memwal/lsm/wal/replay.py", "memwal/format/wal_entry.py"),
        "the metadata of entries, field ids, and how much Lance replays of one generation",
        ("interop/test_takeover.py", "interop/test_recovery.py", "interop/test_types.py"),
    ),
    Fact(
        "generations",
        "Lance",
        "Lance's readers take the generations that memwal flushes, with their sidecars.",
        ("memwal/lsm/flush/generation.py", "memwal/lsm/flush/key_index.py"),
        "the folder of a generation: columns, ids, key index, filter",
        ("interop/test_native_reads_ours.py",),
    ),
    Fact(
        "generation-indexes",
        "Lance",
        "An index over a generation can be given the model of the base table, bit for bit.",
        ("memwal/lsm/indexes/parameters.py",),
        "recall of searches over generations, and distances between them",
        ("interop/test_generation_indexes.py", "interop/test_search.py"),
    ),
    Fact(
        "same-answers",
        "Lance",
        "Lance's merging readers and ours give the same rows at every step of a table's life.",
        ("memwal/reader",),
        "the merging scan, and who is right by the specification",
        ("interop/test_readers.py",),
    ),
    Fact(
        "models-stay",
        "Lance",
        "optimize_indices leaves centroids alone when it is told how many segments to join.",
        ("memwal/lsm/indexes/catchup.py",),
        "whether the index build trains anew: searches of generations would go astray",
        ("lsm/indexes/test_segments.py",),
    ),
    Fact(
        "index-parts",
        "Lance",
        "Segments that are built apart are committed together, and conflict with a compaction.",
        ("memwal/jobs/index/job.py",),
        "the index build in parts; it can be turned off by a large --part-rows",
        ("jobs/index/test_parallel.py",),
    ),
    Fact(
        "text-statistics",
        "Lance",
        "Words are counted by lance.tokenize as an index of text counts them.",
        ("memwal/search/text", "memwal/lsm/memtable"),
        "scores of text over several sources",
        ("search/text/test_tokenizers.py", "search/text/test_index_files.py"),
    ),
    Fact(
        "buckets",
        "LanceDB",
        "Bucket of a value, ids of regions and the spec are the same for every client.",
        ("memwal/region/hashing.py", "memwal/region/router.py", "memwal/region/spec.py"),
        "a key could live in two regions: let only one kind of client write",
        ("region/test_bucketing.py", "region/test_region_ids.py", "region/test_spec.py"),
    ),
    Fact(
        "shared-tables",
        "LanceDB",
        "LanceDB writes, reads and goes on beside memwal in the same table.",
        ("memwal",),
        "the other facts first",
        ("interop/test_lancedb.py", "interop/test_region_specs.py"),
    ),
    Fact(
        "expressions",
        "LanceDB",
        "Lance and LanceDB evaluate no region expression, and LanceDB writes to no such table.",
        ("memwal/region/transforms.py",),
        "whether the regions and ids that LanceDB now uses are ours; docs/concepts/regions.md",
        (
            "interop/test_region_specs.py::test_lance_evaluates_no_expression",
            "interop/test_region_specs.py::test_lancedb_refuses_to_write",
        ),
    ),
    Fact(
        "region-names",
        "Lance",
        "Lance's writer takes any region id, and records the id of the spec and no values.",
        ("memwal/lsm/region_places.py",),
        "which regions are adopted, and which are refused",
        ("interop/test_region_names.py",),
    ),
    Fact(
        "pushed-filters",
        "Spark",
        "Spark keeps the filters that were pushed last with a load, and mixes queries up.",
        ("memwal/spark/data_source.py",),
        "whether the data source could take filters from Spark now",
        ("spark/test_data_source.py::test_spark_mixes_pushed_filters_up",),
    ),
    Fact(
        "pyspark-client",
        "Airflow",
        "The Spark provider asks for pyspark-client, which overwrites parts of pyspark.",
        ("requirements/overrides.txt",),
        "whether the override can go",
        (
            "canary/test_platform.py::"
            "test_the_spark_provider_asks_for_a_package_that_overwrites_pyspark",
        ),
    ),
    Fact(
        "plugin-names",
        "Airflow",
        "Of two plugins with one name the first is loaded, and the second reported as an error.",
        ("plugins/memwal_airflow/plugin.py",),
        "that nothing but the entry point registers the plugin",
        (
            "canary/test_platform.py::"
            "test_airflow_takes_the_first_plugin_of_a_name_and_reports_the_second",
        ),
    ),
)


def facts_of(test: str) -> Iterator[Fact]:
    """Facts that a test shows, by its path and name below ``tests``."""
    for fact in _facts_of_file().get(test.partition("::")[0], ()):
        starts = tuple(f"{shown}{end}" for shown in fact.tests for end in ("::", "["))
        if test in fact.tests or test.startswith(starts):
            yield fact


@functools.cache
def _facts_of_file() -> dict[str, list[Fact]]:
    facts: dict[str, list[Fact]] = {}
    for fact in FACTS:
        for path in sorted({shown.partition("::")[0] for shown in fact.tests}):
            facts.setdefault(path, []).append(fact)
    return facts


def told(fact: Fact) -> str:
    """What to do when a test of a fact fails."""
    return (
        f"{fact.of} was known for this: {fact.says}\n"
        f"Code that depends on it: {', '.join(fact.leans)}\n"
        f"Look at: {fact.look}"
    )
