/** What the API of the page answers. Ages and durations are seconds, sizes bytes, times ISO 8601. */

export type Health =
  | "critical"
  | "failing"
  | "run_failed"
  | "no_heartbeat"
  | "unwatched"
  | "not_started"
  | "run_queued"
  | "sensor_timeout"
  | "late"
  | "due"
  | "ok"
  | "off";

/** A state that a table is in, and why. */
export interface Reason {
  health: Health;
  text: string;
  since: string | null;
  /** As of a failure; empty where nothing is to be done. */
  runbook: string;
  runbook_link: string | null;
}

export const JOBS = ["recover", "merge", "index", "compact", "snapshot", "gc", "quality"] as const;

export interface Backlog {
  generations: number;
  rows: number;
  bytes: number;
  wal_entries: number;
  oldest_seconds: number | null;
}

export interface RunningJob {
  run_id: number;
  job: string;
  started_at?: string | null;
  done?: number | null;
  total?: number | null;
  link?: string | null;
}

export interface JobError {
  job: string;
  reason: string;
  at: string | null;
  since: string | null;
  attempts: number | null;
  next_try_at: string | null;
  action: string;
  /** Path in the documentation, and its address if Airflow's configuration says where that is. */
  runbook: string;
  runbook_link: string | null;
}

export interface FleetRow {
  table: string;
  uri: string;
  owner: string;
  enabled: boolean;
  tags: string[];
  dag_id: string | null;
  dag_link?: string | null;
  health: Health;
  /** The worst first; none if all is well. */
  reasons: Reason[];
  sampled_at: string | null;
  backlog: Backlog | null;
  late_seconds: number;
  critical_seconds: number;
  rows_in_per_second: number | null;
  rows_merged_per_second: number | null;
  lag_generations: number | null;
  lag_rows: number | null;
  reclaimable_bytes: number | null;
  regions: number | null;
  base_rows: number | null;
  version: number | null;
  running: RunningJob[];
  last_runs: Record<string, string>;
  skipped_regions: number;
  errors: JobError[];
}

export interface Fleet {
  at: string;
  tables: FleetRow[];
}

export interface Region {
  region_id: string;
  writer_epoch: number;
  sealed: boolean;
  current_generation: number;
  merged_generation: number;
  backlog_generations: number;
  backlog_rows: number;
  backlog_bytes: number;
  oldest_backlog_seconds: number | null;
  unflushed_wal_entries: number;
  oldest_unflushed_seconds: number | null;
  /** Its unflushed rows are those of a writer that is closed or dead. */
  needs_recovery: boolean;
  retained_generations: number;
  reclaimable_generations: number;
  reclaimable_bytes: number;
  held_generations: number;
  held_bytes: number;
  /** First position of the log that lost its entry. */
  missing_wal_entry: number | null;
  merged_before: number | null;
}

export interface IndexLag {
  name: string;
  generations: number;
  regions: number;
  rows: number | null;
  /** It misses rows that it covers; reads and merges do not use it until it is built again. */
  stale: boolean;
}

export interface Consumer {
  name: string;
  owner: string;
  /** Of the base table, which its token names; null before its first commit, or since a reset. */
  version: number | null;
  /** Since it was created, reset, committed, or read up to the newest state. */
  idle_seconds: number;
  held_bytes: number;
  expired: string | null;
}

export interface Regions {
  /** When the status was read. */
  at: string | null;
  regions: Region[];
}

export interface Status {
  version: number;
  /** Without MemWAL a table has no regions, and no jobs of regions. */
  mem_wal: boolean;
  /** Regions of the spec that nothing was written to yet. */
  unwritten_regions: number;
  indexes: IndexLag[];
  consumers: Consumer[];
  snapshot_age_seconds: number | null;
  small_fragments: number | null;
  deleted_percent: number | null;
  base_rows: number | null;
}

export interface Due {
  reason: string | null;
  postponed: string | null;
  pressure: number;
  critical: boolean;
}

export interface SkippedRegion {
  region_id: string;
  generation: number;
  reason: string;
  attempts: number;
  next_try_at: string | null;
}

export interface FailedJob {
  job: string;
  reason: string;
  attempts: number;
  next_try_at: string | null;
}

export interface Expectation {
  type: string;
  column: string | null;
  severity: string;
  success: boolean;
  failed: number;
  examples?: Record<string, unknown>[];
  error?: string | null;
}

export interface Quality {
  mode: string;
  success: boolean;
  rows: number;
  failed_rows: number;
  quarantined_rows: number;
  skipped_regions?: string[];
  expectations?: Expectation[];
  at?: string | null;
  /** Path of the task that found it. */
  link?: string | null;
}

export interface TableDetail extends Omit<FleetRow, "skipped_regions"> {
  policy: Record<string, unknown>;
  status: Status | null;
  due: Record<string, Due>;
  /** Whether the user may start jobs of this table. */
  may_write: boolean;
  skipped_regions: SkippedRegion[];
  failed_jobs: FailedJob[];
  quality: Quality | null;
}

export interface Sample {
  at: string;
  generations: number;
  rows: number;
  bytes: number;
  wal_entries: number;
  oldest_seconds: number | null;
  lag_generations: number | null;
  lag_rows: number | null;
  reclaimable_bytes: number | null;
  base_rows: number | null;
  rows_in_per_second: number | null;
  rows_merged_per_second: number | null;
}

export interface History {
  samples: Sample[];
}

export interface Run {
  run_id: number;
  job: string;
  state: "running" | "succeeded" | "failed" | "abandoned";
  started_at: string;
  finished_at: string | null;
  seconds: number | null;
  done: number | null;
  total: number | null;
  rows: number | null;
  bytes: number | null;
  version_before: number | null;
  version_after: number | null;
  metrics: Record<string, number> | null;
  warnings: string[] | null;
  error: string | null;
  quality: Quality | null;
  link: string | null;
}

export interface Runs {
  runs: Run[];
}

export interface Collection {
  at: string;
  would_delete: { kind: string; count: number; bytes: number | null }[];
  stays: { kind: string; count: number; bytes: number | null; why: string }[];
  examples: unknown[];
  warnings?: string[];
}

export interface RunOrder {
  jobs: string[];
  regions: string[];
  force: boolean;
  dry_run: boolean;
}

export interface Started {
  dag_run_id: string;
  link: string | null;
  /** The DAG is paused in Airflow: the run waits. */
  paused?: boolean;
}
