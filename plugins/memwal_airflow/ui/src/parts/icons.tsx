import type { JSX } from "preact";

import type { Health } from "../types";

const PATHS: Record<string, JSX.Element> = {
  ok: (
    <>
      <circle cx="8" cy="8" r="6.25" />
      <path d="m5.2 8.2 2 2 3.7-4.2" />
    </>
  ),
  late: (
    <>
      <circle cx="8" cy="8" r="6.25" />
      <path d="M8 4.6V8l2.3 1.6" />
    </>
  ),
  critical: (
    <>
      <path d="M8 1.8 14.8 13.6H1.2Z" />
      <path d="M8 6.2v3.4M8 11.4v.3" />
    </>
  ),
  failing: (
    <>
      <path d="M5.3 1.8h5.4l3.5 3.5v5.4l-3.5 3.5H5.3l-3.5-3.5V5.3Z" />
      <path d="m5.9 5.9 4.2 4.2m0-4.2-4.2 4.2" />
    </>
  ),
  unknown: (
    <>
      <circle cx="8" cy="8" r="6.25" strokeDasharray="2.4 1.8" />
      <path d="M6.4 6.4c.2-2.2 3.4-2 3.2 0C9.5 7.5 8 7.5 8 9.1M8 11.3v.2" />
    </>
  ),
  off: (
    <>
      <circle cx="8" cy="8" r="6.25" />
      <path d="M6.4 5.7v4.6M9.6 5.7v4.6" />
    </>
  ),
  running: <path d="M8 1.75a6.25 6.25 0 1 0 6.25 6.25" />,
  out: <path d="M6.5 3.5h-3v9h9v-3M9 3h4v4M13 3 7.5 8.5" />,
  back: <path d="m9.5 3.5-4.5 4.5 4.5 4.5" />,
};

export function Icon({ name, spin }: { name: string; spin?: boolean }): JSX.Element {
  return (
    <svg
      class={spin ? "icon spin" : "icon"}
      viewBox="0 0 16 16"
      aria-hidden="true"
      focusable="false"
    >
      {PATHS[name]}
    </svg>
  );
}

const HEALTH_ICONS: Partial<Record<Health, string>> = {
  run_failed: "failing",
  no_heartbeat: "critical",
  not_started: "late",
  run_queued: "late",
  sensor_timeout: "late",
  due: "late",
};

export function healthIcon(health: Health): string {
  const icon = HEALTH_ICONS[health] ?? health;
  return icon in PATHS ? icon : "unknown";
}
