/** Numbers, sizes and times as people read them. What is not known is a dash. */

export const NONE = "–";
const SPACE = "\u00a0";

const COUNTS = ["", "k", "M", "bn", "tn"];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

type Maybe = number | null | undefined;

/** Three digits that count: 0, 7.5, 12, 980, 1.23 k, 45.6 M. */
export function count(value: Maybe): string {
  if (value === null || value === undefined) return NONE;
  return scaled(value, 1000, COUNTS);
}

/** With all its digits, in groups. */
export function exact(value: Maybe): string {
  if (value === null || value === undefined) return NONE;
  return Math.round(value).toLocaleString("en-US").replaceAll(",", "\u202f");
}

export function size(value: Maybe): string {
  if (value === null || value === undefined) return NONE;
  return scaled(value, 1024, SIZES);
}

export function rate(value: Maybe): string {
  if (value === null || value === undefined) return NONE;
  return `${count(value)}/s`;
}

function scaled(value: number, step: number, units: readonly string[]): string {
  let rest = Math.abs(value);
  let unit = 0;
  // 999.5 would be shown as 1000 of the smaller unit.
  while (unit < units.length - 1 && rest >= step - 0.5) {
    rest /= step;
    unit += 1;
  }
  const name = units[unit] ?? "";
  return `${value < 0 ? "−" : ""}${digits(rest, unit === 0)}${name ? SPACE + name : ""}`;
}

function digits(value: number, whole: boolean): string {
  if (Number.isInteger(value)) return String(value);
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return trim(value.toFixed(1));
  if (!whole || value >= 1) return trim(value.toFixed(whole ? 1 : 2));
  return value < 0.01 ? "<0.01" : trim(value.toFixed(2));
}

function trim(text: string): string {
  return text.replace(/\.?0+$/, "");
}

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;

/** Two units at most: 450 ms, 12 s, 3 min 20 s, 5 h 10 min, 2 d 4 h. */
export function duration(seconds: Maybe): string {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))}${SPACE}ms`;
  if (seconds < 10 && !Number.isInteger(seconds)) return `${trim(seconds.toFixed(1))}${SPACE}s`;
  const whole = Math.round(seconds);
  if (whole < MINUTE) return `${whole}${SPACE}s`;
  if (whole < 10 * MINUTE) return two(whole, MINUTE, "min", 1, "s");
  if (whole < HOUR) return `${Math.floor(whole / MINUTE)}${SPACE}min`;
  if (whole < DAY) return two(whole, HOUR, "h", MINUTE, "min");
  if (whole < 30 * DAY) return two(whole, DAY, "d", HOUR, "h");
  return `${Math.floor(whole / DAY)}${SPACE}d`;
}

function two(value: number, big: number, bigName: string, small: number, smallName: string): string {
  const first = `${Math.floor(value / big)}${SPACE}${bigName}`;
  const rest = Math.floor((value % big) / small);
  return rest ? `${first}${SPACE}${rest}${SPACE}${smallName}` : first;
}

/** The larger unit alone, where there is little room: 3 min, 5 h, 2 d. */
export function short(seconds: Maybe): string {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < MINUTE) return `${Math.round(seconds)}${SPACE}s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)}${SPACE}min`;
  if (seconds < 2 * DAY) return `${trim((Math.floor((seconds / HOUR) * 10) / 10).toFixed(1))}${SPACE}h`;
  return `${Math.floor(seconds / DAY)}${SPACE}d`;
}

export function secondsSince(iso: string | null | undefined, now: number): number | null {
  if (!iso) return null;
  const at = Date.parse(iso);
  return Number.isNaN(at) ? null : Math.max(0, (now - at) / 1000);
}

export function ago(iso: string | null | undefined, now: number): string {
  const seconds = secondsSince(iso, now);
  if (seconds === null) return NONE;
  return seconds < 5 ? "just now" : `${short(seconds)}${SPACE}ago`;
}

/** In this many seconds, or how long it is overdue. */
export function until(iso: string | null | undefined, now: number): string {
  if (!iso) return NONE;
  const seconds = (Date.parse(iso) - now) / 1000;
  if (Number.isNaN(seconds)) return NONE;
  return seconds <= 0 ? "now" : `in${SPACE}${short(seconds)}`;
}

export function moment(iso: string | null | undefined): string {
  if (!iso) return NONE;
  const at = new Date(iso);
  if (Number.isNaN(at.getTime())) return NONE;
  const pad = (value: number): string => String(value).padStart(2, "0");
  const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
  return `${day} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)}${SPACE}${value === 1 ? one : many}`;
}

/** `rows_upserted` as "rows upserted". */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

export function shortId(id: string): string {
  return id.slice(0, 8);
}

/** A sentence of the server with its long spans of seconds and bytes as people read them. */
export function human(text: string): string {
  return text
    .replace(/\b(\d{3,})(?:\.\d+)? s\b/g, (_, seconds: string) => duration(Number(seconds)))
    .replace(/\b(\d{4,}) bytes\b/g, (_, bytes: string) => size(Number(bytes)));
}
