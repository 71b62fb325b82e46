"""Features and fields of a stored manifest that this release of memwal does not know.

Without an unknown feature flag, a reader of Lance ignores fields that it does not know, and its
writer drops them. A job must not: a field that is unknown here may name files that a copy would
leave out and a collection delete, and a commit of Lance's would drop it from the next version.
Therefore ``protos/lance_manifest.proto`` declares every field that a manifest may have without such
a flag.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from memwal.errors import NewerFormatError
from memwal.format._proto import lance_manifest_pb2

BASE_PATHS: Final = 16
"""Flag of manifests that name files outside of the table."""
OVERLAYS: Final = 64
"""Flag of manifests with data overlay files."""

# Flags of manifests by Lance's names. The others change what the lists of files, fields or row ids
# in a manifest mean.
_KNOWN_FLAGS: Final = (
    1  # deletion files
    | 2  # stable row ids
    | 4  # files of version 2, no longer used
    | 8  # table config
    | BASE_PATHS
    | 32  # no transaction files
    | OVERLAYS
    | 256  # data files of several versions
)
_NAMED_FLAGS: Final = {
    128: "indexes that carry columns",
    512: "fragment reuse index beside stable row ids",
    1024: "tagged fragment reuse index",
    2048: "row lineage in columns of their own",
    4096: "fragment tree",
    8192: "covering fields apart from key fields",
    16384: "managed blobs",
    32768: "field ids that are never reused",
    65536: "zone statistics in data files",
    131072: "metadata of fragments and index segments",
}
_MAX_SHOWN: Final = 5


def check_features(message: lance_manifest_pb2.Manifest, name: str) -> None:
    """Raise NewerFormatError if a manifest has a feature that is not known.

    These are feature flags, a format of data files, and a type of deletion files. ``name`` is the
    name of the manifest in the message, as in all functions of this module.
    """
    # Flags that only writers must know count for readers too: a reader here also reads logs and
    # generations, which those writers may write in another form.
    unknown = (message.reader_feature_flags | message.writer_feature_flags) & ~_KNOWN_FLAGS
    features = [
        f"feature flag {flag} ({_NAMED_FLAGS[flag]})" if flag in _NAMED_FLAGS else f"flag {flag}"
        for flag in (1 << bit for bit in range(unknown.bit_length()))
        if unknown & flag
    ]
    if message.data_format.file_format not in ("", "lance"):
        features.append(f"files of format {message.data_format.file_format}")
    kinds = lance_manifest_pb2.DeletionFile.FileType.values()
    features += [
        f"deletion file of type {fragment.deletion_file.file_type} in fragment {fragment.id}"
        for fragment in message.fragments
        if fragment.deletion_file.file_type not in kinds
    ]
    if features:
        raise newer_format_error(name, features)


def check_fields(name: str, *messages: Message) -> None:
    """Raise NewerFormatError if a manifest has a field that is not known.

    ``messages`` are the manifest and its index entries, of which all fields are checked, nested
    ones included. Code that lists the files of a version, to copy, check or delete them, calls this
    first.
    """
    fields = unknown_fields(*messages)
    if fields:
        raise newer_format_error(name, fields)


def unknown_fields(*messages: Message) -> tuple[str, ...]:
    """Return the fields that some messages, or those in them, have and that are not known."""
    found: list[str] = []
    for message in messages:
        # A walk through the messages of 10,000 fragments in Python takes 0.1 s, this 0.01 s.
        known = type(message)()
        known.CopyFrom(message)
        known.DiscardUnknownFields()
        if known.ByteSize() != message.ByteSize():
            found += _unknown(message)
    return tuple(dict.fromkeys(found))


def _unknown(message: Message) -> Iterator[str]:
    fields = UnknownFieldSet(message)
    for index in range(len(fields)):
        yield f"field {fields[index].field_number} of {message.DESCRIPTOR.name}"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for part in value if descriptor.is_repeated else (value,):
                yield from _unknown(part)


def newer_format_error(name: str, features: Sequence[str]) -> NewerFormatError:
    """Return the error for a manifest with some features or fields that are not known."""
    more = f" and {len(features) - _MAX_SHOWN} more" if len(features) > _MAX_SHOWN else ""
    return NewerFormatError(
        f"{name} uses what this release of memwal does not know: "
        f"{', '.join(features[:_MAX_SHOWN])}{more}; upgrade memwal and pylance"
    )
