"""The bytecode of tests, which the processes of a run make together in a new clone."""

import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

TESTS = Path(__file__).resolve().parents[1]


def compile_ahead(config: pytest.Config) -> None:
    """Store the code of tests, from the last one backwards to one whose code is stored.

    All processes collect the same modules in the same order, so that each would compile all of
    them. The first process begins to collect at once, with Airflow, Lance and the first tests.
    The others take the last tests before, a share each, and find the rest compiled.
    """
    worker = getattr(config, "workerinput", None)
    number = 0 if worker is None else int(worker["workerid"].removeprefix("gw"))
    stores_code = rewrite.assertstate_key in config.stash and not sys.dont_write_bytecode
    if worker is None or number == 0 or not stores_code:
        return
    files = sorted(TESTS.rglob("test_*.py"), reverse=True)
    for file in files[number - 1 :: worker["workercount"] - 1]:
        stored = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if stored.exists() or not rewrite.try_makedirs(stored.parent):
            return
        source_hash, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, stored)
