import type { JSX } from "preact";

import { duration, exact, size } from "../format";
import { Panel } from "./Panel";

/** The policy of a table, as it is in the catalog: with the keys that `policy set` takes. */
export function PolicyPanel({ policy }: { policy: Record<string, unknown> }): JSX.Element {
  return (
    <Panel id="policy" title="Policy" note="changed with memwal catalog policy set">
      <dl class="pairs policy">
        {Object.entries(policy).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{shown(name, value)}</dd>
          </div>
        ))}
      </dl>
    </Panel>
  );
}

function shown(name: string, value: unknown): string {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") {
    if (name.endsWith("_seconds")) return duration(value);
    if (/_bytes$/.test(name)) return size(value);
    return name === "schedule" ? `every ${duration(value)}` : exact(value);
  }
  if (name === "schedule" && value === "@due") return "when a limit is reached";
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
