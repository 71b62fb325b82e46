import type { JSX } from "preact";

import { count, exact, plural, rate, size } from "../format";
import { layers, type Levels as Sums } from "../levels";

const MOST = 8;

interface Properties {
  sums: Sums;
  rowsIn: number | null;
  rowsMerged: number | null;
  version: number;
  indexes: number;
  behind: number;
}

/** The way of a row, from the log to the base table, as a picture with its figures. */
export function LevelsPicture({ sums, rowsIn, rowsMerged, version, indexes, behind }: Properties): JSX.Element {
  return (
    <ol class="levels">
      <Level
        kind="wal"
        name="Log"
        value={count(sums.walEntries)}
        unit="entries not flushed"
        note={
          sums.toRecover
            ? `in ${plural(sums.walRegions, "region")}, ${exact(sums.toRecover)} without a living writer`
            : `in ${plural(sums.walRegions, "region")}`
        }
        drawn={layers(sums.walEntries, MOST)}
      />
      <Flow text={rate(rowsIn)} what="flushed" />
      <Level
        kind="waiting"
        name="Waiting"
        value={count(sums.waiting)}
        unit="generations"
        note={`${count(sums.waitingRows)} rows, ${size(sums.waitingBytes)} in ${plural(sums.waitingRegions, "region")}`}
        drawn={layers(sums.waiting, MOST)}
      />
      <Flow text={rate(rowsMerged)} what="merged" />
      <Level
        kind="base"
        name="Base table"
        value={count(sums.baseRows)}
        unit="rows"
        note={`version ${exact(version)}; ${indexes ? `${exact(indexes - behind)} of ${plural(indexes, "index", "indexes")} caught up` : "no maintained index"}`}
        drawn={1}
      />
      <Flow text={size(sums.reclaimableBytes)} what="reclaimable" after />
      <Level
        kind="retained"
        name="Merged, still stored"
        value={count(sums.retained)}
        unit="generations"
        note={`${count(sums.reclaimable)} reclaimable, ${count(sums.retained - sums.reclaimable)} await indexes`}
        drawn={layers(sums.retained, MOST)}
      />
    </ol>
  );
}

interface LevelProperties {
  kind: "wal" | "waiting" | "retained" | "base";
  name: string;
  value: string;
  unit: string;
  note: string;
  drawn: number;
}

function Level({ kind, name, value, unit, note, drawn }: LevelProperties): JSX.Element {
  return (
    <li class={`level level-${kind}`}>
      <span class="level-name">{name}</span>
      <span class="strata" aria-hidden="true">
        {Array.from({ length: drawn }, (_, index) => (
          <span key={index} class="stratum" />
        ))}
      </span>
      <span class="level-value">
        {value} <small>{unit}</small>
      </span>
      <span class="level-note">{note}</span>
    </li>
  );
}

function Flow({ text, what, after }: { text: string; what: string; after?: boolean }): JSX.Element {
  return (
    <li class={after ? "flow flow-after" : "flow"}>
      <b>{text}</b>
      <svg viewBox="0 0 48 10" aria-hidden="true">
        <path d="M0 5h44m-4-4 4.5 4-4.5 4" />
      </svg>
      <span>{what}</span>
    </li>
  );
}
