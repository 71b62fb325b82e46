import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { count, duration, exact, size } from "../format";
import type { Region } from "../types";
import { Scroll } from "./Scroll";

const PAGE = 100;

function state(region: Region, skipped: ReadonlyMap<string, string>): string {
  const reason = skipped.get(region.region_id);
  if (reason !== undefined) return `skipped: ${reason}`;
  if (region.missing_wal_entry !== null) return `log entry ${region.missing_wal_entry} is missing`;
  if (region.merged_before !== null) return `went back behind generation ${region.merged_before}`;
  if (region.needs_recovery) return "to recover";
  return region.sealed ? "sealed" : "open";
}

/** The regions as rows, a page of them at a time. */
export function RegionTable({
  regions,
  skipped,
}: {
  regions: readonly Region[];
  skipped: ReadonlyMap<string, string>;
}): JSX.Element {
  const [wanted, setPage] = useState(0);
  const pages = Math.max(1, Math.ceil(regions.length / PAGE));
  const page = Math.min(wanted, pages - 1);
  const first = page * PAGE;
  const shown = regions.slice(first, first + PAGE);
  return (
    <>
      <Scroll label="Regions as a table" className="region-rows">
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
                <td class="region-state">{state(region, skipped)}</td>
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
      </Scroll>
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
