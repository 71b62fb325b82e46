import type { JSX } from "preact";

import { ago, human, moment } from "../format";
import { JOBS, type TableDetail } from "../types";
import { Icon } from "./icons";
import { Scroll } from "./Scroll";

const NAMES: Record<string, string> = {
  merge: "Merge",
  index: "Index build",
  compact: "Compaction",
  snapshot: "Snapshot",
  gc: "Collection",
  quality: "Quality check",
  verify: "Verification",
  checkpoint: "Checkpoint",
  status: "Status check",
  log: "Log",
  progress: "Merge progress",
  restore: "Restore",
  policy: "Policy",
  dag: "DAG",
  late: "Run in time",
  not_started: "Start of a run",
  sensor_timeout: "Sensor",
  recover: "Recovery",
  region: "Regions",
};

export function jobName(job: string): string {
  return NAMES[job] ?? job;
}

/** What each job does next and why. */
export function DueTable({ table, now }: { table: TableDetail; now: number }): JSX.Element {
  return (
    <Scroll label="Jobs">
      <table class="due stack">
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">Now</th>
            <th scope="col">Why</th>
            <th scope="col">Last done</th>
          </tr>
        </thead>
        <tbody>
          {JOBS.filter((job) => table.status === null || job in table.due).map((job) => (
            <DueRow key={job} job={job} table={table} now={now} />
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function DueRow({ job, table, now }: { job: string; table: TableDetail; now: number }): JSX.Element {
  const due = table.due[job];
  const error = table.errors.find((one) => one.job === job);
  const running = table.running.some((run) => run.job === job);
  const state = running
    ? { icon: "running", name: "running", kind: "running" }
    : error
      ? { icon: "failing", name: "fails", kind: "failing" }
      : due?.postponed
        ? { icon: "off", name: "postponed", kind: "off" }
        : due?.reason
          ? { icon: "late", name: due.critical ? "overdue" : "due", kind: due.critical ? "critical" : "late" }
          : due
            ? { icon: "ok", name: "not due", kind: "ok" }
            : { icon: "unknown", name: "unknown", kind: "unknown" };
  const why = error
    ? error.reason
    : (due?.postponed ?? due?.reason ?? (due ? `${Math.round(due.pressure * 100)} % of its nearest limit` : ""));
  return (
    <tr>
      <th scope="row">{jobName(job)}</th>
      <td class={`is-${state.kind} state-cell`} data-label="Now">
        <Icon name={state.icon} spin={state.icon === "running"} />
        {state.name}
      </td>
      <td class="why" data-label="Why">
        {human(why)}
      </td>
      <td class="nowrap" data-label="Last done" title={moment(table.last_runs[job])}>
        {ago(table.last_runs[job], now)}
      </td>
    </tr>
  );
}
