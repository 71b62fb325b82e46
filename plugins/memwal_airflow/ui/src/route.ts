/** Hash routes: `#/` is the fleet, `#/tables/{name}` a table. */

import { useEffect, useState } from "preact/hooks";

export type Route = { view: "fleet" } | { view: "table"; name: string };

export function parse(hash: string): Route {
  const name = /^#\/tables\/([^/]+)$/.exec(hash)?.[1];
  if (name === undefined) return { view: "fleet" };
  try {
    return { view: "table", name: decodeURIComponent(name) };
  } catch {
    return { view: "fleet" };
  }
}

export function tableHref(name: string): string {
  return `#/tables/${encodeURIComponent(name)}`;
}

export function useRoute(): Route {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = (): void => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parse(hash);
}
