/** What the levels of a table hold, from the log to the base. */

import type { Region } from "./types";

export interface Levels {
  walEntries: number;
  walRegions: number;
  toRecover: number;
  waiting: number;
  waitingRegions: number;
  waitingRows: number;
  waitingBytes: number;
  retained: number;
  reclaimable: number;
  reclaimableBytes: number;
  baseRows: number | null;
}

export function levels(regions: readonly Region[], baseRows: number | null): Levels {
  const sums: Levels = {
    walEntries: 0,
    walRegions: 0,
    toRecover: 0,
    waiting: 0,
    waitingRegions: 0,
    waitingRows: 0,
    waitingBytes: 0,
    retained: 0,
    reclaimable: 0,
    reclaimableBytes: 0,
    baseRows,
  };
  for (const region of regions) {
    sums.walEntries += region.unflushed_wal_entries;
    sums.walRegions += region.unflushed_wal_entries > 0 ? 1 : 0;
    sums.toRecover += region.needs_recovery ? 1 : 0;
    sums.waiting += region.backlog_generations;
    sums.waitingRegions += region.backlog_generations > 0 ? 1 : 0;
    sums.waitingRows += region.backlog_rows;
    sums.waitingBytes += region.backlog_bytes;
    sums.retained += region.retained_generations;
    sums.reclaimable += region.reclaimable_generations;
    sums.reclaimableBytes += region.reclaimable_bytes;
  }
  return sums;
}

/** How many layers a picture shows for so many things: each further one stands for four times more. */
export function layers(things: number, most: number): number {
  if (things <= 0) return 0;
  return Math.min(most, 1 + Math.floor(Math.log(things) / Math.log(4)));
}
