import type { JSX } from "preact";

import { count, exact, plural } from "../format";
import type { IndexLag } from "../types";
import { Icon } from "./icons";

/** How far each index has caught up with the base table, and whether it finds its rows. */
export function Indexes({ indexes, baseRows }: { indexes: readonly IndexLag[]; baseRows: number | null }): JSX.Element {
  if (indexes.length === 0) return <p class="state small">The table has no index.</p>;
  return (
    <ul class="indexes">
      {indexes.map((index) => (
        <li key={index.name}>
          <Lag index={index} baseRows={baseRows} />
        </li>
      ))}
    </ul>
  );
}

function Lag({ index, baseRows }: { index: IndexLag; baseRows: number | null }): JSX.Element {
  const behind = index.generations > 0 || (index.rows ?? 0) > 0;
  const share =
    index.rows === null || !baseRows ? null : Math.max(0, Math.min(1, 1 - index.rows / baseRows));
  const [state, label]: [string, string] =
    index.rows === null
      ? ["unknown", "not built"]
      : index.stale
        ? ["failing", "misses rows"]
        : behind
          ? ["late", "behind"]
          : ["ok", "caught up"];
  return (
    <>
      <span class="index-name" title={index.name}>
        {index.name}
      </span>
      <span class={`index-state is-${state}`}>
        <Icon name={state} />
        {label}
      </span>
      <span class="index-track" aria-hidden="true">
        <span style={{ transform: `scaleX(${(share ?? 0).toFixed(4)})` }} />
      </span>
      <span class="index-note">
        {index.stale ? "not used until an index build replaces it · " : ""}
        {share === null ? "" : `${percent(share)} of the rows`}
        {behind
          ? ` · ${count(index.rows)} rows, ${exact(index.generations)} gen. in ${plural(index.regions, "region")} left`
          : ""}
        {"\u00a0"}
      </span>
    </>
  );
}

function percent(share: number): string {
  if (share === 1) return "100 %";
  return `${(Math.floor(share * 1000) / 10).toFixed(1)} %`;
}
