import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { ApiError, post, tablePath } from "../api";
import { until } from "../format";
import type { SkippedRegion } from "../types";
import { Panel } from "./Panel";
import { Scroll } from "./Scroll";

interface Properties {
  table: string;
  skipped: readonly SkippedRegion[];
  why: string | null;
  now: number;
  done: () => void;
}

const SHOWN = 100;

/** Regions that merges leave out, and the button that has them tried again. */
export function SkippedPanel({ table, skipped, why, now, done }: Properties): JSX.Element {
  const [busy, setBusy] = useState(false);
  const [message, setMessage] = useState("");
  const retry = async (regions: string[]): Promise<void> => {
    setBusy(true);
    try {
      await post(tablePath(table, "/retry"), { regions });
      setMessage(regions.length === 1 ? "The next merge will retry it." : "The next merge will retry all.");
      done();
    } catch (error) {
      setMessage(error instanceof ApiError ? error.message : String(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel
      id="skipped"
      title={`Skipped regions (${skipped.length})`}
      note={<span role="status">{message || "A generation of each cannot be read; merges continue with the other regions."}</span>}
      tools={
        <button
          type="button"
          disabled={busy || why !== null}
          title={why ?? undefined}
          onClick={() => void retry(skipped.map((one) => one.region_id))}
        >
          Retry all
        </button>
      }
    >
      <Scroll label="Regions that are skipped">
        <table class="skipped stack">
          <thead>
            <tr>
              <th scope="col">Region</th>
              <th scope="col" class="number">Generation</th>
              <th scope="col">Why</th>
              <th scope="col" class="number">Tries</th>
              <th scope="col">Next try</th>
              <th scope="col">
                <span class="hidden">Retry</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {skipped.slice(0, SHOWN).map((one) => (
              <tr key={one.region_id}>
                <th scope="row">
                  <code>{one.region_id}</code>
                </th>
                <td class="number" data-label="Generation">
                  {one.generation}
                </td>
                <td class="why" data-label="Why">
                  {one.reason}
                </td>
                <td class="number" data-label="Tries">
                  {one.attempts}
                </td>
                <td class="nowrap" data-label="Next try">{until(one.next_try_at, now)}</td>
                <td>
                  <button
                    type="button"
                    class="small"
                    disabled={busy || why !== null}
                    aria-label={`Retry region ${one.region_id}`}
                    onClick={() => void retry([one.region_id])}
                  >
                    Retry
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
      {skipped.length > SHOWN && <p class="quiet">The first {SHOWN} are shown.</p>}
    </Panel>
  );
}
