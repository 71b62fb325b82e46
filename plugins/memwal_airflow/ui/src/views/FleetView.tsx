import type { JSX } from "preact";
import { useMemo } from "preact/hooks";

import { filtered, nextOrder, sorted, totals, type Column, type Totals } from "../fleet";
import { count, exact, plural, rate, size } from "../format";
import { HEALTHS, HEALTH_MEANINGS, HEALTH_NAMES } from "../health";
import { Figures } from "../parts/Figures";
import { FleetTable } from "../parts/FleetTable";
import { Icon, healthIcon } from "../parts/icons";
import { Empty, Failure, Freshness, Loading } from "../parts/states";
import { usePolled } from "../polled";
import { fleetHref, replaceRoute, type FleetQuery } from "../route";
import type { Fleet, Health } from "../types";

export function FleetView({ query }: { query: FleetQuery }): JSX.Element {
  const fleet = usePolled<Fleet>("fleet");
  const { text, health, order } = query;
  const change = (part: Partial<FleetQuery>): void =>
    replaceRoute(fleetHref({ ...query, ...part }));
  const all = fleet.value?.tables;
  const sums = useMemo(() => totals(all ?? []), [all]);
  const shown = useMemo(
    () => sorted(filtered(all ?? [], { text, health }), order),
    [all, text, health, order],
  );
  const now = fleet.at ?? Date.now();

  return (
    <div class="page">
      <header class="top">
        <h1 tabIndex={-1}>memwal tables</h1>
        <Freshness polled={fleet} />
      </header>
      <main>
        {fleet.value === null ? (
          fleet.error ? (
            <Failure error={fleet.error} retry={fleet.refresh} />
          ) : (
            <Loading what="the fleet" tall />
          )
        ) : fleet.value.tables.length === 0 ? (
          <Empty>
            <p class="state-title">No table is registered yet</p>
            <p>
              Register the first: <code>memwal catalog register NAME URI</code>
            </p>
          </Empty>
        ) : (
          <>
            <Sums sums={sums} />
            <div class="filters" role="search">
              <input
                type="search"
                aria-label="Filter by name, owner, tag or address"
                placeholder="Filter by name, owner, tag …"
                value={text}
                onInput={(event) => change({ text: event.currentTarget.value })}
              />
              <HealthFilter sums={sums} chosen={health} choose={(chosen) => change({ health: chosen })} />
              <span class="quiet shown" role="status">
                {shown.length === sums.tables ? "" : `${shown.length} of ${sums.tables}`}
              </span>
            </div>
            <FleetTable
              rows={shown}
              now={now}
              order={order}
              sort={(column: Column) => change({ order: nextOrder(order, column) })}
            />
          </>
        )}
      </main>
    </div>
  );
}

function Sums({ sums }: { sums: Totals }): JSX.Element {
  return (
    <Figures
      label="The whole fleet"
      figures={[
        {
          name: "Tables",
          value: exact(sums.tables),
          note: `${exact(sums.regions)} regions`,
        },
        {
          name: "Waiting rows",
          value: count(sums.rows),
          note: `${plural(sums.generations, "generation")}, ${size(sums.bytes)}`,
          title: `${exact(sums.rows)} rows are flushed and not merged`,
        },
        {
          name: "Rows in",
          value: rate(sums.rowsIn),
          note: `${count(sums.walEntries)} entries in logs`,
        },
        {
          name: "Rows merged",
          value: rate(sums.rowsMerged),
          note: `${plural(sums.running, "job")} at work`,
        },
        {
          name: "Index catch-up",
          value: count(sums.lagRows),
          note: "rows not indexed",
        },
        {
          name: "Reclaimable",
          value: size(sums.reclaimable),
          note: "merged, indexed, stored",
        },
        {
          name: "Skipped regions",
          value: exact(sums.skippedRegions),
          note: sums.skippedRegions ? "cannot be read" : "none",
        },
      ]}
    />
  );
}

interface FilterProperties {
  sums: Totals;
  chosen: Health | null;
  choose: (health: Health | null) => void;
}

function HealthFilter({ sums, chosen, choose }: FilterProperties): JSX.Element {
  return (
    <div class="chips" role="group" aria-label="Filter by health">
      {HEALTHS.filter((health) => sums.health[health] > 0 || chosen === health).map((health) => (
        <button
          key={health}
          type="button"
          class={`chip is-${health}`}
          aria-pressed={chosen === health}
          title={HEALTH_MEANINGS[health]}
          onClick={() => choose(chosen === health ? null : health)}
        >
          <Icon name={healthIcon(health)} />
          {HEALTH_NAMES[health]} <b>{sums.health[health]}</b>
        </button>
      ))}
    </div>
  );
}
