import type { JSX } from "preact";

import { ago, count, duration, exact, moment, size, words } from "../format";
import type { Run } from "../types";
import { jobName } from "./DueTable";
import { Icon } from "./icons";
import { OutLink } from "./OutLink";
import { Scroll } from "./Scroll";

const STATES: Record<Run["state"], { icon: string; kind: string }> = {
  running: { icon: "running", kind: "running" },
  succeeded: { icon: "ok", kind: "ok" },
  failed: { icon: "failing", kind: "critical" },
  abandoned: { icon: "off", kind: "late" },
};

/** The latest runs of all jobs. */
export function RunsTable({ runs, now }: { runs: readonly Run[]; now: number }): JSX.Element {
  return (
    <Scroll label="Latest runs" className="runs">
      <table class="stack">
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col">Started</th>
            <th scope="col" class="number">Took</th>
            <th scope="col" class="number">Rows</th>
            <th scope="col" class="number">Bytes</th>
            <th scope="col" class="number">Version</th>
            <th scope="col">What it did</th>
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <RunRow key={run.run_id} run={run} now={now} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function RunRow({ run, now }: { run: Run; now: number }): JSX.Element {
  const state = STATES[run.state] ?? STATES.abandoned;
  return (
    <tr>
      <td class="nowrap" data-label="Run">
        <OutLink to={run.link} label={`Run ${run.run_id} in Airflow`}>
          {run.run_id}
        </OutLink>
      </td>
      <th scope="row">{jobName(run.job)}</th>
      <td class={`is-${state.kind} state-cell`} data-label="State">
        <Icon name={state.icon} spin={run.state === "running"} />
        {run.state}
        {run.state === "running" && run.total ? ` ${run.done ?? 0}/${run.total}` : ""}
      </td>
      <td class="nowrap" title={moment(run.started_at)} data-label="Started">
        {ago(run.started_at, now)}
      </td>
      <td class="number" data-label="Took">
        {duration(run.seconds ?? (now - Date.parse(run.started_at)) / 1000)}
      </td>
      <td class="number" data-label="Rows">{count(run.rows)}</td>
      <td class="number" data-label="Bytes">{size(run.bytes)}</td>
      <td class="number" data-label="Version">{versions(run)}</td>
      <td class="did" data-label="What it did">
        <Did run={run} />
      </td>
    </tr>
  );
}

function versions(run: Run): string {
  const { version_before: before, version_after: after } = run;
  if (after === null || after === before) return exact(before ?? after);
  return before === null ? exact(after) : `${exact(before)} → ${exact(after)}`;
}

function Did({ run }: { run: Run }): JSX.Element {
  const numbers = Object.entries(run.metrics ?? {}).filter(([, value]) => value);
  const metrics = numbers
    .filter(([name]) => !name.startsWith("bytes"))
    .map(([name, value]) => `${count(value)} ${words(name)}`);
  for (const [name, value] of numbers) {
    if (name === "bytes_read" || name === "bytes_written") {
      metrics.push(`${size(value)} ${name.slice("bytes_".length)}`);
    }
  }
  const warnings = run.warnings ?? [];
  const left = run.job === "quality" || run.job === "verify" ? "found" : "left undone";
  const line = run.error ?? metrics.join(", ");
  if (run.error === null && warnings.length === 0) return <>{line}</>;
  const more = [...(run.error ? [run.error] : []), ...warnings];
  return (
    <details>
      <summary class={run.error ? "is-critical" : "is-late"}>
        {run.error ? firstLine(run.error) : `${metrics.join(", ")} · ${warnings.length} ${left}`}
      </summary>
      <ul>
        {more.map((text) => (
          <li key={text}>{text}</li>
        ))}
      </ul>
    </details>
  );
}

function firstLine(text: string): string {
  const line = text.split("\n", 1)[0] ?? "";
  return line.length > 120 ? `${line.slice(0, 119)}…` : line;
}
