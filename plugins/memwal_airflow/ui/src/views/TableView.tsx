import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";

import { tablePath } from "../api";
import { ago, count, duration, exact, human, moment, plural, rate, short, size } from "../format";
import { HEALTH_MEANINGS, HEALTH_NAMES, level } from "../health";
import { levels as sumLevels } from "../levels";
import { refusal } from "../orders";
import { Actions } from "../parts/Actions";
import { AgeBar } from "../parts/AgeBar";
import { CollectionPanel } from "../parts/CollectionPanel";
import { ConsumersPanel } from "../parts/ConsumersPanel";
import { CopyLink } from "../parts/CopyLink";
import { DueTable } from "../parts/DueTable";
import { ErrorsPanel } from "../parts/ErrorsPanel";
import { Figures } from "../parts/Figures";
import { HealthBadge } from "../parts/Health";
import { SkippedPanel } from "../parts/SkippedPanel";
import { HistoryPanel } from "../parts/History";
import { Icon } from "../parts/icons";
import { Indexes } from "../parts/Indexes";
import { LevelsPicture } from "../parts/Levels";
import { OutLink } from "../parts/OutLink";
import { Panel } from "../parts/Panel";
import { PolicyPanel } from "../parts/PolicyPanel";
import { QualityPanel } from "../parts/QualityPanel";
import { RegionMap } from "../parts/RegionMap";
import { Runbook } from "../parts/Runbook";
import { RunsTable } from "../parts/RunsTable";
import { Empty, Failure, Freshness, Loading } from "../parts/states";
import { usePolled, type Polled } from "../polled";
import { backHref } from "../route";
import type { Health, Reason, Regions, Runs, TableDetail } from "../types";

const REGIONS_SECONDS = 600;

export function TableView({ name }: { name: string }): JSX.Element {
  const detail = usePolled<TableDetail>(tablePath(name));
  const runs = usePolled<Runs>(tablePath(name, "/runs?limit=50"));
  const table = detail.value;
  // Thousands of regions are read again only when the status was.
  const sampled = table?.status ? table.sampled_at : null;
  const regions = usePolled<Regions>(
    sampled === null ? null : tablePath(name, `/regions?at=${encodeURIComponent(sampled)}`),
    REGIONS_SECONDS,
  );
  return (
    <div class="page">
      <header class="top">
        <nav aria-label="Way back">
          <a class="back" href={backHref()}>
            <Icon name="back" />
            All tables
          </a>
        </nav>
        <h1 tabIndex={-1}>{name}</h1>
        {table && <HealthBadge health={table.health} reasons={table.reasons} />}
        <CopyLink />
        <Freshness polled={detail} sampled={table?.sampled_at ?? null} />
      </header>
      <main>
        {table === null ? (
          detail.error ? (
            <Failure error={detail.error} retry={detail.refresh} />
          ) : (
            <Loading what={name} tall />
          )
        ) : (
          <Content {...{ table, detail, runs, regions }} />
        )}
      </main>
    </div>
  );
}

interface Properties {
  table: TableDetail;
  detail: Polled<TableDetail>;
  runs: Polled<Runs>;
  regions: Polled<Regions>;
}

function Content({ table, detail, runs, regions }: Properties): JSX.Element {
  const [region, setRegion] = useState<string | null>(null);
  const now = detail.at ?? Date.now();
  const { status, late_seconds: late, critical_seconds: critical } = table;
  const found = regions.value?.regions;
  const baseRows = status?.base_rows ?? null;
  const sums = useMemo(() => (found ? sumLevels(found, baseRows) : null), [found, baseRows]);
  const skipped = useMemo(
    () => new Map(table.skipped_regions.map((one) => [one.region_id, one.reason])),
    [table.skipped_regions],
  );
  const refresh = (): void => {
    detail.refresh();
    runs.refresh();
  };
  const why = refusal(table);

  return (
    <>
      <div class="intro">
        <div class="about">
          <ReasonList reasons={table.reasons} health={table.health} now={now} />
          <p class="quiet">
            <code>{table.uri}</code>
            {table.owner && <span>owner {table.owner}</span>}
            {table.tags.map((tag) => (
              <span key={tag} class="tag">
                {tag}
              </span>
            ))}
            {table.dag_id && (
              <OutLink to={table.dag_link ?? `../dags/${encodeURIComponent(table.dag_id)}`}>
                DAG {table.dag_id}
              </OutLink>
            )}
          </p>
        </div>
        <Actions table={table} why={why} region={region} started={refresh} />
      </div>

      <Numbers table={table} />
      {table.errors.length > 0 && <ErrorsPanel errors={table.errors} now={now} />}

      {status === null ? (
        <Panel id="levels" title="Levels">
          <Empty>The status of this table was not read yet. The first run of its DAG reads it.</Empty>
        </Panel>
      ) : sums === null || found === undefined ? (
        <Panel id="levels" title="Levels">
          {regions.error ? (
            <Failure error={regions.error} retry={regions.refresh} />
          ) : (
            <Loading what="the regions" tall />
          )}
        </Panel>
      ) : (
        <>
          {status.mem_wal && (
            <Panel id="levels" title="Levels" note="stages of a row, from left to right">
              <LevelsPicture
                sums={sums}
                rowsIn={table.rows_in_per_second}
                rowsMerged={table.rows_merged_per_second}
                version={status.version}
                indexes={status.indexes.length}
                behind={status.indexes.filter((one) => one.generations > 0 || one.rows !== 0).length}
              />
            </Panel>
          )}
          <div class="columns">
            <Panel id="due" title="What is due">
              <DueTable table={table} now={now} />
            </Panel>
            <Panel id="indexes" title="Index catch-up">
              <Indexes indexes={status.indexes} baseRows={status.base_rows} />
            </Panel>
          </div>
          {status.mem_wal && (
            <Panel id="regions" title="Regions" note={regionsNote(found.length, status.unwritten_regions)}>
              <RegionMap
                regions={found}
                skipped={skipped}
                late={late}
                critical={critical}
                chosen={region}
                choose={setRegion}
              />
            </Panel>
          )}
        </>
      )}

      {status !== null && status.consumers.length > 0 && <ConsumersPanel consumers={status.consumers} />}
      {table.skipped_regions.length > 0 && (
        <SkippedPanel table={table.table} skipped={table.skipped_regions} why={why} now={now} done={refresh} />
      )}
      {status?.mem_wal !== false && <HistoryPanel table={table.table} late={late} critical={critical} />}
      <Panel id="runs" title="Runs" note="the latest 50">
        {runs.value === null ? (
          runs.error ? (
            <Failure error={runs.error} retry={runs.refresh} />
          ) : (
            <Loading what="the runs" />
          )
        ) : runs.value.runs.length === 0 ? (
          <Empty>No job has run yet.</Empty>
        ) : (
          <RunsTable runs={runs.value.runs} now={runs.at ?? now} />
        )}
      </Panel>
      <div class="columns even">
        <CollectionPanel table={table.table} />
        <QualityPanel quality={table.quality} now={now} />
      </div>
      <PolicyPanel policy={table.policy} />
    </>
  );
}

/** Every state of the table, with why and the runbook. */
function ReasonList({
  reasons,
  health,
  now,
}: {
  reasons: readonly Reason[];
  health: Health;
  now: number;
}): JSX.Element {
  if (reasons.length === 0) return <p class="reasons">{HEALTH_MEANINGS[health]}</p>;
  return (
    <ul class="reasons">
      {reasons.map((reason) => (
        <li key={reason.health + reason.text}>
          <b class={`is-${reason.health}`}>{HEALTH_NAMES[reason.health] ?? reason.health}</b>{" "}
          {human(reason.text)}
          {reason.since && (
            <span class="quiet" title={moment(reason.since)}>
              {" "}
              · since {ago(reason.since, now)}
            </span>
          )}{" "}
          {reason.runbook && <Runbook path={reason.runbook} link={reason.runbook_link} />}
        </li>
      ))}
    </ul>
  );
}

function regionsNote(written: number, unwritten: number): string {
  const all = `${exact(written + unwritten)} in all`;
  return unwritten ? `${all}, ${exact(unwritten)} not written to yet` : all;
}

function Numbers({ table }: { table: TableDetail }): JSX.Element {
  const { backlog, status } = table;
  if (status?.mem_wal === false) {
    return (
      <Figures
        label="This table"
        figures={[
          { name: "Base table", value: count(table.base_rows), note: `rows, version ${exact(table.version)}, without MemWAL` },
          { name: "Small fragments", value: count(status.small_fragments), note: "a compaction joins them" },
          {
            name: "Deleted rows",
            value: status.deleted_percent === null ? "–" : `${Math.round(status.deleted_percent)} %`,
            note: "of the stored rows",
          },
          { name: "Index catch-up", value: count(Math.max(0, ...status.indexes.map((one) => one.rows ?? 0))), note: "rows, of the index furthest behind" },
        ]}
      />
    );
  }
  const state = level(backlog?.oldest_seconds, table.late_seconds, table.critical_seconds);
  return (
    <Figures
      label="This table"
      figures={[
        {
          name: "Backlog age",
          value: (
            <>
              <span class={state === "fine" ? "" : `is-${state}`}>
                {backlog ? (backlog.oldest_seconds === null ? "none" : short(backlog.oldest_seconds)) : "–"}
              </span>
              <small> / {short(table.late_seconds)}</small>
            </>
          ),
          note: (
            <AgeBar
              seconds={backlog?.oldest_seconds}
              late={table.late_seconds}
              critical={table.critical_seconds}
              bare
            />
          ),
        },
        {
          name: "Waiting",
          value: count(backlog?.rows),
          note: backlog ? `${plural(backlog.generations, "generation")}, ${size(backlog.bytes)}` : undefined,
          title: "Rows that are flushed and not merged",
        },
        { name: "Rows in", value: rate(table.rows_in_per_second), note: `${count(backlog?.wal_entries)} entries in logs` },
        { name: "Rows merged", value: rate(table.rows_merged_per_second), note: `${table.running.length || "no"} job${table.running.length === 1 ? "" : "s"} at work` },
        { name: "Index catch-up", value: count(table.lag_rows), note: table.lag_generations === null ? "no maintained index" : `rows, ${plural(table.lag_generations, "generation")} behind` },
        { name: "Reclaimable", value: size(table.reclaimable_bytes), note: "merged, indexed, stored" },
        {
          name: "Base table",
          value: count(table.base_rows),
          note: `rows, version ${exact(table.version)}`,
          title: `snapshot of the regions: ${duration(table.status?.snapshot_age_seconds)} old`,
        },
      ]}
    />
  );
}
