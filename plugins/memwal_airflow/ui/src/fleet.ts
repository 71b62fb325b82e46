/** Sorting, filtering and adding up the rows of the fleet. */

import { HEALTHS, position, severity } from "./health";
import type { FleetRow, Health } from "./types";

export const COLUMNS = [
  "health",
  "table",
  "age",
  "backlog",
  "in",
  "merged",
  "lag",
  "reclaimable",
  "last",
  "error",
] as const;

export type Column = (typeof COLUMNS)[number];

export interface Order {
  column: Column;
  descending: boolean;
}

export interface Wanted {
  text: string;
  health: Health | null;
}

/** Worst first. */
export const FIRST_ORDER: Order = { column: "health", descending: false };

/** Columns of numbers start with the largest. */
const FROM_LARGEST: ReadonlySet<Column> = new Set([
  "age",
  "backlog",
  "in",
  "merged",
  "lag",
  "reclaimable",
  "error",
]);

export function nextOrder(order: Order, column: Column): Order {
  if (order.column === column) return { column, descending: !order.descending };
  return { column, descending: FROM_LARGEST.has(column) };
}

/** How near a table's oldest generation is to its limits. */
export function lateness(row: FleetRow): number {
  return position(row.backlog?.oldest_seconds, row.late_seconds, row.critical_seconds);
}

export function latestError(row: FleetRow): FleetRow["errors"][number] | null {
  return row.errors.reduce<FleetRow["errors"][number] | null>(
    (latest, one) => (latest === null || (one.at ?? "") > (latest.at ?? "") ? one : latest),
    null,
  );
}

type Value = number | string | null;

const VALUES: Record<Column, (row: FleetRow) => Value> = {
  health: (row) => severity(row.health) - lateness(row) / 2,
  table: (row) => row.table,
  age: lateness,
  backlog: (row) => row.backlog?.rows ?? null,
  in: (row) => row.rows_in_per_second,
  merged: (row) => row.rows_merged_per_second,
  lag: (row) => row.lag_rows ?? row.lag_generations,
  reclaimable: (row) => row.reclaimable_bytes,
  last: (row) => row.last_runs["merge"] ?? null,
  error: (row) => latestError(row)?.at ?? null,
};

/** Sorted copy. What is not known comes last either way; equals go by name. */
export function sorted(rows: readonly FleetRow[], order: Order): FleetRow[] {
  const value = VALUES[order.column];
  const keyed = rows.map((row) => ({ row, key: value(row) }));
  const sign = order.descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) {
      if (a.key !== b.key) return a.key === null ? 1 : -1;
    } else if (a.key !== b.key) {
      return (a.key < b.key ? -1 : 1) * sign;
    }
    return a.row.table < b.row.table ? -1 : 1;
  });
  return keyed.map(({ row }) => row);
}

/** Every word has to be in the name, the address, the owner, a tag or the name of a running job. */
export function filtered(rows: readonly FleetRow[], wanted: Wanted): FleetRow[] {
  const terms = wanted.text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => {
    if (wanted.health !== null && row.health !== wanted.health) return false;
    if (terms.length === 0) return true;
    const running = row.running.map((run) => run.job);
    const hay = [row.table, row.uri, row.owner, ...row.tags, ...running].join("\n").toLowerCase();
    return terms.every((term) => hay.includes(term));
  });
}

export interface Totals {
  tables: number;
  regions: number;
  health: Record<Health, number>;
  generations: number;
  rows: number;
  bytes: number;
  walEntries: number;
  rowsIn: number | null;
  rowsMerged: number | null;
  lagRows: number | null;
  reclaimable: number | null;
  running: number;
  skippedRegions: number;
}

export function totals(rows: readonly FleetRow[]): Totals {
  const health = Object.fromEntries(HEALTHS.map((one) => [one, 0])) as Record<Health, number>;
  for (const row of rows) health[row.health] += 1;
  return {
    tables: rows.length,
    regions: add(rows, (row) => row.regions) ?? 0,
    health,
    generations: add(rows, (row) => row.backlog?.generations) ?? 0,
    rows: add(rows, (row) => row.backlog?.rows) ?? 0,
    bytes: add(rows, (row) => row.backlog?.bytes) ?? 0,
    walEntries: add(rows, (row) => row.backlog?.wal_entries) ?? 0,
    rowsIn: add(rows, (row) => row.rows_in_per_second),
    rowsMerged: add(rows, (row) => row.rows_merged_per_second),
    lagRows: add(rows, (row) => row.lag_rows),
    reclaimable: add(rows, (row) => row.reclaimable_bytes),
    running: add(rows, (row) => row.running.length) ?? 0,
    skippedRegions: add(rows, (row) => row.skipped_regions) ?? 0,
  };
}

/** Sum of what is known; null when nothing is. */
function add(
  rows: readonly FleetRow[],
  value: (row: FleetRow) => number | null | undefined,
): number | null {
  let sum: number | null = null;
  for (const row of rows) {
    const one = value(row);
    if (one !== null && one !== undefined) sum = (sum ?? 0) + one;
  }
  return sum;
}
