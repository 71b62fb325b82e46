import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";

import { tablePath } from "../api";
import { count, duration, rate, short, size } from "../format";
import { usePolled } from "../polled";
import type { History as Answer, Sample } from "../types";
import { Chart } from "./Chart";
import { Panel } from "./Panel";
import { Empty, Failure, Loading } from "./states";

const RANGES = [
  [1, "1 h"],
  [6, "6 h"],
  [24, "24 h"],
  [168, "7 d"],
] as const;
const EVERY = 30;
const AGE_STEPS = [1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800, 604_800];
const SIZE_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

interface Properties {
  table: string;
  late: number;
  critical: number;
}

export function HistoryPanel({ table, late, critical }: Properties): JSX.Element {
  const [hours, setHours] = useState(24);
  const history = usePolled<Answer>(tablePath(table, `/history?hours=${hours}`), EVERY);
  const samples = history.value?.samples;
  const tools = (
    <div class="segments" role="group" aria-label="Range of the charts">
      {RANGES.map(([value, name]) => (
        <button
          key={value}
          type="button"
          aria-pressed={hours === value}
          onClick={() => setHours(value)}
        >
          {name}
        </button>
      ))}
    </div>
  );
  return (
    <Panel id="history" title="History" tools={tools}>
      {samples === undefined ? (
        history.error ? (
          <Failure error={history.error} retry={history.refresh} />
        ) : (
          <Loading what="the history" tall />
        )
      ) : samples.length < 2 ? (
        <Empty>Fewer than two samples in this range. Each reading of the status adds one.</Empty>
      ) : (
        <Charts samples={samples} late={late} critical={critical} />
      )}
    </Panel>
  );
}

function Charts({ samples, late, critical }: { samples: readonly Sample[]; late: number; critical: number }): JSX.Element {
  const columns = useMemo(() => {
    const ordered = [...samples].sort((a, b) => Date.parse(a.at) - Date.parse(b.at));
    const column = (name: Exclude<keyof Sample, "at">): (number | null)[] =>
      ordered.map((sample) => sample[name]);
    const ages = column("oldest_seconds").map((age) => age ?? 0);
    const most = ages.reduce((a, b) => Math.max(a, b), 0);
    return {
      times: ordered.map((sample) => Date.parse(sample.at) / 1000),
      ages,
      // A limit that is far above would press the line to the ground.
      limit: (at: number) => ordered.map(() => (most >= at * 0.4 ? at : null)),
      column,
      most,
    };
  }, [samples]);
  const { times, column, ages, limit, most } = columns;
  const limits = [
    { name: "late", colour: "--late-line", at: late },
    { name: "critical", colour: "--critical-line", at: critical },
  ].filter(({ at }) => most >= at * 0.4);
  return (
    <div class="charts">
      <Chart
        key={`age${limits.length}`}
        title="Backlog age"
        times={times}
        show={short}
        steps={AGE_STEPS}
        series={[
          { name: "oldest", colour: "--series-1", values: ages, filled: true },
          ...limits.map((one) => ({
            name: `${one.name} (${duration(one.at)})`,
            colour: one.colour,
            values: limit(one.at),
            dashed: true,
          })),
        ]}
      />
      <Chart
        title="Throughput"
        times={times}
        show={rate}
        series={[
          { name: "in", colour: "--series-1", values: column("rows_in_per_second") },
          { name: "merged", colour: "--series-2", values: column("rows_merged_per_second") },
        ]}
      />
      <Chart
        title="Rows"
        times={times}
        show={count}
        series={[
          { name: "waiting", colour: "--series-1", values: column("rows"), filled: true },
          { name: "not indexed", colour: "--series-3", values: column("lag_rows") },
        ]}
      />
      <Chart
        title="Bytes"
        times={times}
        show={size}
        steps={SIZE_STEPS}
        series={[
          { name: "waiting", colour: "--series-1", values: column("bytes") },
          { name: "reclaimable", colour: "--series-2", values: column("reclaimable_bytes"), filled: true },
        ]}
      />
    </div>
  );
}
