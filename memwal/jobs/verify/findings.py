"""Findings of a verification: stable codes, severities, advice, safe repairs, and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final
from uuid import UUID

from memwal.boundary.text import html_table, plural
from memwal.util.records import JsonRecord


class FindingSeverity(Enum):
    """Severity of a finding."""

    ERROR = "error"
    WARNING = "warning"
    INFORMATION = "information"


class Repair(Enum):
    """Repairs that are safe while writers, mergers, collectors and readers are at work."""

    HINT = "hint"
    BLOOM = "bloom"
    KEY_INDEX = "key-index"
    SNAPSHOT = "snapshot"
    CATCHUP = "catchup"
    MAINTAINED = "maintained"
    GENERATION = "generation"
    QUARANTINE = "quarantine"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding."""

    severity: FindingSeverity
    meaning: str  # meaning of such a finding
    advice: str  # effect of the repair; if no repair is safe, the steps for a person
    repair: Repair | None = None  # the repair that is safe


_E, _W, _I = FindingSeverity.ERROR, FindingSeverity.WARNING, FindingSeverity.INFORMATION
_BACKUP = "stop the writers of the region, keep every object, and restore this one from a backup"
_ASK = "keep every object and find out who wrote it before anything else is written"
_REPLAY = (
    "do not claim the region: a writer that is open may still have the rows and flush them; "
    "otherwise restore the entry, or abandon what is not flushed: memwal abandon"
)
_RETIRE = (
    "stop the clients that write to them, and retire all but one, the one with the oldest rows "
    "first: memwal retire-region"
)
_FROM_ROWS = "the repair builds it from the rows"
_PUBLISHED = "the repair publishes a new one"
_WRITTEN = "the repair writes it"
_REBUILD = "the repair rebuilds it from the log; if that fails, restore it from a backup"
_INDEX = (
    "the repair builds it again with the same parameters; a vector index whose model cannot be "
    "read must be dropped and created again"
)
_MERGED_AGAIN = "compare the rows of the generation with the table, and write the right ones again"

CODES: Final[dict[str, Code]] = {
    # The base table
    "table-torn": Code(
        _E,
        "the newest version of the base table is damaged, and the table does not open",
        "stop everything that uses the table, move the object away, and run verify again: the "
        "version before it becomes the newest, and generations it had merged are merged again; "
        "no repair may do this while a process could create the version again",
    ),
    "old-version-torn": Code(
        _W, "an older version of the base table is damaged", "let Lance clean it up"
    ),
    "table-file-missing": Code(_E, "a file of the newest version is missing", _BACKUP),
    "table-file-damaged": Code(_E, "a file of the newest version has another size", _BACKUP),
    "newer-format": Code(
        _E,
        "the newest version has a field that this release does not know, which may name files: "
        "copies, collections, and jobs that commit refuse it; its rows can be read",
        "upgrade memwal and pylance",
    ),
    "tag-damaged": Code(
        _W,
        "a tag or a branch cannot be read, so that Lance lists none of them, old versions are not "
        "cleaned up, and the collection keeps what any version needs",
        "restore its object, or delete it as the finding says",
    ),
    "tag-version-missing": Code(
        _W,
        "the version that a tag or a branch keeps is gone",
        "restore the manifest of the version, or delete the tag as the finding says",
    ),
    "column-unusable": Code(
        _W,
        "another client added a column in a form that memwal can neither read nor write",
        "read and write it with pylance, or drop it; reads and writes of the other columns, and "
        "merges, which keep its values, go on",
    ),
    "base-key-repeated": Code(
        _E,
        "the base table has several rows of one key",
        "find out which row is right and delete the other; look for direct appends",
    ),
    "merged-row-lost": Code(_E, "the base table lacks rows of a merged generation", _MERGED_AGAIN),
    "merged-row-repeated": Code(
        _E,
        "a merge added more rows than its generations have, in a table without a primary key",
        "compare the rows of the generations with the table, and delete the surplus ones",
    ),
    "merged-row-differs": Code(
        _E, "the base table has other values than the newest merged generation", _MERGED_AGAIN
    ),
    "deleted-row-present": Code(
        _E, "the base table has rows that a merged generation deleted", _MERGED_AGAIN
    ),
    "merged-row-changed": Code(
        _W,
        "the base table differs from merged generations, perhaps because of a direct write",
        "if there was no direct write to the base table, treat it as a lost merge",
    ),
    # The folder of a local table
    "link": Code(
        _I,
        "a symbolic link: what it leads to is read, written and copied, but never collected",
        "mount the disk in its place (mount --bind), if the collector shall delete there",
    ),
    "link-broken": Code(
        _E,
        "a symbolic link leads nowhere, to itself, or to a folder above it",
        "mount the disk that it leads to, or put what it led to in its place",
    ),
    "index-damaged": Code(
        _E,
        "an index of the base table has missing or damaged files; memwal reads without it, and "
        "Lance's own readers fail",
        _INDEX,
        Repair.INDEX,
    ),
    "index-wrong": Code(
        _E, "an index of the base table does not fit the rows", _INDEX, Repair.INDEX
    ),
    # The details of the MemWAL index
    "spec-repeated": Code(_E, "a region spec has the id of another spec, or 0", _ASK),
    "spec-unusable": Code(
        _W,
        "a region spec does not fit the table, or is of another client",
        "give the table another spec with memwal add-region-spec before it is written to",
    ),
    "spec-pending": Code(
        _I, "the table is being changed to another region spec", "finish with add-region-spec"
    ),
    "progress-ahead": Code(
        _E, "the merge progress of a region is ahead of what the region flushed", _ASK
    ),
    "progress-lost": Code(
        _E,
        "the base table went back behind generations that were merged into it",
        "decide what counts with memwal recover TABLE --after-restore",
    ),
    "region-lost": Code(
        _E,
        "a region that has a mark or merge progress has no manifest; reads and claims refuse",
        "mount its disk, or put its folder back; if it is lost for good: memwal recover TABLE "
        "--region-lost REGION",
    ),
    "region-earlier": Code(
        _E,
        "an earlier incarnation of a region, which was given up as lost, is in the place of the "
        "later one",
        "move its folder away, or unmount it, put the later one back, and write the rows again "
        "that only the earlier one has",
    ),
    "index-missing": Code(
        _W, "a maintained index does not exist", "build it; until then no generation is collected"
    ),
    "index-unmaintainable": Code(
        _E,
        "a maintained index is of a kind that Lance's own writer cannot maintain, so that other "
        "clients cannot write to the table",
        "the repair takes it out of the maintained indexes; memwal index extends it anyway",
        Repair.MAINTAINED,
    ),
    "index-stale": Code(
        _E,
        "an index does not find rows that it covers",
        "build the indexes with memwal index, which replaces it (an index that is not maintained: "
        "create it again); until then reads and merges do not use it, other clients do and insert "
        "repeated keys: keep them from writing",
    ),
    "catchup-ahead": Code(
        _E,
        "the catch-up of an index is ahead of the merge progress",
        "the repair lowers the entry to the merge progress",
        Repair.CATCHUP,
    ),
    "catchup-orphaned": Code(
        _I, "catch-up is recorded for an index that does not exist", "the next commit drops it"
    ),
    "catchup-unproven": Code(
        _W,
        "an index does not cover rows that its recorded catch-up includes",
        "the repair drops the entry; memwal index extends the index and records it again",
        Repair.CATCHUP,
    ),
    "snapshot-unreadable": Code(
        _E, "the snapshot of the regions cannot be read", _PUBLISHED, Repair.SNAPSHOT
    ),
    "snapshot-ahead": Code(
        _E,
        "the snapshot is ahead of the manifests, or names a region without one",
        _PUBLISHED,
        Repair.SNAPSHOT,
    ),
    "region-count": Code(
        _I,
        "the details do not record the number of regions that the region spec has",
        "the repair publishes a snapshot, which records it",
        Repair.SNAPSHOT,
    ),
    # The manifests of a region
    "region-empty": Code(_I, "a requested region has neither a manifest nor rows", "nothing"),
    "manifests-missing": Code(_E, "a region has rows but no manifest", _BACKUP),
    "manifest-damaged": Code(_E, "a version of a region's manifest cannot be read", _BACKUP),
    "manifest-mislabelled": Code(
        _E, "a manifest contains another version number or region id than its key", _BACKUP
    ),
    "manifest-gap": Code(_E, "versions of a region's manifest are missing", _BACKUP),
    "manifest-stray": Code(
        _I,
        "a manifest precedes others that were trimmed: a paused process wrote it late, or the "
        "machine crashed during a collection",
        "the collector deletes it",
    ),
    "hint-missing": Code(_W, "the version hint is missing or invalid", _WRITTEN, Repair.HINT),
    "hint-late": Code(_W, "the version hint is behind the newest version", _WRITTEN, Repair.HINT),
    "hint-wrong": Code(
        _E,
        "the version hint names a version that is lost; reads and claims refuse",
        "restore that version of the manifest from a backup; if that is not possible, delete the "
        "hint, and the region goes on from the newest version that is there",
    ),
    "epoch-falls": Code(_E, "the writer epoch falls from one manifest to the next", _ASK),
    "generation-falls": Code(_E, "the current generation falls between manifests", _ASK),
    "replay-falls": Code(_E, "the replay position falls between manifests", _ASK),
    "flushed-order": Code(_E, "flushed generations are repeated or not in order", _ASK),
    "flushed-ahead": Code(_E, "a flushed generation is not below the current one", _ASK),
    "flushed-path": Code(_E, "the name of a folder is not that of its generation", _ASK),
    "flushed-lost": Code(
        _E, "a generation that is not merged was dropped from the manifest", _BACKUP
    ),
    "region-spec-unknown": Code(
        _E, "a region belongs to a spec that the table does not have", _ASK
    ),
    "region-values-wrong": Code(_E, "the region values of a manifest do not fit its spec", _ASK),
    "region-values-repeated": Code(
        _E, "two regions are for the same rows, so that a key may be in both", _RETIRE
    ),
    "region-place-unknown": Code(
        _W,
        "another client made a region, and nothing says which rows belong there",
        "stop that client, and retire the region: memwal retire-region",
    ),
    "key-in-two-regions": Code(
        _E,
        "two regions have unmerged rows of one key, and nothing records which is newer",
        _RETIRE,
    ),
    # The log of a region
    "log-gap": Code(_E, "an entry that is to be replayed is missing", _REPLAY),
    "log-hole": Code(
        _W,
        "an entry whose rows are flushed is missing",
        "it is not needed; find out what deleted it",
    ),
    "log-stray": Code(
        _I,
        "an entry precedes others that were collected: a paused process wrote it late, or the "
        "machine crashed during a collection",
        "the collector deletes it",
    ),
    "abandoned-unreadable": Code(
        _W, "a record of abandoned rows cannot be read", "keep it and inspect it"
    ),
    "log-tip-lost": Code(
        _E,
        "the newest entries are gone",
        "other clients would fence at the start of the log; restore the newest entry, or "
        "abandon what is not flushed: memwal abandon",
    ),
    "log-entry-damaged": Code(_E, "an entry that is to be replayed cannot be read", _REPLAY),
    "log-rows-unusable": Code(
        _E,
        "an entry that is to be replayed has rows that cannot be stored, and the region cannot be "
        "claimed",
        "the repair puts these rows into the quarantine table and flushes all others; it fences "
        "the present writer of the region, which loses nothing and claims the region again",
        Repair.QUARANTINE,
    ),
    "log-entry-unfit": Code(
        _E,
        "the columns of an entry that is to be replayed do not fit the table, and the region "
        "cannot be claimed",
        "change the schema of the table so that they fit, or abandon what is not flushed: memwal "
        "abandon",
    ),
    "log-entry-spoiled": Code(
        _W, "an entry whose rows are flushed cannot be read", "it is not needed; check the disk"
    ),
    "log-tip-torn": Code(
        _I, "the last entries are torn and count as absent", "the next claim replaces them"
    ),
    "log-claim-overtaken": Code(
        _I,
        "a claim wrote its fence after that of a newer claim",
        "it is not needed, and does no harm",
    ),
    "log-epoch-falls": Code(_E, "the writer epoch falls from one entry of rows to the next", _ASK),
    "log-epoch-ahead": Code(_E, "an entry has an epoch that no writer claimed", _ASK),
    # Flushed generations
    "generation-missing": Code(
        _E, "a generation that is not merged is missing", _REBUILD, Repair.GENERATION
    ),
    "merged-generation-missing": Code(
        _W, "a merged generation that the manifest names is missing", "the collector drops it"
    ),
    "generation-damaged": Code(_E, "a generation cannot be read", _REBUILD, Repair.GENERATION),
    "generation-index-damaged": Code(
        _E,
        "an index of a generation has missing or damaged files, or does not fit the rows; memwal "
        "reads without it, and Lance's own readers fail",
        "the repair rebuilds the generation from the log; if that fails, merge it and let it be "
        "collected",
        Repair.GENERATION,
    ),
    "generation-schema": Code(
        _E, "the columns of a generation do not fit the table", "restore the schema of the table"
    ),
    "generation-rows": Code(
        _W, "a generation does not have the number of rows that its manifest records", _ASK
    ),
    "generation-keys-repeated": Code(_E, "a generation has several visible rows of one key", _ASK),
    "rows-misplaced": Code(
        _E, "rows of a generation belong to another region, and an older row may win", _ASK
    ),
    "bloom-missing": Code(_W, "a generation has no Bloom filter", _FROM_ROWS, Repair.BLOOM),
    "bloom-wrong": Code(
        _E, "a Bloom filter denies keys that are stored, or is damaged", _FROM_ROWS, Repair.BLOOM
    ),
    "key-index-missing": Code(
        _E,
        "a generation has no key index, which other clients need to read it",
        _FROM_ROWS,
        Repair.KEY_INDEX,
    ),
    "key-index-wrong": Code(
        _E,
        "the key index of a generation leads to wrong rows, or to none",
        _FROM_ROWS,
        Repair.KEY_INDEX,
    ),
    "orphan-folder": Code(
        _I, "a folder of a flush that no manifest ever named", "the collector deletes it"
    ),
}
"""All codes with their meaning."""


@dataclass(frozen=True, slots=True)
class Finding(JsonRecord):
    """A violated invariant."""

    json_properties: ClassVar[tuple[str, ...]] = ("severity", "repair", "advice")

    code: str
    """A key of :data:`CODES`; it never changes its meaning."""
    object: str
    """The object in question: a key below the table, or the name of an index or a spec."""
    text: str
    """Description of the fault."""
    region: UUID | None = None
    """None for the table itself."""

    @property
    def severity(self) -> FindingSeverity:
        """Severity of its code."""
        return CODES[self.code].severity

    @property
    def repair(self) -> Repair | None:
        """Repair that is safe; None if a person must decide."""
        return CODES[self.code].repair

    @property
    def advice(self) -> str:
        """Effect of the repair; advice if no repair is safe."""
        return CODES[self.code].advice

    @property
    def identity(self) -> tuple[str, UUID | None, str]:
        """Code, region and object, by which another attempt finds the same violation."""
        return self.code, self.region, self.object


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(JsonRecord):
    """Report of a verification."""

    json_properties: ClassVar[tuple[str, ...]] = ("errors", "warnings")

    table: str
    """URI of the table."""
    version: int
    """Version of the base table when it began; 0 if none can be read."""
    regions: int = 0
    """Number of checked regions."""
    tasks: int = 0
    """Number of tasks."""
    seconds: float = 0.0
    """Wall time."""
    findings: tuple[Finding, ...] = ()
    """Worst first."""

    def __repr__(self) -> str:
        return (
            f"VerifyReport({self.table!r}, version {self.version}, {self.regions} regions, "
            f"{self.errors} errors, {self.warnings} warnings)"
        )

    def _repr_html_(self) -> str:
        return html_table(
            f"verify of {self.table} at version {self.version}: {plural(self.errors, 'error')}, "
            f"{plural(self.warnings, 'warning')} in {plural(self.regions, 'region')}",
            ("severity", "code", "region", "object", "what", "what to do"),
            [
                (f.severity.value, f.code, f.region, f.object, f.text, f.advice)
                for f in self.findings
            ],
        )

    @property
    def errors(self) -> int:
        """Number of errors."""
        return sum(finding.severity is FindingSeverity.ERROR for finding in self.findings)

    @property
    def warnings(self) -> int:
        """Number of warnings."""
        return sum(finding.severity is FindingSeverity.WARNING for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Return whether all findings are only information."""
        return all(finding.severity is FindingSeverity.INFORMATION for finding in self.findings)


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort findings, errors before warnings before information, and drop repeated ones."""
    order = list(FindingSeverity)
    return tuple(
        sorted(
            dict.fromkeys(findings),
            key=lambda finding: (
                order.index(finding.severity),
                str(finding.region or ""),
                finding.code,
                finding.object,
            ),
        )
    )
