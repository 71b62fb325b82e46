/** Layout and colours of the heat map: which cell is where, and how strong its colour is. */

import { count, exact, short, size } from "./format";
import { level, type Level } from "./health";
import type { Region } from "./types";

export interface Measure {
  id: string;
  name: string;
  value: (region: Region) => number;
  show: (value: number) => string;
}

export const MEASURES: readonly [Measure, ...Measure[]] = [
  {
    id: "age",
    name: "Backlog age",
    value: (region) => region.oldest_backlog_seconds ?? 0,
    show: short,
  },
  {
    id: "generations",
    name: "Waiting generations",
    value: (region) => region.backlog_generations,
    show: exact,
  },
  { id: "rows", name: "Waiting rows", value: (region) => region.backlog_rows, show: count },
  { id: "bytes", name: "Waiting bytes", value: (region) => region.backlog_bytes, show: size },
  {
    id: "wal",
    name: "Log entries not flushed",
    value: (region) => region.unflushed_wal_entries,
    show: count,
  },
  {
    id: "retained",
    name: "Merged, still stored",
    value: (region) => region.retained_generations,
    show: exact,
  },
  {
    id: "reclaimable",
    name: "Reclaimable bytes",
    value: (region) => region.reclaimable_bytes,
    show: size,
  },
];

export interface Grid {
  /** Height of a cell, and its width unless it is stretched. */
  cell: number;
  /** Width of a cell. */
  wide: number;
  columns: number;
  rows: number;
  width: number;
  height: number;
}

const SMALLEST = 4;
const LARGEST = 80;
const STRETCH = 1.5;

/** From this size on a cell says its value. */
export const LEGIBLE = 48;

/** Cells as small as this touch each other: gaps would take most of the colour. */
export const TOUCHING = 6;

/**
 * The largest cells with which `cells` of them fit into the width and about the height, in rows
 * of the same length. Few are stretched, so that they fill their rows.
 */
export function grid(cells: number, width: number, height: number): Grid {
  const rowsOf = (cell: number): number =>
    Math.max(1, Math.ceil(cells / Math.max(1, Math.floor(width / cell))));
  let cell = LARGEST;
  while (cell > SMALLEST && rowsOf(cell) * cell > height) cell -= 1;
  const rows = rowsOf(cell);
  const columns = Math.max(1, Math.ceil(cells / rows));
  const wide =
    cell < LEGIBLE ? cell : Math.floor(Math.max(cell, Math.min(width / columns, cell * STRETCH)));
  return { cell, wide, columns, rows, width: columns * wide, height: rows * cell };
}

export function cellAt(layout: Grid, cells: number, x: number, y: number): number | null {
  if (x < 0 || y < 0 || x >= layout.width) return null;
  const index = Math.floor(y / layout.cell) * layout.columns + Math.floor(x / layout.wide);
  return index < cells ? index : null;
}

/** The cell that a key leads to. */
export function moved(layout: Grid, cells: number, from: number, key: string): number | null {
  const steps: Record<string, number> = {
    ArrowLeft: from - 1,
    ArrowRight: from + 1,
    ArrowUp: from - layout.columns,
    ArrowDown: from + layout.columns,
    Home: 0,
    End: cells - 1,
    PageUp: Math.max(from % layout.columns, from - 10 * layout.columns),
    PageDown: Math.min(cells - 1, from + 10 * layout.columns),
  };
  const to = steps[key];
  if (to === undefined) return null;
  return to >= 0 && to < cells ? to : from;
}

export const STEPS = 7;

/** 0 for nothing, else 1 to STEPS: a scale of square roots, so that small values differ too. */
export function step(value: number, largest: number): number {
  if (value <= 0 || largest <= 0) return 0;
  return Math.max(1, Math.min(STEPS, Math.ceil(Math.sqrt(value / largest) * STEPS)));
}

/** Values at which the steps end, for the legend. */
export function stepEnd(index: number, largest: number): number {
  return largest * (index / STEPS) ** 2;
}

/** Ages have the colours of their limits once they are beyond them. */
export function ageLevel(measure: Measure, value: number, late: number, critical: number): Level {
  return measure.id === "age" ? level(value, late, critical) : "fine";
}
