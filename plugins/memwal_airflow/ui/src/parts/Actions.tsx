import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { ApiError, post, tablePath } from "../api";
import { shortId } from "../format";
import { ACTION_MEANINGS, ACTION_NAMES, actions, order, type Action } from "../orders";
import type { Started, TableDetail } from "../types";
import { OutLink } from "./OutLink";

interface Properties {
  table: TableDetail;
  /** Why nothing can be started; null when it can. */
  why: string | null;
  region: string | null;
  started: () => void;
}

type Outcome = { action: Action; answer: Started } | { action: Action; failure: string } | null;

/** Buttons that start runs. Each asks once more, in place: the frame allows no dialogs. */
export function Actions({ table, why, region, started }: Properties): JSX.Element {
  const [asked, setAsked] = useState<Action | null>(null);
  const [busy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState<Outcome>(null);
  const confirm = useRef<HTMLButtonElement>(null);
  const buttons = useRef<Partial<Record<Action, HTMLButtonElement | null>>>({});
  const left = useRef<Action | null>(null);
  const due = table.due["merge"]?.reason != null;
  const [force, setForce] = useState(!due);
  const [onlyRegion, setOnlyRegion] = useState(false);

  // The question takes the place of the buttons, and the focus; it goes back with them.
  useLayoutEffect(() => {
    if (asked !== null) confirm.current?.focus();
    else if (left.current !== null) buttons.current[left.current]?.focus();
    left.current = asked;
  }, [asked]);

  const ask = (action: Action): void => {
    setOutcome(null);
    setForce(!due);
    setOnlyRegion(false);
    setAsked(action);
  };
  const start = async (action: Action): Promise<void> => {
    setBusy(true);
    const wanted = order(action, { force, region: onlyRegion ? region : null });
    try {
      const answer = await post<Started>(tablePath(table.table, "/runs"), wanted);
      setOutcome({ action, answer });
      started();
    } catch (error) {
      setOutcome({ action, failure: error instanceof ApiError ? error.message : String(error) });
    } finally {
      setBusy(false);
      setAsked(null);
    }
  };

  return (
    <section
      class="actions"
      aria-label="Start a run"
      onKeyDown={(event) => {
        if (event.key === "Escape") setAsked(null);
      }}
    >
      <div class="action-row">
        {asked === null ? (
          actions(table.status?.mem_wal ?? true).map((action) => (
            <button
              key={action}
              type="button"
              ref={(element) => {
                buttons.current[action] = element;
              }}
              class={action === "merge" || action === "run" ? "primary" : ""}
              disabled={why !== null}
              title={why ?? ACTION_MEANINGS[action]}
              onClick={() => ask(action)}
            >
              {ACTION_NAMES[action]}
            </button>
          ))
        ) : (
          <>
            {asked === "merge" && (
              <>
                <Check checked={force} set={setForce} title="In quiet hours, below every limit, and skipped regions too">
                  Even if not due
                </Check>
                {region !== null && (
                  <Check checked={onlyRegion} set={setOnlyRegion} title={region}>
                    Only region {shortId(region)}
                  </Check>
                )}
              </>
            )}
            <button
              type="button"
              class="primary"
              ref={confirm}
              aria-describedby="action-note"
              disabled={busy}
              onClick={() => void start(asked)}
            >
              {busy ? "Starting …" : `Start ${asked === "dry" ? "dry run" : asked}`}
            </button>
            <button type="button" onClick={() => setAsked(null)}>
              Cancel
            </button>
          </>
        )}
      </div>
      <p id="action-note" class="action-note" role="status">
        {asked !== null ? (
          ACTION_MEANINGS[asked]
        ) : outcome === null ? (
          <span class="quiet">{why ?? "\u00a0"}</span>
        ) : "failure" in outcome ? (
          <span class="is-critical">
            {ACTION_NAMES[outcome.action]} was not started: {outcome.failure}
          </span>
        ) : (
          <>
            {ACTION_NAMES[outcome.action]}: started as{" "}
            <OutLink to={outcome.answer.link}>{outcome.answer.dag_run_id}</OutLink>
            {outcome.answer.paused && (
              <span class="is-late">; it waits, since the DAG is paused in Airflow</span>
            )}
          </>
        )}
      </p>
    </section>
  );
}

interface CheckProperties {
  checked: boolean;
  set: (checked: boolean) => void;
  title: string;
  children: ComponentChildren;
}

function Check({ checked, set, title, children }: CheckProperties): JSX.Element {
  return (
    <label class="check" title={title}>
      <input
        type="checkbox"
        checked={checked}
        onChange={(event) => set(event.currentTarget.checked)}
      />
      <span>{children}</span>
    </label>
  );
}
