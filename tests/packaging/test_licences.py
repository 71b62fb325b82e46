"""The page of licences: every package of every image is there, under one that lets us ship it."""

import re
from email.message import Message

import pytest
from support.docs.pages import ROOT
from support.docs.scripts import script

LICENCES = script("licences")
PAGE = (ROOT / "docker" / "LICENCES.md").read_text()
ROWS = re.findall(r"^\| (?!package|---)(\S+) \| (.+) \| (.+) \|$", PAGE, re.MULTILINE)

# What asks for notices alone, or concerns the files of the package itself.
FREE = {
    "0BSD",
    "Apache-2.0",
    "Artistic",
    "BSD",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "LGPL",
    "LGPL-3.0-only",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "PSF-2.0",
    "Unlicense",
    "Zlib",
}


def test_the_page_has_what_the_images_have() -> None:
    listed = {
        image: {name for name, _, images in ROWS if images == "all" or image in images.split(", ")}
        for image in LICENCES.IMAGES
    }
    locked = {
        image: {one.name for one in LICENCES.read_lock((ROOT / "requirements" / lock).read_text())}
        for image, lock in LICENCES.IMAGES.items()
    }
    assert listed == locked, "run: python scripts/licences.py"


def test_every_image_holds_the_page() -> None:
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    stages = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)
    for image in LICENCES.IMAGES:
        (stage,) = (one for one in stages if one.partition("\n")[0].endswith(f" AS {image}"))
        assert "COPY docker/LICENCES.md LICENSE /usr/share/doc/memwal/\n" in stage
    assert "!docker/LICENCES.md" in (ROOT / ".dockerignore").read_text().splitlines()


def test_all_may_be_shipped() -> None:
    kept = {
        name: licence
        for name, licence, _ in ROWS
        if not any(set(one.split(" AND ")) <= FREE for one in licence.split(" OR "))
    }
    assert kept == {}


@pytest.mark.parametrize(
    ("headers", "licence"),
    [
        ([("License-Expression", "MIT AND PSF-2.0"), ("License", "x")], "MIT AND PSF-2.0"),
        (
            [
                ("Classifier", "License :: OSI Approved :: MIT License"),
                ("Classifier", "License :: OSI Approved :: Apache Software License"),
                ("Classifier", "Topic :: Database"),
            ],
            "Apache-2.0 OR MIT",
        ),
        ([("License", "BSD License")], "BSD"),
        ([("License", "Copyright (c) somebody.\nPermission is granted; see below")], None),
        ([("License", "a text of more than sixty characters, which can be no name of one")], None),
        ([], None),
    ],
)
def test_what_packages_say(headers: list[tuple[str, str]], licence: str | None) -> None:
    told = Message()
    for name, value in headers:
        told[name] = value
    found = LICENCES.licence_of(told)
    assert found == (licence or LICENCES.UNKNOWN)
