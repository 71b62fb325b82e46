import type { JSX } from "preact";

import { OutLink } from "./OutLink";

/** The runbook: a link if Airflow's configuration says where the documentation is, else its path. */
export function Runbook({ path, link }: { path: string; link: string | null }): JSX.Element {
  if (link) return <OutLink to={link}>Runbook</OutLink>;
  return (
    <>
      Runbook: <code>{path}</code>
    </>
  );
}
