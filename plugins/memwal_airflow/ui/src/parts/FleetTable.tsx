import type { JSX } from "preact";

import { latestError, type Column, type Order } from "../fleet";
import { ago, count, exact, moment, plural, rate, size } from "../format";
import { reasonsText } from "../health";
import { tableHref } from "../route";
import type { FleetRow } from "../types";
import { AgeBar } from "./AgeBar";
import { jobName } from "./DueTable";
import { HealthBadge } from "./Health";
import { Icon } from "./icons";
import { Scroll } from "./Scroll";

const COLUMNS: readonly { id: Column; name: string; number?: boolean; title: string }[] = [
  { id: "table", name: "Table", title: "Name, owner and tags" },
  { id: "health", name: "Health", title: "Worst first" },
  { id: "age", name: "Backlog age / limit", title: "Age of the oldest unmerged generation" },
  { id: "backlog", name: "Waiting", number: true, title: "Rows that are flushed and not merged" },
  { id: "in", name: "Rows in", number: true, title: "Rows flushed, per second" },
  { id: "merged", name: "Merged", number: true, title: "Rows merged, per second" },
  { id: "lag", name: "Index lag", number: true, title: "Rows that an index does not cover yet" },
  { id: "reclaimable", name: "Reclaimable", number: true, title: "Bytes that only retention holds" },
  { id: "last", name: "Last merge", title: "When a merge last ended well, or what runs now" },
  { id: "error", name: "Last error", title: "What failed last and is tried again" },
];

interface Properties {
  rows: readonly FleetRow[];
  now: number;
  order: Order;
  sort: (column: Column) => void;
}

export function FleetTable({ rows, now, order, sort }: Properties): JSX.Element {
  return (
    <Scroll label="All tables">
      <table class="fleet stack">
        <thead>
          <tr>
            {COLUMNS.map((column) => (
              <th
                key={column.id}
                scope="col"
                class={column.number ? `col-${column.id} number` : `col-${column.id}`}
                aria-sort={
                  order.column !== column.id ? "none" : order.descending ? "descending" : "ascending"
                }
              >
                <button
                  type="button"
                  class="sort"
                  title={column.title}
                  onClick={() => sort(column.id)}
                >
                  {column.name}
                  <span class="arrow" aria-hidden="true" />
                </button>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <Row key={row.table} row={row} now={now} />
          ))}
          {rows.length === 0 && (
            <tr>
              <td colSpan={COLUMNS.length} class="nothing">
                No table fits the filter.
              </td>
            </tr>
          )}
        </tbody>
      </table>
    </Scroll>
  );
}

function Row({ row, now }: { row: FleetRow; now: number }): JSX.Element {
  const about = [row.owner, ...row.tags].filter(Boolean).join(" · ");
  const lag = row.lag_rows ?? row.lag_generations;
  return (
    <tr>
      <th scope="row" class="col-table">
        <a href={tableHref(row.table)} title={row.uri}>
          {row.table}
        </a>
        <span class="below" title={about}>
          {about || "\u00a0"}
        </span>
      </th>
      <td data-label="Health" class="col-health">
        <HealthBadge health={row.health} reasons={row.reasons} />
        <span class="below">{row.skipped_regions ? plural(row.skipped_regions, "skipped region") : "\u00a0"}</span>
        {row.reasons.length > 0 && (
          <span class="narrow-only quiet">{reasonsText(row.reasons, row.health)}</span>
        )}
      </td>
      <td data-label="Backlog age" class="col-age">
        {row.backlog ? (
          <AgeBar
            seconds={row.backlog.oldest_seconds}
            late={row.late_seconds}
            critical={row.critical_seconds}
          />
        ) : (
          <span class="quiet">status not read yet</span>
        )}
      </td>
      <td data-label="Waiting" class="number" title={row.backlog ? `${exact(row.backlog.rows)} rows` : undefined}>
        {count(row.backlog?.rows)}
        <span class="below">
          {row.backlog ? `${count(row.backlog.generations)} gen. · ${size(row.backlog.bytes)}` : "\u00a0"}
        </span>
      </td>
      <td data-label="Rows in" class="number">{rate(row.rows_in_per_second)}</td>
      <td data-label="Merged" class="number">{rate(row.rows_merged_per_second)}</td>
      <td data-label="Index lag" class="number">
        <span class={lag ? "" : "quiet"}>{count(row.lag_rows)}</span>
        <span class="below">{row.lag_generations ? `${count(row.lag_generations)} gen.` : "\u00a0"}</span>
      </td>
      <td data-label="Reclaimable" class={row.reclaimable_bytes ? "number" : "number quiet"}>{size(row.reclaimable_bytes)}</td>
      <td data-label="Last merge" class="col-last">
        <Latest row={row} now={now} />
      </td>
      <td data-label="Last error" class="col-error">
        <LastError row={row} now={now} />
      </td>
    </tr>
  );
}

function Latest({ row, now }: { row: FleetRow; now: number }): JSX.Element {
  const at = row.last_runs["merge"];
  const running = row.running[0];
  return (
    <>
      <span title={moment(at)}>{ago(at, now)}</span>
      <span class={running ? "below is-running" : "below"}>
        {running ? (
          <>
            <Icon name="running" spin />
            {running.job}
            {running.total ? ` ${running.done ?? 0}/${running.total}` : ""}
            {row.running.length > 1 ? ` +${row.running.length - 1}` : ""}
          </>
        ) : (
          "\u00a0"
        )}
      </span>
    </>
  );
}

function LastError({ row, now }: { row: FleetRow; now: number }): JSX.Element {
  const error = latestError(row);
  if (error === null) return <span class="quiet">none</span>;
  return (
    <span title={error.reason}>
      <span class="lines">{error.reason}</span>
      <span class="below">
        {jobName(error.job)} · since {ago(error.since ?? error.at, now)}
      </span>
    </span>
  );
}
