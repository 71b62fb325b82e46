import type { ComponentChildren, JSX } from "preact";

import type { ApiError } from "../api";
import { moment } from "../format";
import { EVERY_SECONDS, type Polled } from "../polled";
import { OutLink } from "./OutLink";

/** Says that something is on its way, in the room that it will take. */
export function Loading({ what, tall }: { what: string; tall?: boolean }): JSX.Element {
  return (
    <div class={tall ? "state loading tall" : "state loading"} role="status">
      Loading {what} …
    </div>
  );
}

export function Empty({ children }: { children: ComponentChildren }): JSX.Element {
  return <div class="state">{children}</div>;
}

/** What to do about an answer that did not come. */
export function Failure({ error, retry }: { error: ApiError; retry?: () => void }): JSX.Element {
  return (
    <div class="state failure" role="alert">
      <p class="state-title">{title(error)}</p>
      <p>{advice(error)}</p>
      {error.status === 401 ? (
        <p>
          <OutLink to="../">Go to the log-in of Airflow</OutLink>
        </p>
      ) : (
        retry && (
          <p>
            <button type="button" onClick={retry}>
              Try again
            </button>
          </p>
        )
      )}
    </div>
  );
}

function title(error: ApiError): string {
  if (error.status === 401) return "You are not logged in";
  if (error.status === 403) return "You may not see this";
  if (error.status === 404) return "Not found";
  return "This could not be loaded";
}

function advice(error: ApiError): string {
  if (error.status === 401) {
    return "Your session has ended, or there was none. Log in to Airflow, then come back.";
  }
  return error.message;
}

/** The one line that says how fresh the figures are; its height never changes. */
export function Freshness({ polled, sampled }: { polled: Polled<unknown>; sampled?: string | null }): JSX.Element {
  const { at, error, refresh } = polled;
  const time = at === null ? "…" : moment(new Date(at).toISOString()).slice(11);
  return (
    <p class={error ? "freshness is-stale" : "freshness"}>
      <span role="status">
        {error && at !== null
          ? `Not refreshed since ${time}: ${error.status === 401 ? "log in to Airflow again" : error.message}`
          : ""}
      </span>
      {!error && (
        <span title={sampled ? `Status of the table read ${moment(sampled)}` : undefined}>
          Read at {time}, again every {EVERY_SECONDS} s
        </span>
      )}
      <button type="button" class="plain" onClick={refresh}>
        Refresh
      </button>
    </p>
  );
}
