import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { ApiError, get, tablePath } from "../api";
import { count, moment, size, words } from "../format";
import type { Collection } from "../types";
import { Panel } from "./Panel";
import { Failure, Loading } from "./states";

/** What a collection would do now. It lists the store, so it is asked for by hand. */
export function CollectionPanel({ table }: { table: string }): JSX.Element {
  const [answer, setAnswer] = useState<Collection | null>(null);
  const [failure, setFailure] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const ask = async (): Promise<void> => {
    setBusy(true);
    setFailure(null);
    try {
      setAnswer(await get<Collection>(tablePath(table, "/collection")));
    } catch (error) {
      setFailure(error instanceof ApiError ? error : new ApiError(0, String(error)));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Panel
      id="collection"
      title="Collection"
      note={answer ? `as of ${moment(answer.at)}` : "what it would delete now, and what has to stay"}
      tools={
        <button type="button" disabled={busy} onClick={() => void ask()}>
          {busy ? "Looking …" : answer ? "Look again" : "Look into the store"}
        </button>
      }
    >
      {failure ? (
        <Failure error={failure} />
      ) : busy && answer === null ? (
        <Loading what="the plan of a collection" />
      ) : answer === null ? (
        <p class="state small">Nothing is deleted by looking. On a large table it takes a moment.</p>
      ) : (
        <Plan answer={answer} />
      )}
    </Panel>
  );
}

function Plan({ answer }: { answer: Collection }): JSX.Element {
  return (
    <div class="plan">
      {answer.warnings?.map((warning) => (
        <p key={warning} class="is-late">
          {warning}
        </p>
      ))}
      <table>
        <caption>Would go</caption>
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col" class="number">Objects</th>
            <th scope="col" class="number">Bytes</th>
          </tr>
        </thead>
        <tbody>
          {answer.would_delete.map((one, index) => (
            <tr key={index}>
              <th scope="row">{words(one.kind)}</th>
              <td class="number">{count(one.count)}</td>
              <td class="number">{size(one.bytes)}</td>
            </tr>
          ))}
          {answer.would_delete.length === 0 && (
            <tr>
              <td colSpan={3} class="nothing">Nothing</td>
            </tr>
          )}
        </tbody>
      </table>
      <table>
        <caption>Stays</caption>
        <thead>
          <tr>
            <th scope="col">Kind</th>
            <th scope="col" class="number">Objects</th>
            <th scope="col" class="number">Bytes</th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {answer.stays.map((one, index) => (
            <tr key={index}>
              <th scope="row">{words(one.kind)}</th>
              <td class="number">{count(one.count)}</td>
              <td class="number">{size(one.bytes)}</td>
              <td class="why">{words(one.why)}</td>
            </tr>
          ))}
          {answer.stays.length === 0 && (
            <tr>
              <td colSpan={4} class="nothing">Nothing</td>
            </tr>
          )}
        </tbody>
      </table>
      {answer.examples.length > 0 && (
        <details class="examples">
          <summary>Examples</summary>
          <ul>
            {answer.examples.map((one, index) => (
              <li key={index}>{example(one)}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
}

/** An example is a sentence, or a decision: its kind, what it is about and the reason in words. */
function example(one: unknown): string {
  if (typeof one !== "object" || one === null) return String(one);
  const parts = one as Record<string, unknown>;
  const named = ["kind", "what", "region_id", "message", "why"].flatMap((key) =>
    typeof parts[key] === "string" ? [parts[key]] : [],
  );
  return named.length ? named.join(" · ") : JSON.stringify(one);
}
