import { describe, expect, it } from "vitest";

import { FIRST_ORDER, filtered, nextOrder, sorted, totals } from "../src/fleet";
import { level, position, severity } from "../src/health";
import type { FleetRow } from "../src/types";

function row(table: string, more: Partial<FleetRow> = {}): FleetRow {
  return {
    table,
    uri: `s3://lake/${table}.lance`,
    owner: "ada",
    enabled: true,
    tags: [],
    dag_id: null,
    health: "ok",
    reasons: [],
    sampled_at: null,
    backlog: null,
    late_seconds: 3600,
    critical_seconds: 43_200,
    rows_in_per_second: null,
    rows_merged_per_second: null,
    lag_generations: null,
    lag_rows: null,
    reclaimable_bytes: null,
    regions: null,
    base_rows: null,
    version: null,
    running: [],
    last_runs: {},
    skipped_regions: 0,
    errors: [],
    ...more,
  };
}

const backlog = (oldest: number, rows = 1): FleetRow["backlog"] => ({
  generations: 1,
  rows,
  bytes: 10,
  wal_entries: 0,
  oldest_seconds: oldest,
});
const names = (rows: FleetRow[]): string[] => rows.map((one) => one.table);

describe("order", () => {
  const rows = [
    row("fine", { backlog: backlog(60, 500) }),
    row("off", { health: "off" }),
    row("late", { health: "late", backlog: backlog(4000, 9) }),
    row("later", { health: "late", backlog: backlog(30_000, 2) }),
    row("critical", { health: "critical", backlog: backlog(50_000, 70) }),
    row("failing", { health: "failing", backlog: backlog(10) }),
  ];

  it("starts with the worst, and among them with the oldest", () => {
    expect(names(sorted(rows, FIRST_ORDER))).toEqual([
      "critical",
      "failing",
      "later",
      "late",
      "fine",
      "off",
    ]);
  });

  it("puts what is not known last, whichever way", () => {
    const down = nextOrder(FIRST_ORDER, "backlog");
    expect(down).toEqual({ column: "backlog", descending: true });
    expect(names(sorted(rows, down)).slice(0, 2)).toEqual(["fine", "critical"]);
    expect(names(sorted(rows, down)).at(-1)).toBe("off");
    expect(names(sorted(rows, nextOrder(down, "backlog"))).at(-1)).toBe("off");
  });

  it("leaves its argument as it was", () => {
    const before = names(rows);
    sorted(rows, { column: "table", descending: true });
    expect(names(rows)).toEqual(before);
  });
});

describe("filter", () => {
  const rows = [
    row("clicks-eu", { tags: ["gold"], health: "late" }),
    row("clicks-us", { owner: "Search" }),
    row("orders", { running: [{ run_id: 1, job: "merge" }] }),
  ];

  it("needs every word, somewhere", () => {
    expect(names(filtered(rows, { text: "clicks GOLD", health: null }))).toEqual(["clicks-eu"]);
    expect(names(filtered(rows, { text: "search", health: null }))).toEqual(["clicks-us"]);
    expect(names(filtered(rows, { text: "merge", health: null }))).toEqual(["orders"]);
    expect(filtered(rows, { text: "clicks merge", health: null })).toEqual([]);
    expect(filtered(rows, { text: "  ", health: null })).toHaveLength(3);
  });

  it("goes by health too", () => {
    expect(names(filtered(rows, { text: "clicks", health: "late" }))).toEqual(["clicks-eu"]);
  });
});

describe("totals", () => {
  it("adds up what is known and does not make up the rest", () => {
    const sums = totals([
      row("a", { backlog: backlog(5, 100), rows_in_per_second: 3, skipped_regions: 2, regions: 4 }),
      row("b", { health: "late", backlog: backlog(5, 11) }),
      row("c"),
    ]);
    expect(sums).toMatchObject({ tables: 3, rows: 111, rowsIn: 3, skippedRegions: 2, regions: 4 });
    expect(sums.rowsMerged).toBeNull();
    expect(sums.health).toMatchObject({ ok: 2, late: 1, critical: 0 });
  });
});

describe("health", () => {
  it("has the limit in the middle of the bar", () => {
    expect(position(1800, 3600, 43_200)).toBeCloseTo(0.25);
    expect(position(3600, 3600, 43_200)).toBeCloseTo(0.5);
    expect(position(43_200, 3600, 43_200)).toBe(1);
    expect(position(99_999, 3600, 43_200)).toBe(1);
    expect(position(null, 3600, 43_200)).toBe(0);
    expect(position(10, 5, 5)).toBe(1);
  });

  it("is reached at the limit", () => {
    expect(level(3599, 3600, 43_200)).toBe("fine");
    expect(level(3600, 3600, 43_200)).toBe("late");
    expect(level(43_200, 3600, 43_200)).toBe("critical");
  });

  it("takes a state that it does not know for one of little news", () => {
    expect(severity("new" as FleetRow["health"])).toBe(severity("unwatched"));
  });
});
