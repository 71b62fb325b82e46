"""Scalar and text indexes of generations, with the parameters of the base table's indexes.

What pylance's statistics and descriptions leave out stands in the metadata of an index's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from lance.indices import IndexConfig
from lance.query import DocumentGranularity

from memwal.errors import CorruptDataError
from memwal.lsm.indexes.files import open_index_file
from memwal.storage.location import TableLocation
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index
    from lance.lance.indices import IndexDescription, IndexSegmentDescription

_PLAIN: Final = {"Bitmap": "BITMAP", "LabelList": "LABEL_LIST", "NGram": "NGRAM"}

# Kind, plugin, the file that has the parameters, and their names there and for the plugin.
_CONFIGURED: Final = {
    "BTree": ("BTREE", "btree", "page_lookup", {"batch_size": "zone_size"}),
    "ZoneMap": ("ZONEMAP", "zonemap", "zonemap", {"rows_per_zone": "rows_per_zone"}),
    "BloomFilter": (
        "BLOOMFILTER",
        "bloomfilter",
        "bloomfilter",
        {"bloomfilter_item": "number_of_items", "bloomfilter_probability": "probability"},
    ),
    "RTree": ("RTREE", "rtree", "page_data", {"page_size": "page_size"}),
}
_MIN_HASH: Final = ("num_hashes", "num_bands", "shingle_size", "tokenizer")

SCALAR_KINDS: Final = frozenset({*_PLAIN, *_CONFIGURED, "MinHashLsh", "Fm", "Inverted"})


@dataclass(frozen=True, slots=True)
class ScalarRecipe:
    """How to build a scalar index like one of the base table.

    Attributes
    ----------
    kind : str
        As pylance calls it, such as ``BTREE``.
    request : str or IndexConfig
        The second argument of ``create_index_uncommitted``.
    options : mapping
        Further arguments.
    commits : bool
        Whether pylance builds this kind only together with a commit.
    """

    kind: str
    request: str | IndexConfig
    options: Mapping[str, Any] = field(default_factory=dict)
    commits: bool = False

    def build(
        self,
        dataset: LanceDataset,
        *,
        name: str,
        column: str,
        fragment_ids: Sequence[int] | None = None,
    ) -> Index | None:
        """Write the index of a data set, or a part over some fragments; the caller commits it.

        A part of a text index is none by itself: it has to be joined with others, or made whole
        with ``merge_existing_index_segments``.

        Returns
        -------
        lance.dataset.Index or None
            None when it is committed already.
        """
        if self.commits:
            dataset.create_scalar_index(column, self.request, name=name)
            return None
        is_part = fragment_ids is not None
        if fragment_ids is None:
            fragment_ids = [part.fragment_id for part in dataset.get_fragments()]
        segment = dataset.create_index_uncommitted(
            column,
            self.request,
            name=name,
            # The name may be taken: by the index that this is to become a part of.
            replace=True,
            fragment_ids=list(fragment_ids),
            **{"document_granularity": DocumentGranularity.ROW.value, **self.options},
        )
        if self.kind == "INVERTED" and not is_part:
            # What was built is one part of a distributed build; this makes it a whole.
            return dataset.merge_existing_index_segments([segment])
        return segment


def read_scalar_recipe(
    location: TableLocation, description: IndexDescription, segment: IndexSegmentDescription
) -> ScalarRecipe:
    """Read the parameters of a scalar or text index from one of its segments.

    Raises
    ------
    ObjectNotFoundError
        The index is of a form without the files in which the parameters stand.
    CorruptDataError
        The segment's files or details are not those of such an index.
    """
    kind = description.index_type
    if kind == "Inverted":
        return _text(location, description, segment)
    if kind == "MinHashLsh":
        parameters = {name: description.details[name] for name in _MIN_HASH}
        return ScalarRecipe("MINHASHLSH", IndexConfig("minhashlsh", parameters))
    if kind == "Fm":
        return ScalarRecipe("FM", IndexConfig("fm", {}), commits=True)
    if kind in _PLAIN:
        return ScalarRecipe(_PLAIN[kind], _PLAIN[kind])
    name, plugin, parameters = _configured(location, segment.uuid, kind)
    return ScalarRecipe(name, IndexConfig(plugin, parameters))


def _configured(
    location: TableLocation, segment: str, kind: str
) -> tuple[str, str, dict[str, Any]]:
    name, plugin, file, names = _CONFIGURED[kind]
    _, metadata = open_index_file(location, segment, f"{file}.lance")
    try:
        parameters = {
            ours: read_json(metadata[theirs])
            for theirs, ours in names.items()
            if theirs in metadata
        }
    except ValueError as error:
        raise CorruptDataError(
            f"segment {segment} does not describe its parameters: {error}; build the index again"
        ) from error
    return name, plugin, parameters


def _text(
    location: TableLocation, description: IndexDescription, segment: IndexSegmentDescription
) -> ScalarRecipe:
    _, metadata = open_index_file(location, segment.uuid, "metadata.lance")
    try:
        parameters = read_json(metadata["params"])
        parameters["format_version"] = int(metadata["format_version"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"segment {segment.uuid} of index {description.name} has no {error}; build it again"
        ) from error
    # Lance takes this one from the type of the column.
    parameters.pop("lance_tokenizer", None)
    parameters["document_granularity"] = description.details["document_granularity"]
    return ScalarRecipe("INVERTED", "INVERTED", parameters)
