import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { useRoute } from "./route";
import { FleetView } from "./views/FleetView";
import { TableView } from "./views/TableView";

export function App(): JSX.Element {
  const route = useRoute();
  const title = route.view === "table" ? `${route.name} · memwal` : "memwal tables";
  const first = useRef(true);

  useEffect(() => {
    document.title = title;
    // For screen readers, focus goes to the heading of the new view after a link.
    if (!first.current) document.querySelector("h1")?.focus();
    first.current = false;
    scrollTo(0, 0);
  }, [title]);

  return route.view === "table" ? (
    <TableView key={route.name} name={route.name} />
  ) : (
    <FleetView query={route.query} />
  );
}
