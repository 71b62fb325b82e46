/** What the buttons order. */

import { JOBS, type RunOrder, type TableDetail } from "./types";

export type Action = "merge" | "checkpoint" | "run" | "dry";

/** The buttons of a table. */
export function actions(memWal: boolean): readonly Action[] {
  return memWal ? ["merge", "checkpoint", "dry"] : ["run", "dry"];
}

export interface Choice {
  force: boolean;
  region: string | null;
}

export const ACTION_NAMES: Record<Action, string> = {
  merge: "Merge now",
  checkpoint: "Checkpoint",
  run: "Run now",
  dry: "Dry run",
};

export const ACTION_MEANINGS: Record<Action, string> = {
  merge: "Takes the waiting generations into the base table.",
  checkpoint:
    "Merges everything that waits and brings the indexes up to it, due or not: what is flushed now is then in the base table.",
  run: "Runs every job that is due.",
  dry: "Goes through every job and tells what it would do. Nothing is changed.",
};

export function order(action: Action, { force, region }: Choice): RunOrder {
  if (action === "merge") {
    return { jobs: ["merge"], regions: region === null ? [] : [region], force, dry_run: false };
  }
  if (action === "checkpoint") {
    return { jobs: ["merge", "index"], regions: [], force: true, dry_run: false };
  }
  return { jobs: [...JOBS], regions: [], force: false, dry_run: action === "dry" };
}

/** Why no job can be started now; null if one can. */
export function refusal(table: TableDetail): string | null {
  if (!table.may_write) return "You may look, and not start jobs. Airflow's right to trigger DAGs is needed.";
  if (!table.enabled) return "The table is switched off in the catalog.";
  return null;
}
