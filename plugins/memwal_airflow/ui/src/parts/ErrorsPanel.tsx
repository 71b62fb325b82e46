import type { JSX } from "preact";

import { ago, moment, plural, until } from "../format";
import type { JobError } from "../types";
import { jobName } from "./DueTable";
import { Panel } from "./Panel";
import { Runbook } from "./Runbook";

/** What fails, since when, and what to do about it. */
export function ErrorsPanel({
  errors,
  now,
}: {
  errors: readonly JobError[];
  now: number;
}): JSX.Element {
  return (
    <Panel id="errors" title="Failures" note="each lasts until the same succeeds once">
      <ul class="errors">
        {errors.map((error) => (
          <li key={error.job}>
            <p>
              <b class="is-failing">{jobName(error.job)}</b>{" "}
              <span class="quiet" title={moment(error.since)}>
                fails since {ago(error.since, now)}
                {error.attempts ? `, ${plural(error.attempts, "time")}` : ""}
                {error.next_try_at ? `; next try ${until(error.next_try_at, now)}` : ""}
              </span>
            </p>
            <p class="error-reason">{error.reason}</p>
            <p>
              What to do: {error.action}.{" "}
              <Runbook path={error.runbook} link={error.runbook_link} />
            </p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}
