import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { usePolled } from "./polled";
import { useRoute } from "./route";
import type { Me } from "./types";
import { FleetView } from "./views/FleetView";
import { TableView } from "./views/TableView";

const ME_SECONDS = 300;

export function App(): JSX.Element {
  const route = useRoute();
  const me = usePolled<Me>("me", ME_SECONDS);
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
    <TableView key={route.name} name={route.name} me={me.value} />
  ) : (
    <FleetView query={route.query} />
  );
}
