"""Findings of a verification: stable codes, severity, advice, safe repairs, and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final
from uuid import UUID


class Severity(Enum):
    """How bad a finding is."""

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
    GENERATION = "generation"


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes
    ----------
    severity : Severity
    meaning : str
        What it says, in general.
    advice : str
        What to do, where no repair is safe; else what the repair does.
    repair : Repair or None
    """

    severity: Severity
    meaning: str
    advice: str
    repair: Repair | None = None


_E, _W, _I = Severity.ERROR, Severity.WARNING, Severity.INFORMATION
_BACKUP = "stop the writers of the region, keep every object, and restore this one from a backup"
_ASK = "keep every object and find out who wrote it before anything else is written"
_REPLAY = (
    "do not claim the region: a writer that is open may still have the rows and flush them; else "
    "restore the entry, or give up what is not flushed by opening a writer with replay=False"
)
_REBUILD = "the repair makes it anew from the log; where that fails, restore it from a backup"
_MERGED_AGAIN = "compare the rows of the generation with the table, and write what is right again"

CODES: Final[dict[str, Code]] = {
    # The base table
    "table-torn": Code(
        _E,
        "the newest version of the base table is not whole, and the table does not open",
        "stop everything that uses the table, move the object away, and run verify again: the "
        "version before it becomes the newest, and generations it had merged are merged again; "
        "no repair may do this while a process could create the version anew",
    ),
    "old-version-torn": Code(
        _W, "an older version of the base table is not whole", "let Lance clean it up"
    ),
    "table-file-missing": Code(_E, "a file of the newest version is not there", _BACKUP),
    "table-file-damaged": Code(_E, "a file of the newest version has another size", _BACKUP),
    "base-key-repeated": Code(
        _E,
        "keys stand in more than one row of the base table",
        "find out which row is right and delete the other; look for direct appends",
    ),
    "merged-row-lost": Code(_E, "the base table lacks rows of a merged generation", _MERGED_AGAIN),
    "merged-row-differs": Code(
        _E, "the base table has other values than the newest merged generation", _MERGED_AGAIN
    ),
    "deleted-row-present": Code(
        _E, "the base table has rows that a merged generation deleted", _MERGED_AGAIN
    ),
    "merged-row-changed": Code(
        _W,
        "the base table differs from merged generations, maybe since it was written directly",
        "if nobody wrote to the base table itself, treat it as a lost merge",
    ),
    # The details of the MemWAL index
    "spec-repeated": Code(_E, "a region spec has the id of another, or 0", _ASK),
    "spec-unusable": Code(
        _W,
        "a region spec does not fit the table, or is one of another client",
        "divide the table anew with memwal add-region-spec if it is to be written to",
    ),
    "spec-pending": Code(
        _I, "the table is on its way to another region spec", "finish with add-region-spec"
    ),
    "progress-ahead": Code(
        _E, "the merge progress of a region is beyond what the region flushed", _ASK
    ),
    "progress-unknown-region": Code(
        _W, "there is merge progress of a region that has no manifest", _ASK
    ),
    "index-missing": Code(
        _W, "a maintained index does not exist", "build it; until then no generation is collected"
    ),
    "catchup-ahead": Code(
        _E,
        "an index is said to cover generations that are not merged",
        "the repair lowers the entry to the merge progress",
        Repair.CATCHUP,
    ),
    "catchup-orphaned": Code(
        _I, "there is an entry of an index that does not exist", "the next commit drops it"
    ),
    "catchup-unproven": Code(
        _W,
        "an index does not cover rows that it is said to have caught up with",
        "the repair drops the entry; memwal index extends the index and records it again",
        Repair.CATCHUP,
    ),
    "snapshot-unreadable": Code(
        _E,
        "the snapshot of the regions cannot be read",
        "the repair publishes a new one",
        Repair.SNAPSHOT,
    ),
    "snapshot-ahead": Code(
        _E,
        "the snapshot tells of states of regions that never were",
        "the repair publishes a new one",
        Repair.SNAPSHOT,
    ),
    "snapshot-count": Code(
        _W,
        "the snapshot has another number of regions than it says",
        "the repair publishes a new one",
        Repair.SNAPSHOT,
    ),
    # The manifests of a region
    "region-empty": Code(
        _I, "a region that was asked for has neither a manifest nor rows", "nothing"
    ),
    "manifests-missing": Code(_E, "a region has rows and no manifest", _BACKUP),
    "manifest-damaged": Code(_E, "a version of a region's manifest cannot be read", _BACKUP),
    "manifest-mislabelled": Code(
        _E, "a manifest says that it is another version, or of another region", _BACKUP
    ),
    "manifest-gap": Code(_E, "versions of a region's manifest are missing", _BACKUP),
    "manifest-stray": Code(
        _I,
        "a manifest stands before others that are gone: a process woke late, or the machine "
        "crashed during a collection",
        "the collector takes it",
    ),
    "hint-missing": Code(
        _W, "the version hint is missing or no hint", "the repair writes it", Repair.HINT
    ),
    "hint-late": Code(_W, "the version hint is behind", "the repair writes it", Repair.HINT),
    "hint-wrong": Code(
        _W,
        "the version hint names a version that does not exist yet",
        "the repair writes it",
        Repair.HINT,
    ),
    "epoch-falls": Code(_E, "the writer epoch falls from one manifest to the next", _ASK),
    "generation-falls": Code(_E, "the current generation falls between manifests", _ASK),
    "replay-falls": Code(_E, "the replay position falls between manifests", _ASK),
    "flushed-order": Code(_E, "flushed generations are repeated or out of order", _ASK),
    "flushed-ahead": Code(_E, "a flushed generation is not below the current one", _ASK),
    "flushed-path": Code(_E, "a folder's name does not belong to its generation", _ASK),
    "flushed-lost": Code(
        _E, "the manifest stopped naming a generation that is not merged", _BACKUP
    ),
    "region-spec-unknown": Code(_E, "a region belongs to a spec that the table has not", _ASK),
    "region-values-wrong": Code(_E, "the region values of a manifest do not fit its spec", _ASK),
    "region-values-repeated": Code(
        _E, "two regions have the same values, so that a key may be in both", _ASK
    ),
    # The log of a region
    "log-gap": Code(_E, "an entry that is to be replayed is missing", _REPLAY),
    "log-hole": Code(
        _W, "an entry is missing whose rows are flushed", "nothing needs it; find out who took it"
    ),
    "log-stray": Code(
        _I,
        "an entry stands before others that are gone: a process woke late, or the machine crashed "
        "during a collection",
        "the collector takes it",
    ),
    "abandoned-unreadable": Code(
        _W, "a record of rows that were given up is none", "keep it and look"
    ),
    "log-tip-lost": Code(
        _E,
        "the newest entries are gone",
        "other clients would fence at the front of the log; restore the newest entry, or open a "
        "writer with replay=False",
    ),
    "log-entry-damaged": Code(_E, "an entry that is to be replayed cannot be read", _REPLAY),
    "log-entry-spoiled": Code(
        _W, "an entry whose rows are flushed cannot be read", "nothing needs it; look at the disk"
    ),
    "log-tip-torn": Code(
        _I, "the last entries are torn, and count as absent", "the next claim replaces them"
    ),
    "log-claim-overtaken": Code(
        _I,
        "a claim fenced behind that of a newer one: it was slower",
        "nothing needs it, and it harms nobody",
    ),
    "log-epoch-falls": Code(_E, "the writer epoch falls from one entry of rows to the next", _ASK),
    "log-epoch-ahead": Code(_E, "an entry has an epoch that nobody claimed", _ASK),
    # Flushed generations
    "generation-missing": Code(
        _E, "a generation that is not merged is not there", _REBUILD, Repair.GENERATION
    ),
    "merged-generation-missing": Code(
        _W, "a generation that is merged and still named is not there", "the collector drops it"
    ),
    "generation-damaged": Code(_E, "a generation cannot be read", _REBUILD, Repair.GENERATION),
    "generation-schema": Code(
        _E, "the columns of a generation do not fit the table", "bring the schema of the table back"
    ),
    "generation-rows": Code(
        _W, "a generation has another number of rows than its manifest says", _ASK
    ),
    "generation-keys-repeated": Code(_E, "a generation shows a key more than once", _ASK),
    "rows-misplaced": Code(
        _E, "rows of a generation belong to another region, and an older one may win", _ASK
    ),
    "bloom-missing": Code(
        _W, "a generation has no Bloom filter", "the repair makes it of the rows", Repair.BLOOM
    ),
    "bloom-wrong": Code(
        _E,
        "a Bloom filter denies keys that are there",
        "the repair makes it of the rows",
        Repair.BLOOM,
    ),
    "key-index-missing": Code(
        _E,
        "a generation has no key index, without which other clients cannot read it",
        "the repair makes it of the rows",
        Repair.KEY_INDEX,
    ),
    "key-index-wrong": Code(
        _E,
        "the key index of a generation leads to wrong rows, or to none",
        "the repair makes it of the rows",
        Repair.KEY_INDEX,
    ),
    "orphan-folder": Code(
        _I, "a folder of a flush that no manifest ever named", "the collector takes it"
    ),
}
"""Every code, with what it means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it must be. Make one with :meth:`of`.

    Attributes
    ----------
    code : str
        A key of :data:`CODES`; it never changes its meaning.
    region : UUID or None
        None for the table itself.
    object : str
        What it is about: a key below the table, or the name of an index or a spec.
    text : str
        What is wrong there, in words.
    """

    code: str
    region: UUID | None
    object: str
    text: str

    @classmethod
    def of(cls, code: str, object: str, text: str, *, region: UUID | None = None) -> Finding:
        """A finding of a known code.

        Parameters
        ----------
        code : str
            One of ``CODES``.
        object : str
            The object that it is about, below the table.
        text : str
            What is wrong there.
        region : UUID, optional
            None for the table as a whole.
        """
        return cls(code=code, region=region, object=object, text=text)

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return CODES[self.code].severity

    @property
    def repair(self) -> Repair | None:
        """Which repair is safe; None when a person has to look."""
        return CODES[self.code].repair

    @property
    def advice(self) -> str:
        """What to do, or what the repair does."""
        return CODES[self.code].advice

    @property
    def identity(self) -> tuple[str, UUID | None, str]:
        """What stays the same when it is found again."""
        return self.code, self.region, self.object

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "code": self.code,
            "severity": self.severity.value,
            "region": str(self.region) if self.region is not None else None,
            "object": self.object,
            "text": self.text,
            "repair": self.repair.value if self.repair is not None else None,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification found.

    Attributes
    ----------
    table : str
        URI of the table.
    version : int
        Version of the base table when it began; 0 when none can be read.
    regions, tasks : int
        Regions that were looked at, in so many tasks.
    seconds : float
        Wall time.
    findings : tuple of Finding
        Worst first.
    """

    table: str
    version: int
    regions: int = 0
    tasks: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()

    def count(self, severity: Severity) -> int:
        """Findings of a severity.

        Parameters
        ----------
        severity : Severity
            Which are counted.
        """
        return sum(finding.severity is severity for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether there is nothing but information."""
        return all(finding.severity is Severity.INFORMATION for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "table": self.table,
            "version": self.version,
            "regions": self.regions,
            "tasks": self.tasks,
            "seconds": self.seconds,
            "errors": self.count(Severity.ERROR),
            "warnings": self.count(Severity.WARNING),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings, errors before warnings before information, each once."""
    order = list(Severity)
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
