/** Hash routes: `#/` is the fleet with its filter and order, `#/tables/{name}` a table. */

import { useEffect, useState } from "preact/hooks";

import { COLUMNS, FIRST_ORDER, type Column, type Order, type Wanted } from "./fleet";
import { HEALTHS } from "./health";
import { reflect } from "./outside";
import type { Health } from "./types";

export interface FleetQuery extends Wanted {
  order: Order;
}

export type Route = { view: "fleet"; query: FleetQuery } | { view: "table"; name: string };

export const FIRST_QUERY: FleetQuery = { text: "", health: null, order: FIRST_ORDER };

export function parse(hash: string): Route {
  const name = /^#\/tables\/([^/]+)$/.exec(hash)?.[1];
  if (name === undefined) return { view: "fleet", query: parseQuery(hash) };
  try {
    return { view: "table", name: decodeURIComponent(name) };
  } catch {
    return { view: "fleet", query: FIRST_QUERY };
  }
}

function parseQuery(hash: string): FleetQuery {
  const values = new URLSearchParams(hash.split("?", 2)[1] ?? "");
  const column = values.get("sort") as Column | null;
  const health = values.get("health") as Health | null;
  return {
    text: values.get("q") ?? "",
    health: health !== null && HEALTHS.includes(health) ? health : null,
    order:
      column !== null && COLUMNS.includes(column)
        ? { column, descending: values.get("order") === "descending" }
        : FIRST_ORDER,
  };
}

export function tableHref(name: string): string {
  return `#/tables/${encodeURIComponent(name)}`;
}

export function fleetHref({ text, health, order }: FleetQuery): string {
  const values = new URLSearchParams();
  if (text) values.set("q", text);
  if (health !== null) values.set("health", health);
  if (order.column !== FIRST_ORDER.column || order.descending !== FIRST_ORDER.descending) {
    values.set("sort", order.column);
    values.set("order", order.descending ? "descending" : "ascending");
  }
  const query = values.toString();
  return query ? `#/?${query}` : "#/";
}

/** Change the route without a new entry in the history. */
export function replaceRoute(hash: string): void {
  history.replaceState(history.state, "", hash);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

let lastFleet = "#/";

/** The fleet as it was shown last. */
export function backHref(): string {
  return lastFleet;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const route = parse(hash);
  if (route.view === "fleet") lastFleet = fleetHref(route.query);
  useEffect(() => reflect(hash), [hash]);
  return route;
}
