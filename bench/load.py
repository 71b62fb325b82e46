"""A table under the largest load that the machine takes, while everything is checked.

    python bench/load.py --minutes 60 --folder /data/scratch --kills 30 --plots load-plots

Producers upsert and delete durably, fleets do all jobs by the table's policy, readers ask every
kind of query; each is a process of its own. Rows tell by themselves whether they are whole; every
read is held against what was acknowledged before and tried for behind it; in the end each key is
compared. With ``--kills``, producers and fleets are killed at random moments and started again. It
ends with 1 if a single write was lost, came back, or was read wrongly. Speed decides nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from common.measure import machine
from common.measure import show as show_lines
from common.tables import write_in_pieces
from load_test.check import Check, final_checks
from load_test.processes import LoadProcesses
from load_test.rate import RateController
from load_test.report import Load, figures, lines, show, signs
from load_test.rows import SCHEMA, rows_of
from load_test.samples import Sampler
from load_test.state import Control, Events, Truth, mistakes

import memwal
from memwal.catalog import Catalog, JobRun, Policy

POLICY = Policy(
    # Looked at every second; an hour must show what takes hours in earnest.
    schedule=1.0,
    merge_at_generations=2,
    merge_at_age_seconds=20.0,
    index_at_generations=4,
    snapshot_at_age_seconds=60.0,
    compact_min_fragments=16,
    gc_interval_seconds=60.0,
    gc_grace_seconds=120.0,
    gc_retention_seconds=60.0,
    # A build takes seconds here.
    gc_index_grace_seconds=300.0,
    gc_version_retention_seconds=60.0,
)
"""The policy of the table."""

_NAME = "load"
_PIECE = 100_000
_PARTITIONS = 16
_SUB_VECTORS = 8
# Less than that is left for others.
_LEAST_FREE = 2 << 30
_MOST_FAILURES = 10
# Kills and changes of the rate fall into the middle of the run.
_EDGE = 0.05
_STEPS = 60
_SHORTEST_STEP, _LONGEST_STEP = 10.0, 30.0


def main() -> None:
    """Load, report, and tell by the exit code whether all of it was right."""
    options = _arguments()
    # The processes of the load end with this one, whoever ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))
    scratch = Path(tempfile.mkdtemp(prefix="load-", dir=options.folder))
    try:
        report, load, checks = run(scratch, options)
        if options.plots is not None:
            from load_test.plots import plot

            plot(load, options.plots)
            (options.plots / "load.json").write_text(json.dumps(report))
    finally:
        if not options.keep:
            shutil.rmtree(scratch)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(str(report["settings"]), checks, report["figures"], report["gave_way"])
        show_lines(list(lines(load)), title=str(report["machine"]))
    if not all(check.held for check in checks):
        sys.exit(1)


def run(folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], Load, list[Check]]:
    """Do it all in a folder."""
    where = machine(folder)
    table = make_table(folder / "load.lance", options.keys, options.regions)
    truth = Truth(folder / "truth", options.keys, create=True)
    (folder / "events").mkdir()
    url = f"sqlite:///{folder / 'catalog.db'}?timeout=60"
    catalog = Catalog(url)
    catalog.migrate()
    catalog.register(_NAME, uri=table.uri, policy=POLICY)
    task = {name: vars(options)[name] for name in ("keys", "producers", "batch", "seed")}
    task |= {"uri": table.uri, "folder": str(folder), "flush_seconds": options.flush_seconds}
    counts = {kind: vars(options)[kind] for kind in ("producers", "fleets", "readers")}
    processes = LoadProcesses(folder, counts, task, url)
    step = min(max(60 * options.minutes / _STEPS, _SHORTEST_STEP), _LONGEST_STEP)
    controller = RateController.of(options.rate, step)
    sampler = Sampler(folder, table, processes)
    try:
        ended = _press(folder, options, processes, controller, sampler)
        result = table.checkpoint(timeout_seconds=600)
        control = Control(folder)
        processes.end("readers", control)
    finally:
        processes.kill_all()
        sampler.close()
    told = mistakes(folder / "events")
    checks = [
        Check.none_of("readers and producers met nothing wrong", told, "mistakes"),
        Check.none_of("no process failed by itself", processes.failures, "failures"),
        Check.none_of("the checkpoint left nothing undone", result.warnings, "problems"),
        *final_checks(table, truth),
    ]
    runs = [_run(one) for one in catalog.runs(limit=1_000_000)]
    catalog.close()
    load = Load.of(
        sampler.samples, Events(folder / "events").new(), controller.changes, runs, processes.kills
    )
    settings = {k: v for k, v in vars(options).items() if k not in ("folder", "plots", "json")}
    report = {
        "machine": where,
        "settings": settings,
        "ended": ended,
        "checks": [check.as_dict() for check in checks],
        "figures": figures(load),
        "gave_way": signs(load),
        "lines": [line.as_dict() for line in lines(load)],
        "rates": controller.changes,
        "kills": processes.kills,
        "failures": processes.failures,
        "mistakes": told,
        "failed_runs": [one for one in load.runs if one["error"]],
        "samples": sampler.samples,
    }
    return report, load, checks


def make_table(path: Path, keys: int, regions: int) -> memwal.Table:
    """A table that has every key once, with three indexes, divided by buckets of the key."""
    now = time.time()
    dataset = write_in_pieces(
        str(path),
        SCHEMA,
        keys,
        lambda ids, _: rows_of(ids, np.ones_like(ids), written=now),
        piece=_PIECE,
    )
    dataset.create_scalar_index("id", "BTREE", name="id_idx")
    dataset.create_index(
        "vector",
        "IVF_PQ",
        name="vector_idx",
        num_partitions=_PARTITIONS,
        num_sub_vectors=_SUB_VECTORS,
    )
    dataset.create_scalar_index("text", "INVERTED", name="text_idx")
    return memwal.enable(
        str(path),
        region_spec=memwal.RegionSpec.bucket("id", regions),
        primary_key=["id"],
        maintained_indexes=["id_idx", "vector_idx", "text_idx"],
    )


def _press(
    folder: Path,
    options: argparse.Namespace,
    processes: LoadProcesses,
    controller: RateController,
    sampler: Sampler,
) -> str:
    """Let them all work for the time; return why it ended."""
    control = Control(folder, create=True)
    control.rate = controller.rate / options.producers
    random = np.random.default_rng([options.seed, 1 << 21])
    processes.start()
    processes.wait()
    began, seconds = time.monotonic(), 60 * options.minutes
    kills = sorted(random.uniform(_EDGE * seconds, (1 - _EDGE) * seconds, options.kills))
    why = ""
    while not why:
        sample = sampler.sample(controller.rate)
        processes.restart_dead()
        passed = time.monotonic() - began
        while kills and kills[0] <= passed:
            kills.pop(0)
            processes.kill(random)
        controller.add(sample)
        control.rate = controller.rate / options.producers
        why = _reason(passed >= seconds, sample, options, processes)
        time.sleep(max(int(passed) + 1 - (time.monotonic() - began), 0.0))
    processes.end("producers", control)
    processes.end("fleets", control)
    return why


def _reason(
    is_over: bool, sample: dict[str, Any], options: argparse.Namespace, processes: LoadProcesses
) -> str:
    if is_over:
        return "the time was over"
    if sample["free"] < _LEAST_FREE or sum(sample["bytes"].values()) > options.disk_gib * (1 << 30):
        return "the disk would be full"
    if len(processes.failures) > _MOST_FAILURES:
        return "too many failures"
    return ""


def _run(run: JobRun) -> dict[str, Any]:
    """What is told of a run of a job."""
    finished = None if run.finished_at is None else run.finished_at.timestamp()
    return {
        "job": run.job,
        "state": run.state.value,
        "started": run.started_at.timestamp(),
        "finished": finished,
        "result": run.result,
        "error": run.error,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument(
        "--rate",
        default="auto",
        help="rows a second of all producers; max: all they can; auto: raised until something "
        "falls behind, then what is kept up with",
    )
    parser.add_argument("--kills", type=int, default=0, help="producers and fleets to kill")
    parser.add_argument("--producers", type=int, default=2)
    parser.add_argument("--fleets", type=int, default=2)
    parser.add_argument("--readers", type=int, default=1)
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--keys", type=int, default=500_000, help="most rows that there are")
    parser.add_argument("--batch", type=int, default=500, help="rows of a call")
    parser.add_argument("--flush-seconds", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--disk-gib", type=float, default=40, help="end when so much is stored")
    parser.add_argument("--folder", type=Path, help="on the disk to load; a temporary one")
    parser.add_argument("--keep", action="store_true", help="leave table, events and samples there")
    parser.add_argument(
        "--plots", type=Path, metavar="FOLDER", help="write load.svg, load.png, load.json"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    main()
