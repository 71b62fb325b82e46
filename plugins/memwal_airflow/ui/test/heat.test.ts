import { describe, expect, it } from "vitest";

import { STEPS, cellAt, grid, moved, step, stepEnd } from "../src/heat";

describe("layout", () => {
  it.each([1, 16, 300, 2_500, 10_000])("has a place for each of %i cells", (cells) => {
    const layout = grid(cells, 760, 345);
    expect(layout.columns * layout.rows).toBeGreaterThanOrEqual(cells);
    expect(layout.width).toBeLessThanOrEqual(760);
    expect(layout.height).toBeLessThanOrEqual(345);
  });

  it("fills the rows with few", () => {
    expect(grid(16, 757, 345)).toEqual({
      cell: 80,
      wide: 94,
      columns: 8,
      rows: 2,
      width: 752,
      height: 160,
    });
    expect(grid(1, 757, 345)).toMatchObject({ wide: 120, columns: 1 });
  });

  it("grows in height where cells cannot get smaller, and survives no width", () => {
    expect(grid(10_000, 200, 100).cell).toBe(4);
    expect(grid(10_000, 200, 100).height).toBeGreaterThan(100);
    expect(grid(10, 0, 100).columns).toBe(1);
  });

  it("finds the cell at a point, and none beside the last", () => {
    const layout = { cell: 10, wide: 10, columns: 4, rows: 2, width: 40, height: 20 };
    expect(cellAt(layout, 6, 0, 0)).toBe(0);
    expect(cellAt(layout, 6, 39, 9)).toBe(3);
    expect(cellAt(layout, 6, 15, 15)).toBe(5);
    expect(cellAt(layout, 6, 25, 15)).toBeNull();
    expect(cellAt(layout, 6, 40, 5)).toBeNull();
  });

  it("moves by keys and stays inside", () => {
    const layout = { cell: 10, wide: 10, columns: 4, rows: 3, width: 40, height: 30 };
    const go = (from: number, key: string): number | null => moved(layout, 10, from, key);
    expect(go(1, "ArrowDown")).toBe(5);
    expect(go(7, "ArrowDown")).toBe(7);
    expect(go(0, "ArrowLeft")).toBe(0);
    expect(go(4, "ArrowUp")).toBe(0);
    expect(go(3, "End")).toBe(9);
    expect(go(3, "PageDown")).toBe(9);
    expect(go(3, "a")).toBeNull();
  });
});

describe("colour", () => {
  it("is none for nothing, and some for anything", () => {
    expect(step(0, 100)).toBe(0);
    expect(step(0.001, 100)).toBe(1);
    expect(step(100, 100)).toBe(STEPS);
    expect(step(5, 0)).toBe(0);
  });

  it("has a legend that says where each step ends", () => {
    for (let index = 1; index <= STEPS; index += 1) {
      expect(step(stepEnd(index, 980) * 0.999, 980)).toBe(index);
    }
  });
});
