"""The documents keep their word: their code runs, their links lead somewhere.

No page is named here; what a page's blocks need is told by its own comments (CONTRIBUTING.md).
"""

import ast
import contextlib
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from support.docs.command_lines import calls, fault
from support.docs.given import GIVEN
from support.docs.page_runs import PageRun
from support.docs.pages import NEEDS, PARSED, ROOT, RUN, SHOWN, Block, Page, pages, read_page

PAGES = pages()
BLOCKS = [block for page in PAGES for block in page.blocks]
GUIDES = sorted((ROOT / "docs").glob("*.md"))


def ids(value: Page | Block) -> str:
    return value.name if isinstance(value, Page) else value.place


RUNNING = [page for page in PAGES if any(block.runs and not block.slow for block in page.blocks)]
SLOW = [page for page in PAGES if any(block.runs and block.slow for block in page.blocks)]


@pytest.mark.parametrize("page", RUNNING, ids=ids)
def test_the_code_of_a_page_runs(page: Page, tmp_path: Path) -> None:
    with contextlib.closing(PageRun(tmp_path / "home", processes=False)) as run:
        run.run(page, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", SLOW, ids=ids)
def test_the_slow_code_of_a_page_runs_too(page: Page, tmp_path: Path) -> None:
    with contextlib.closing(PageRun(tmp_path / "home", processes=True)) as run:
        run.run(page, slow=True)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_comment_is_understood(page: Page) -> None:
    assert page.stray == ()
    assert [name for name in page.given if name not in GIVEN] == []
    for block in page.blocks:
        assert block.language in RUN | PARSED | SHOWN, block.place
        assert set(block.values("needs")) <= NEEDS, block.place
        assert [name for name in block.values("given") if name not in GIVEN] == [], block.place


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.values("run by")], ids=ids)
def test_a_block_that_another_test_runs_is_known_to_it(block: Block) -> None:
    (test,) = block.values("run by")

    assert Path(block.page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "bash"], ids=ids)
def test_shell_code_is_written_right(block: Block) -> None:
    parsed = subprocess.run(["bash", "-n"], input=block.code, text=True, capture_output=True)

    assert parsed.returncode == 0, parsed.stderr
    assert [told for words in calls(block.code) if (told := fault(words))] == []


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language == "python" and not block.runs], ids=ids
)
def test_python_that_does_not_run_names_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.code)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules.append(node.module)
            missing = {alias.name for alias in node.names} - names_of(node.module)
            assert not ours(node.module) or not missing, block.place
        for module in filter(ours, modules):
            assert source(module) is not None, f"{block.place}: {module}"


def ours(module: str) -> bool:
    return module.partition(".")[0] in ("memwal", "memwal_airflow")


def source(module: str) -> Path | None:
    path = Path(*module.split("."))
    files = [
        folder / name
        for folder in (ROOT, ROOT / "plugins")
        for name in (path.with_suffix(".py"), path / "__init__.py")
    ]
    return next((file for file in files if file.exists()), None)


def names_of(module: str) -> set[str]:
    """What a module of ours defines or imports at its top, and the modules in it."""
    file = source(module)
    if file is None:
        return set()
    found = {path.stem for path in file.parent.iterdir()} if file.stem == "__init__" else set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    # Names that are imported when they are asked for.
    return found | set(re.findall(r'^    "(\w+)"', file.read_text(), flags=re.M))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language in PARSED], ids=ids)
def test_data_can_be_parsed(block: Block) -> None:
    if block.language == "yaml":
        assert list(yaml.safe_load_all(block.code))
    else:
        assert {"json": json.loads, "toml": tomllib.loads}[block.language](block.code)


MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_targets_that_are_named_exist(page: Page) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", page.text, flags=re.MULTILINE))

    assert named - {"it"} <= targets


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page: Page) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.prose)

    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (ROOT / page.name).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_anchors_are_there(page: Page) -> None:
    """Those of pages that are generated are looked for when the site is built."""
    here = ROOT / page.name
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.prose):
        target = (here.parent / link).resolve() if link else here
        if "://" in link or target.parent.name == "reference":
            continue
        headings = re.findall(r"^#+ (.+)$", read_page(target).prose_with_code, flags=re.M)
        assert anchor in {slug(title) for title in headings}, f"{link}#{anchor}"


def slug(title: str) -> str:
    """The anchor of a heading, the same in the site and in the repository."""
    plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def test_the_readme_leads_to_every_guide() -> None:
    links = set(re.findall(r"\]\((docs/[^)#]+)\)", (ROOT / "README.md").read_text()))

    assert {f"docs/{path.name}" for path in GUIDES} <= links


SECTIONS = [
    "Meaning",
    "Impact",
    "Diagnosis",
    "What to do",
    "Verification",
    "What not to do",
]
RUNBOOKS = [page for page in PAGES if re.fullmatch(r"docs/runbooks/(?!README).*", page.name)]


class TestRunbooks:
    @pytest.mark.parametrize("page", RUNBOOKS, ids=ids)
    def test_every_question_has_its_section(self, page: Page) -> None:
        assert re.findall(r"^## (.+)$", page.text, flags=re.M) == SECTIONS
        for section in re.split(r"^## .+$", page.prose, flags=re.M)[1:]:
            assert len(section.split()) >= 5

    @pytest.mark.parametrize("page", RUNBOOKS, ids=ids)
    def test_it_is_in_the_list(self, page: Page) -> None:
        name = Path(page.name).name
        title = page.text.partition("\n")[0].removeprefix("# ")
        assert f"[{title}]({name})" in (ROOT / "docs" / "runbooks" / "README.md").read_text()

    def test_most_are_run_in_the_situation_that_they_are_for(self) -> None:
        """Where a page sets its situation up, its commands are no mere syntax."""
        run = [
            page
            for page in RUNBOOKS
            if any(block.runs for block in page.blocks)
            and (page.given or any(block.values("given") for block in page.blocks))
        ]
        assert len(run) >= 0.9 * len(RUNBOOKS)
        looked = [page for page in run if any(block.values("prints") for block in page.blocks)]
        assert len(looked) >= 0.9 * len(RUNBOOKS)


def test_the_index_of_the_examples_names_them_all() -> None:
    index = (ROOT / "examples" / "README.md").read_text()
    folders = {path.parent.name for path in ROOT.glob("examples/*/README.md")}

    assert {name for name in folders if f"]({name}/README.md)" in index} == folders
