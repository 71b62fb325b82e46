import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { count, duration, exact, size } from "../format";
import type { Region } from "../types";

const PAGE = 100;

function state(region: Region, skipped: ReadonlySet<string>): string {
  if (skipped.has(region.region_id)) return "skipped";
  if (region.needs_recovery) return "to recover";
  return region.sealed ? "sealed" : "open";
}

/** The regions as rows, a page of them at a time. */
export function RegionTable({
  regions,
  skipped,
}: {
  regions: readonly Region[];
  skipped: ReadonlySet<string>;
}): JSX.Element {
  const [wanted, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(regions.length / PAGE));
  const page = Math.min(wanted, pages - 1);
  const first = page * PAGE;
  const shown = regions.slice(first, first + PAGE);
  return (
    <>
      <div class="scroll region-rows" tabIndex={0} role="region" aria-label="Regions as a table">
        <table>
          <thead>
            <tr>
              <th scope="col">Region</th>
              <th scope="col">State</th>
              <th scope="col" class="number">Oldest waits</th>
              <th scope="col" class="number">Generations</th>
              <th scope="col" class="number">Rows</th>
              <th scope="col" class="number">Bytes</th>
              <th scope="col" class="number">Log entries</th>
              <th scope="col" class="number">Merged up to</th>
              <th scope="col" class="number">Stored</th>
              <th scope="col" class="number">Reclaimable</th>
              <th scope="col" class="number" title="Merged, and kept because a client other than memwal claimed the region last">
                Held
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((region) => (
              <tr key={region.region_id}>
                <th scope="row">
                  <code>{region.region_id}</code>
                </th>
                <td>{state(region, skipped)}</td>
                <td class="number">{duration(region.oldest_backlog_seconds)}</td>
                <td class="number">{exact(region.backlog_generations)}</td>
                <td class="number">{count(region.backlog_rows)}</td>
                <td class="number">{size(region.backlog_bytes)}</td>
                <td class="number">{count(region.unflushed_wal_entries)}</td>
                <td class="number">{exact(region.merged_generation)}</td>
                <td class="number">{exact(region.retained_generations)}</td>
                <td class="number">{size(region.reclaimable_bytes)}</td>
                <td class="number">{size(region.held_bytes)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {pages > 1 && (
        <nav class="pages" aria-label="Pages of regions">
          <button type="button" disabled={page === 0} onClick={() => setPage(page - 1)}>
            Previous
          </button>
          <span role="status">
            {exact(first + 1)} to {exact(first + shown.length)} of {exact(regions.length)}
          </span>
          <button type="button" disabled={page === pages - 1} onClick={() => setPage(page + 1)}>
            Next
          </button>
        </nav>
      )}
    </>
  );
}
