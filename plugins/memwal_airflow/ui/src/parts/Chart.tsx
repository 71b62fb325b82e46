import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface Series {
  name: string;
  /** Name of the colour in the style sheet. */
  colour: string;
  values: readonly (number | null)[];
  dashed?: boolean;
  filled?: boolean;
}

interface Properties {
  title: string;
  times: readonly number[];
  series: readonly Series[];
  show: (value: number | null) => string;
  /** Distances that the marks of the axis may have; those of decimal numbers unless given. */
  steps?: readonly number[];
}

const HEIGHT = 150;

/** Below so many samples each is drawn. */
const FEW = 30;

/** Lines over time, with a legend that holds the values below the pointer, else the latest. */
export function Chart({ title, times, series, show, steps }: Properties): JSX.Element {
  const frame = useRef<HTMLDivElement>(null);
  const legend = useRef<HTMLSpanElement[]>([]);
  const stamp = useRef<HTMLSpanElement>(null);
  const chart = useRef<uPlot | null>(null);
  const data: uPlot.AlignedData = [times as number[], ...series.map((one) => one.values as number[])];

  // One chart for the life of the panel: new samples are given to it, a new theme makes it anew.
  useLayoutEffect(() => {
    const element = frame.current;
    if (element === null) return;
    const build = (): void => {
      const before = chart.current?.data ?? data;
      chart.current?.destroy();
      chart.current = new uPlot(
        options(element.clientWidth, { series, show, steps }, (plot) => tell(plot, plot.cursor.idx)),
        before,
        element,
      );
    };
    const tell = (plot: uPlot, index: number | null | undefined): void => {
      const at = index ?? plot.data[0].length - 1;
      series.forEach((_, place) => {
        const text = legend.current[place];
        if (text) text.textContent = show(plot.data[place + 1]?.[at] ?? null);
      });
      if (stamp.current) {
        const pointed = index !== null && index !== undefined;
        stamp.current.textContent = pointed ? clock(plot.data[0][at]) : "";
      }
    };
    build();
    if (chart.current) tell(chart.current, null);
    const observer = new ResizeObserver(() =>
      chart.current?.setSize({ width: element.clientWidth, height: HEIGHT }),
    );
    observer.observe(element);
    addEventListener("themechange", build);
    return () => {
      observer.disconnect();
      removeEventListener("themechange", build);
      chart.current?.destroy();
      chart.current = null;
    };
  }, []);

  useEffect(() => {
    chart.current?.setData(data);
    series.forEach((one, place) => {
      const text = legend.current[place];
      if (text) text.textContent = show(one.values.at(-1) ?? null);
    });
  }, [times]);

  return (
    <figure class="chart">
      <figcaption>
        <b>{title}</b>
        <span class="chart-legend">
          {series.map((one, place) => (
            <span key={one.name}>
              <i class={one.dashed ? "key dashed" : "key"} style={{ color: `var(${one.colour})` }} />
              {one.name}{" "}
              <span
                class="chart-value"
                ref={(element) => {
                  if (element) legend.current[place] = element;
                }}
              />
            </span>
          ))}
        </span>
        <span class="quiet chart-time" ref={stamp} />
      </figcaption>
      <div ref={frame} class="chart-frame" role="img" aria-label={summary(title, series, show)} />
    </figure>
  );
}

function summary(title: string, series: readonly Series[], show: Properties["show"]): string {
  const parts = series
    .filter((one) => !one.dashed)
    .map((one) => {
      const known = one.values.filter((value) => value !== null);
      if (known.length === 0) return `${one.name}: no values`;
      const most = known.reduce((a, b) => Math.max(a, b));
      const least = known.reduce((a, b) => Math.min(a, b));
      return `${one.name}: now ${show(known.at(-1) ?? null)}, from ${show(least)} to ${show(most)}`;
    });
  return `${title}. ${parts.join("; ")}.`;
}

function clock(seconds: number | undefined): string {
  if (seconds === undefined) return "";
  const at = new Date(seconds * 1000);
  return at.toLocaleString("sv-SE").slice(5, 16);
}

function options(
  width: number,
  { series, show, steps }: Pick<Properties, "series" | "show"> & { steps: Properties["steps"] | undefined },
  moved: (plot: uPlot) => void,
): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const axis: uPlot.Axis = {
    stroke: colour("--muted"),
    font: `11px ${style.fontFamily}`,
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width,
    height: HEIGHT,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
    hooks: { setCursor: [moved] },
    scales: { y: { range: (_plot, _least, most) => [0, most > 0 ? most * 1.08 : 1] } },
    axes: [
      { ...axis, size: 26, space: 70, values: TIMES },
      {
        ...axis,
        size: 62,
        gap: 6,
        space: 34,
        ...(steps ? { incrs: [...steps] } : {}),
        values: (_plot, splits) => splits.map((value) => show(value)),
      },
    ],
    series: [
      {},
      ...series.map((one): uPlot.Series => ({
        stroke: colour(one.colour),
        width: one.dashed ? 1 : 1.75,
        // Between gaps a line of one sample would not be seen.
        points: { show: (plot) => !one.dashed && plot.data[0].length < FEW },
        ...(one.dashed ? { dash: [4, 4] } : {}),
        ...(one.filled ? { fill: colour(`${one.colour}-fill`) } : {}),
      })),
    ],
  };
}

/** Labels of the time axis: hours and minutes; days, or seconds, where it takes them. */
const TIMES: NonNullable<uPlot.Axis["values"]> = (_plot, splits, _axis, _space, increment) =>
  splits.map((seconds) => {
    const at = new Date(seconds * 1000).toLocaleString("sv-SE");
    if (increment >= 86_400 || at.slice(11) === "00:00:00") return at.slice(5, 10);
    return increment < 60 ? at.slice(11) : at.slice(11, 16);
  });
