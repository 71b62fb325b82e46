/** Health and age against limits. */

import { human } from "./format";
import type { Health, Reason } from "./types";

/** The worst first. */
export const HEALTHS: readonly Health[] = [
  "critical",
  "failing",
  "run_failed",
  "no_heartbeat",
  "unwatched",
  "not_started",
  "run_queued",
  "sensor_timeout",
  "late",
  "due",
  "ok",
  "off",
];

/** The names that everything else has for them, as people read them. */
export const HEALTH_NAMES: Record<Health, string> = {
  critical: "Critical",
  failing: "Failing",
  run_failed: "Run failed",
  no_heartbeat: "No heartbeat",
  unwatched: "Unwatched",
  not_started: "Not started",
  run_queued: "Run queued",
  sensor_timeout: "Sensor timeout",
  late: "Late",
  due: "Due",
  ok: "OK",
  off: "Off",
};

export const HEALTH_MEANINGS: Record<Health, string> = {
  critical: "the oldest unmerged generation is older than the critical limit",
  failing: "a job fails, or regions are skipped",
  run_failed: "the last run of its DAG failed",
  no_heartbeat: "a component of Airflow is without a heartbeat",
  unwatched: "no process looks at it",
  not_started: "a job has been due for longer than its schedule, and no run began",
  run_queued: "nothing takes a queued run of its DAG, or a task of it",
  sensor_timeout: "a sensor ended without an answer",
  late: "the oldest unmerged generation is older than the limit",
  due: "a job is due and waits for its run",
  ok: "within its limits, and nothing is due",
  off: "not maintained",
};

/** Smaller is worse. */
export function severity(health: Health): number {
  const at = HEALTHS.indexOf(health);
  return at < 0 ? HEALTHS.indexOf("unwatched") : at;
}

/** All reasons in one line. */
export function reasonsText(reasons: readonly Reason[], health: Health): string {
  const texts = reasons.map((reason) => reason.text);
  return texts.length ? human(texts.join("; ")) : HEALTH_MEANINGS[health];
}

export type Level = "fine" | "late" | "critical";

export function level(seconds: number | null | undefined, late: number, critical: number): Level {
  if (seconds === null || seconds === undefined) return "fine";
  if (seconds >= critical) return "critical";
  return seconds >= late ? "late" : "fine";
}

/**
 * Where an age stands on a bar, 0 to 1. The first half goes to the limit, the second from there
 * to the critical one: with limits of an hour and twelve, minutes would not show on one scale.
 */
export function position(seconds: number | null | undefined, late: number, critical: number): number {
  if (seconds === null || seconds === undefined || seconds <= 0) return 0;
  if (seconds < late) return (0.5 * seconds) / late;
  if (critical <= late) return 1;
  return Math.min(1, 0.5 + (0.5 * (seconds - late)) / (critical - late));
}
