"""Build damaged indexes of the base table again.

An index is damaged if files of it are missing or were not written whole, or if it is stale: it
misses rows which it covers (:mod:`memwal.lsm.indexes.unusable`). The new index has the parameters
of the old one, and replaces its segments in one commit, in which Lance records its catch-up. A
process that dies before the commit leaves index files that no version names; a process that repeats
it finds nothing to do. Merges may be committed during the rebuild: the index covers the fragments
of the version that was read, and is extended over the others as any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

import lance
from lance.dataset import Index
from lance.query import DocumentGranularity

from memwal.base_table.commit import commit_durably
from memwal.base_table.named_files import BadFile, find_bad_files, find_bad_index_files, refuse
from memwal.base_table.snapshot import BaseTable, lance_errors, open_base
from memwal.errors import ConflictError, CorruptDataError, InvalidInputError, ObjectNotFoundError
from memwal.format.lance_files import FileKind, NamedFile
from memwal.format.paths import index_file_key
from memwal.jobs.index.unindexable import REFUSALS, build_without_unindexable
from memwal.jobs.job import Guard
from memwal.lsm.indexes.catchup import describe_index, segment_location
from memwal.lsm.indexes.kinds import IndexSpec, kind_of, read_index_spec
from memwal.lsm.indexes.maintained import MaintainedIndex
from memwal.lsm.indexes.unusable import find_unusable
from memwal.storage.location import TableLocation
from memwal.util.retry import retry_lost_races

if TYPE_CHECKING:
    from lance.lance.indices import IndexDescription

logger = logging.getLogger(__name__)

# Lance takes it from the type of the column.
_TOKENIZER = "lance_tokenizer"
_GRANULARITY = "document_granularity"

_STALE = "it does not find rows that it covers"
_NO_MODEL = (
    "index {} has damaged files ({}), and none of them has its model any more: searches go on "
    "without it; drop it, create it again, and name it among the maintained ones"
)


def rebuild_damaged(
    location: TableLocation, names: Collection[str], *, guard: Guard | None = None
) -> tuple[set[str], dict[str, str]]:
    """Build damaged indexes again; return them, and a warning for each that cannot be built.

    Raises ConflictError if other commits kept getting in between, and LostWriteError if files of a
    new index were not written whole in several attempts.
    """
    base = open_base(location)
    reasons = {name: _STALE for name in find_unusable(base).stale if name in names}
    for name, files in _bad_files_of(base, names).items():
        reasons[name] = str(files[0])
    rebuilt, lost = set(), {}
    for name, reason in sorted(reasons.items()):
        if guard is not None:
            guard()
        logger.warning("index %s of %s is built again: %s", name, location, reason)
        try:
            if rebuild_index(location, name):
                rebuilt.add(name)
        except InvalidInputError:
            lost[name] = _NO_MODEL.format(name, reason)
    return rebuilt, lost


def _bad_files_of(base: BaseTable, names: Collection[str]) -> dict[str, list[BadFile]]:
    bad: dict[str, list[BadFile]] = {}
    for file in find_bad_index_files(base):
        if file.index in names:
            bad.setdefault(str(file.index), []).append(file)
    return bad


def rebuild_index(
    location: TableLocation,
    name: str,
    *,
    is_damaged: Callable[[BaseTable], bool] = lambda base: False,
) -> bool:
    """Replace an index; False if it is neither damaged nor ``is_damaged`` in another way.

    Raises InvalidInputError if its parameters cannot be read any more, and the errors of
    :func:`rebuild_damaged`.
    """
    doing = f"building index {name} again"

    def attempt() -> bool:
        base = open_base(location)
        bad = _bad_files_of(base, [name]).get(name, [])
        description = describe_index(base, name)
        if description is None:
            return False
        if not (bad or name in find_unusable(base).stale or is_damaged(base)):
            return False
        spec = _readable_spec(base, description, bad)
        column = description.field_names[0]

        def commit(dataset: lance.LanceDataset) -> None:
            parameters = dict(spec.parameters) if spec.kind.plugin is None else {}
            if _GRANULARITY in parameters:
                parameters[_GRANULARITY] = DocumentGranularity(parameters[_GRANULARITY])
            create = dataset.create_index if spec.kind.is_vector else dataset.create_scalar_index
            create(column, spec.index_type, name=name, replace=True, **parameters)

        try:
            commit_durably(base, commit, doing=doing)
        except REFUSALS as error:
            index = MaintainedIndex(name, column, base.field_ids()[column.partition(".")[0]], spec)
            fragments = sorted(base.dataset.fragment_ids())
            part = build_without_unindexable(base, index, fragments, error)
            commit_parts(base, index, [part])
        return True

    return retry_lost_races(
        attempt,
        attempts=20,
        seconds=0.2,
        exhausted=ConflictError(f"{doing} met other commits in each attempt; try again later"),
    )


def _readable_spec(
    base: BaseTable, description: IndexDescription, bad: Collection[BadFile]
) -> IndexSpec:
    """Return the spec of an index from a segment whose files with parameters can be read.

    All segments have the same; those without damaged files are read first. Raises InvalidInputError
    if there is none, and the parameters are nowhere else.
    """
    damaged = {file.key.removeprefix("_indices/").partition("/")[0] for file in bad}
    for segment in sorted(description.segments, key=lambda segment: segment.uuid in damaged):
        try:
            return read_index_spec(segment_location(base, segment), description, segment.uuid)
        except (CorruptDataError, ObjectNotFoundError):
            continue
    kind = kind_of(description)
    if kind.is_vector or len(description.field_names) != 1:
        raise InvalidInputError(f"no segment of index {description.name} has its parameters")
    # A text index has its parameters in the manifest too. Those of other kinds only decide about
    # sizes, and have defaults.
    details = description.details if kind.is_text else {}
    parameters = {
        key: value for key, value in details.items() if key != _TOKENIZER and value is not None
    }
    return IndexSpec(kind, parameters)


def commit_parts(base: BaseTable, index: MaintainedIndex, parts: Sequence[Index]) -> None:
    """Join parts that were built on ``base`` and add them to their index, durably.

    They replace the segments that cover the same fragments.

    Raises LostRaceError if another commit rewrote fragments of the parts, or replaced the index,
    LostWriteError if a file of a part or of the joined segment was not written whole.
    """
    doing = f"adding parts to index {index.name}"
    segment = parts[0]
    folders = [index_file_key(UUID(part.uuid), "").rstrip("/") for part in parts]
    written = [NamedFile(folder, FileKind.SEGMENT) for folder in folders]
    refuse(find_bad_files(base.location.store, written))
    if len(parts) > 1 or index.kind.parts_need_merge:
        with lance_errors(doing):
            segment = base.dataset.merge_existing_index_segments(list(parts))

    def commit(dataset: lance.LanceDataset) -> None:
        dataset.commit_existing_index_segments(index.name, index.column, [segment])

    commit_durably(base, commit, doing=doing)
