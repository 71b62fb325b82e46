"""Write docker/LICENCES.md: which packages the images hold, and under which licences.

Usage: ``python scripts/licences.py``, after ``make lock``. The metadata of a package is read where
it is installed, else from the index that pip is configured for.

pip-licenses (5.5) lists installed packages only, and reads no lock: it would need an environment
for each image, since ``make setup`` does not install all of their packages. It has one name for a
licence of a classifier and another one for the same licence as an SPDX expression.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from email.message import Message
from email.parser import HeaderParser
from importlib import metadata

from package_index import REQUIREMENTS, ROOT, Index, Package, read_lock

PAGE = ROOT / "docker" / "LICENCES.md"
IMAGES = {"memwal": "cli.lock", "memwal-spark": "spark.lock", "memwal-airflow": "airflow.lock"}
UNKNOWN = "unknown"

# As packages spelt it before there were SPDX expressions.
_SPELT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD": "BSD",
    "BSD License": "BSD",
    "GNU General Public License (GPL)": "GPL",
    "GNU General Public License v2 or later (GPLv2+)": "GPL-2.0-or-later",
    "Artistic License": "Artistic",
    "GNU Lesser General Public License v3 (LGPLv3)": "LGPL-3.0-only",
    "GNU Library or Lesser General Public License (LGPL)": "LGPL",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}

_HEAD = """\
# Licences

memwal is under the Apache License 2.0. The [images](../docs/kubernetes.md#images) hold these
packages of PyPI besides, as `requirements/` locks them; what they say of their licences stands
here, as SPDX expressions where they do. Wheels hold libraries in other languages, whose licences
are in the wheels. From Debian come Python, tini, the certificates and, with Spark, OpenJDK 17:
their licences are in `/usr/share/doc` of an image.

This page is written by `make licences`; each image has it in `/usr/share/doc/memwal`.

| package | licence | images |
|---|---|---|
"""


def licence_of(headers: Message) -> str:
    """The licence of a package, from the headers of its metadata."""
    expression = headers.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [
        item.rpartition(" :: ")[2]
        for item in headers.get_all("Classifier") or []
        if item.startswith("License :: OSI Approved :: ")
    ]
    if classifiers:
        return " OR ".join(sorted({_SPELT.get(item, item) for item in classifiers}))
    # Some put the whole text here, which may begin with its name.
    first, _, rest = (headers.get("License") or "").strip().partition("\n")
    if first in _SPELT:
        return _SPELT[first]
    return first if not rest and re.fullmatch(r"[\w .,()+-]{2,60}", first) else UNKNOWN


def page(licences: Mapping[str, str], images: Mapping[str, Iterable[str]]) -> str:
    """The page: packages by name, each with its licence and the images that hold it."""
    held: dict[str, list[str]] = {}
    for image, names in images.items():
        for name in names:
            held.setdefault(name, []).append(image)
    lines = [
        f"| {name} | {licences[name]} | {'all' if len(of) == len(images) else ', '.join(of)} |"
        for name, of in sorted(held.items())
    ]
    return _HEAD + "\n".join(lines) + "\n"


def metadata_reader(index: Index) -> Callable[[Package], Message]:
    """A function that reads the metadata of a package here, or from an index."""

    def read_metadata(package: Package) -> Message:
        try:
            return metadata.distribution(package.name).metadata  # type: ignore[return-value]
        except metadata.PackageNotFoundError:
            return HeaderParser().parsestr(index.metadata(package))

    return read_metadata


def main() -> int:
    """Write the page."""
    read_metadata = metadata_reader(Index.of_pip())
    locked = {
        image: {package.name: package for package in read_lock((REQUIREMENTS / lock).read_text())}
        for image, lock in IMAGES.items()
    }
    packages = {name: package for of in locked.values() for name, package in of.items()}
    licences = {name: licence_of(read_metadata(package)) for name, package in packages.items()}
    PAGE.write_text(page(licences, locked))
    unknown = sorted(name for name, licence in licences.items() if licence == UNKNOWN)
    for name in unknown:
        print(f"{name} does not say: look into it")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
