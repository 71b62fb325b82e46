import type { JSX } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";

import { count, duration, exact, plural, size } from "../format";
import {
  LEGIBLE,
  MEASURES,
  STEPS,
  TOUCHING,
  ageLevel,
  cellAt,
  grid,
  moved,
  step,
  stepEnd,
  type Grid,
  type Measure,
} from "../heat";
import type { Region } from "../types";
import { RegionTable } from "./RegionTable";

interface Properties {
  regions: readonly Region[];
  skipped: ReadonlyMap<string, string>;
  late: number;
  critical: number;
  chosen: string | null;
  choose: (region: string | null) => void;
}

const HEIGHT = 280;

/** The regions as cells coloured by a measure, and the same as a table. */
export function RegionMap({ regions, skipped, late, critical, chosen, choose }: Properties): JSX.Element {
  const [measureId, setMeasure] = useState(MEASURES[0].id);
  const [byValue, setByValue] = useState(false);
  const [asTable, setAsTable] = useState(false);
  const measure = MEASURES.find((one) => one.id === measureId) ?? MEASURES[0];
  const cells = useMemo(
    () =>
      byValue
        ? [...regions].sort((a, b) => measure.value(b) - measure.value(a))
        : [...regions].sort((a, b) => (a.region_id < b.region_id ? -1 : 1)),
    [regions, byValue, measure],
  );
  const largest = useMemo(
    () => cells.reduce((most, region) => Math.max(most, measure.value(region)), 0),
    [cells, measure],
  );

  return (
    <>
      <div class="map-tools">
        <label>
          Colour{" "}
          <select value={measureId} onChange={(event) => setMeasure(event.currentTarget.value)}>
            {MEASURES.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={byValue}
            onChange={(event) => setByValue(event.currentTarget.checked)}
          />
          Largest first
        </label>
        <span class="push" />
        <button type="button" aria-pressed={asTable} onClick={() => setAsTable(!asTable)}>
          As a table
        </button>
      </div>
      {asTable ? (
        <RegionTable regions={cells} skipped={skipped} />
      ) : (
        <>
          <Cells {...{ cells, skipped, measure, largest, late, critical, chosen, choose }} />
        </>
      )}
    </>
  );
}

interface CellProperties extends Omit<Properties, "regions"> {
  cells: readonly Region[];
  measure: Measure;
  largest: number;
}

function Cells(properties: CellProperties): JSX.Element {
  const { cells, skipped, measure, largest, late, critical, chosen, choose } = properties;
  const frame = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState<number | null>(null);
  const layout = useMemo(() => grid(cells.length, width, HEIGHT), [cells.length, width]);
  const chosenIndex = useMemo(
    () => (chosen === null ? -1 : cells.findIndex((one) => one.region_id === chosen)),
    [cells, chosen],
  );

  const paint = useCallback(() => {
    if (canvas.current !== null && width > 0) {
      draw(canvas.current, layout, properties, hovered ?? -1, chosenIndex);
    }
  }, [layout, cells, skipped, measure, largest, late, critical, hovered, chosenIndex, width]);

  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null) return;
    const observer = new ResizeObserver(() => setWidth(Math.floor(element.clientWidth)));
    observer.observe(element);
    setWidth(Math.floor(element.clientWidth));
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(paint, [paint]);
  useEffect(() => {
    addEventListener("themechange", paint);
    return () => removeEventListener("themechange", paint);
  }, [paint]);

  const at = (event: MouseEvent): number | null =>
    cellAt(layout, cells.length, event.offsetX, event.offsetY);
  const told = hovered ?? (chosenIndex >= 0 ? chosenIndex : null);
  const region = told === null ? undefined : cells[told];

  return (
    <>
      <div
        ref={frame}
        class="cells"
        style={{ minHeight: `${layout.height}px` }}
        role="application"
        aria-roledescription="heat map"
        aria-label={`${exact(cells.length)} regions by ${measure.name.toLowerCase()}; arrow keys move, Escape leaves the choice`}
        aria-describedby="cell-told"
        tabIndex={0}
        onKeyDown={(event) => {
          if (event.key === "Escape") choose(null);
          const to = moved(layout, cells.length, Math.max(0, chosenIndex), event.key);
          if (to === null) return;
          event.preventDefault();
          choose(cells[chosenIndex < 0 ? 0 : to]?.region_id ?? null);
        }}
      >
        <canvas
          ref={canvas}
          aria-hidden="true"
          onMouseMove={(event) => setHovered(at(event))}
          onMouseLeave={() => setHovered(null)}
          onClick={(event) => {
            const index = at(event);
            const id = index === null ? null : (cells[index]?.region_id ?? null);
            choose(id === chosen ? null : id);
          }}
        />
      </div>
      <Legend measure={measure} largest={largest} skipped={skipped.size > 0} />
      <p id="cell-told" class="told" aria-live="polite">
        {region ? (
          <Told region={region} skipped={skipped.get(region.region_id)} />
        ) : (
          <span class="quiet">Point at a cell, or use the arrow keys; a click keeps it.</span>
        )}
      </p>
    </>
  );
}

function Told({ region, skipped }: { region: Region; skipped: string | undefined }): JSX.Element {
  const state = [
    region.sealed ? "sealed" : null,
    `epoch ${region.writer_epoch}`,
    `generation ${region.current_generation}, merged ${region.merged_generation}`,
  ];
  const waits = region.backlog_generations
    ? `${plural(region.backlog_generations, "generation")} waiting for ${duration(region.oldest_backlog_seconds)}: ` +
      `${count(region.backlog_rows)} rows, ${size(region.backlog_bytes)}`
    : "nothing waits";
  return (
    <>
      <code>{region.region_id}</code>
      <span>{waits}</span>
      <span>
        {count(region.unflushed_wal_entries)} log entries not flushed
        {region.needs_recovery && `, for ${duration(region.oldest_unflushed_seconds)}: their writer is closed or dead`}
      </span>
      <span>{`${exact(region.retained_generations)} stored, ${size(region.reclaimable_bytes)} reclaimable`}</span>
      {region.held_generations > 0 && (
        <span>{`${exact(region.held_generations)} held for the writer of another client, ${size(region.held_bytes)}`}</span>
      )}
      {skipped !== undefined && <span class="is-failing told-reason">skipped: {skipped}</span>}
      {region.missing_wal_entry !== null && (
        <span class="is-failing told-reason">{`entry ${exact(region.missing_wal_entry)} of its log is missing: acknowledged rows are lost with it`}</span>
      )}
      {region.merged_before !== null && (
        <span class="is-failing told-reason">{`the base table went back behind its generation ${exact(region.merged_before)}`}</span>
      )}
      <span class="quiet">{state.filter(Boolean).join(" · ")}</span>
    </>
  );
}

interface LegendProperties {
  measure: Measure;
  largest: number;
  skipped: boolean;
}

function Legend({ measure, largest, skipped }: LegendProperties): JSX.Element {
  return (
    <div class="legend" aria-hidden="true">
      <span class="legend-low">none</span>
      <span class="swatch heat-0" />
      {Array.from({ length: STEPS }, (_, index) => (
        <span
          key={index}
          class={`swatch heat-${index + 1}`}
          title={`up to ${measure.show(stepEnd(index + 1, largest))}`}
        />
      ))}
      <span class="legend-end">{largest > 0 ? measure.show(largest) : "none"}</span>
      {measure.id === "age" && (
        <>
          <span class="swatch heat-late" /> <span class="legend-end">late</span>
          <span class="swatch heat-critical" /> <span class="legend-end">critical</span>
        </>
      )}
      {skipped && (
        <>
          <span class="swatch heat-skipped" /> <span>skipped</span>
        </>
      )}
    </div>
  );
}

/** Colours are read from the style sheet, so that there is one place for both themes. */
function palette(): Record<"late" | "critical" | "mark" | "onStrong" | "skipped", string> & { steps: string[] } {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  return {
    steps: Array.from({ length: STEPS + 1 }, (_, index) => colour(`--heat-${index}`)),
    late: colour("--late-fill"),
    critical: colour("--critical-fill"),
    mark: colour("--text"),
    onStrong: colour("--heat-strong-text"),
    skipped: colour("--failing-fill"),
  };
}

function draw(
  canvas: HTMLCanvasElement,
  layout: Grid,
  { cells, skipped, measure, largest, late, critical }: CellProperties,
  hovered: number,
  chosen: number,
): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = layout.width * ratio;
  canvas.height = layout.height * ratio;
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  context.scale(ratio, ratio);
  const colours = palette();
  const gap = layout.cell > 12 ? 2 : layout.cell > TOUCHING ? 1 : 0;
  const edge = layout.cell - gap;
  const across = layout.wide - gap;
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  cells.forEach((region, index) => {
    const x = (index % layout.columns) * layout.wide;
    const y = Math.floor(index / layout.columns) * layout.cell;
    const value = measure.value(region);
    const state = ageLevel(measure, value, late, critical);
    const strength = step(value, largest);
    context.fillStyle = state === "fine" ? (colours.steps[strength] ?? "") : colours[state];
    context.fillRect(x, y, across, edge);
    if (layout.cell >= LEGIBLE && value > 0) {
      context.fillStyle = strength > STEPS / 2 || state !== "fine" ? colours.onStrong : colours.mark;
      context.fillText(measure.show(value), x + across / 2, y + edge / 2, across - 4);
    }
    if (skipped.has(region.region_id)) {
      context.fillStyle = colours.skipped;
      const corner = Math.min(14, Math.max(3, Math.floor(edge / 2.5)));
      context.beginPath();
      context.moveTo(x + across - corner, y);
      context.lineTo(x + across, y);
      context.lineTo(x + across, y + corner);
      context.fill();
    }
  });
  for (const [index, width] of [
    [hovered, 1.5],
    [chosen, 2.5],
  ] as const) {
    if (index < 0) continue;
    context.strokeStyle = colours.mark;
    context.lineWidth = width;
    const x = (index % layout.columns) * layout.wide;
    const y = Math.floor(index / layout.columns) * layout.cell;
    context.strokeRect(x - 0.5, y - 0.5, across + 1, edge + 1);
  }
}
