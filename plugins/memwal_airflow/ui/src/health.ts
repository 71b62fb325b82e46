/** Health and age against limits. */

import type { Health } from "./types";

export const HEALTHS: readonly Health[] = ["critical", "failing", "late", "unknown", "ok", "off"];

export const HEALTH_NAMES: Record<Health, string> = {
  critical: "Critical",
  failing: "Failing",
  late: "Late",
  unknown: "Unknown",
  ok: "OK",
  off: "Off",
};

export const HEALTH_MEANINGS: Record<Health, string> = {
  critical: "the oldest unmerged generation is older than the critical limit",
  failing: "a job fails, or regions are skipped",
  late: "the oldest unmerged generation is older than the limit",
  unknown: "its status was not read within the limit",
  ok: "within its limits",
  off: "not maintained",
};

/** Smaller is worse. */
export function severity(health: Health): number {
  const at = HEALTHS.indexOf(health);
  return at < 0 ? HEALTHS.indexOf("unknown") : at;
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
