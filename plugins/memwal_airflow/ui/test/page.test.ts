import { describe, expect, it } from "vitest";

import { layers, levels } from "../src/levels";
import { actions, order, refusal } from "../src/orders";
import { FIRST_QUERY, fleetHref, parse, tableHref, type FleetQuery } from "../src/route";
import type { Region, TableDetail } from "../src/types";

const region = (more: Partial<Region>): Region => ({
  region_id: "r",
  writer_epoch: 1,
  sealed: false,
  current_generation: 1,
  merged_generation: 0,
  backlog_generations: 0,
  backlog_rows: 0,
  backlog_bytes: 0,
  oldest_backlog_seconds: null,
  unflushed_wal_entries: 0,
  oldest_unflushed_seconds: null,
  needs_recovery: false,
  retained_generations: 0,
  reclaimable_generations: 0,
  reclaimable_bytes: 0,
  held_generations: 0,
  held_bytes: 0,
  missing_wal_entry: null,
  merged_before: null,
  ...more,
});

describe("routes", () => {
  it("leads there and back, with any name", () => {
    for (const name of ["flights", "a b", "100%", "x/y"]) {
      expect(parse(tableHref(name))).toEqual({ view: "table", name });
    }
    const fleet = { view: "fleet", query: FIRST_QUERY };
    expect(parse("")).toEqual(fleet);
    expect(parse("#/tables/%E0%A4%A")).toEqual(fleet);
    expect(parse("#/?health=fine&sort=colour")).toEqual(fleet);
  });
});

describe("queries", () => {
  it("keep filter and order, and leave out what is the first", () => {
    expect(fleetHref(FIRST_QUERY)).toBe("#/");
    const query: FleetQuery = {
      text: "flights & 100%",
      health: "late",
      order: { column: "lag", descending: true },
    };
    expect(parse(fleetHref(query))).toEqual({ view: "fleet", query });
  });
});

describe("levels", () => {
  it("adds up the regions", () => {
    const regions = [
      region({ backlog_generations: 2, backlog_rows: 5, unflushed_wal_entries: 3, needs_recovery: true }),
      region({ retained_generations: 4, reclaimable_generations: 1, reclaimable_bytes: 7 }),
    ];
    expect(levels(regions, 9)).toMatchObject({
      walEntries: 3,
      walRegions: 1,
      toRecover: 1,
      waiting: 2,
      waitingRegions: 1,
      waitingRows: 5,
      retained: 4,
      reclaimable: 1,
      reclaimableBytes: 7,
      baseRows: 9,
    });
  });

  it("draws nothing for nothing and no more than fits", () => {
    expect([0, 1, 4, 16, 1e9].map((things) => layers(things, 8))).toEqual([0, 1, 2, 3, 8]);
  });
});

describe("orders", () => {
  it("says what each button does", () => {
    const choice = { force: false, region: "r1" };
    expect(order("merge", choice)).toEqual({
      jobs: ["merge"],
      regions: ["r1"],
      force: false,
      dry_run: false,
    });
    expect(order("checkpoint", choice)).toEqual({
      jobs: ["merge", "index"],
      regions: [],
      force: true,
      dry_run: false,
    });
    expect(order("dry", { force: true, region: null })).toMatchObject({
      regions: [],
      force: false,
      dry_run: true,
    });
  });

  it("tells who may not", () => {
    const table = { enabled: true, may_write: true } as TableDetail;
    expect(refusal(table)).toBeNull();
    expect(refusal({ ...table, may_write: false })).toContain("look");
    expect(refusal({ ...table, enabled: false })).toContain("off");
  });
});

describe("a table without MemWAL", () => {
  it("has no merge and no checkpoint to start", () => {
    expect(actions(false)).toEqual(["run", "dry"]);
    expect(actions(true)).toContain("merge");
    expect(order("run", { force: false, region: null })).toMatchObject({ dry_run: false, force: false });
    expect(order("dry", { force: false, region: null })).toMatchObject({ dry_run: true });
  });
});
