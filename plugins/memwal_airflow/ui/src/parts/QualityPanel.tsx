import type { JSX } from "preact";

import { ago, exact, moment, words } from "../format";
import type { Expectation, Quality } from "../types";
import { Figures } from "./Figures";
import { Icon } from "./icons";
import { OutLink } from "./OutLink";
import { Panel } from "./Panel";
import { Scroll } from "./Scroll";

interface Properties {
  quality: Quality | null;
  now: number;
}

/** What the latest gate or check found in the rows that it checked. */
export function QualityPanel({ quality, now }: Properties): JSX.Element {
  if (quality === null) {
    return (
      <Panel id="quality" title="Data quality">
        <p class="state small">No check of the data in the last days.</p>
      </Panel>
    );
  }
  const { expectations = [], skipped_regions: skipped = [], at, link } = quality;
  return (
    <Panel
      id="quality"
      title="Data quality"
      note={
        <>
          {quality.mode === "check" ? "check of the base table" : `gate of the merge, mode ${quality.mode}`}
          {at && <span title={moment(at)}>, {ago(at, now)}</span>}
          {link && (
            <>
              {", "}
              <OutLink to={link} label="Result and log in Airflow">result and log</OutLink>
            </>
          )}
        </>
      }
      tools={<Verdict good={quality.success} yes="all as expected" no="not as expected" />}
    >
      <Figures
        label="Checked rows"
        figures={[
          { name: "Checked", value: exact(quality.rows), note: "rows" },
          { name: "Fail", value: exact(quality.failed_rows), note: "rows" },
          { name: "In quarantine", value: exact(quality.quarantined_rows), note: "rows" },
          { name: "Wait", value: exact(skipped.length), note: "regions" },
        ]}
      />
      {expectations.length > 0 && (
        <Scroll label="Expectations and their results">
          <table class="expectations stack">
            <thead>
              <tr>
                <th scope="col">Expectation</th>
                <th scope="col">Column</th>
                <th scope="col">Severity</th>
                <th scope="col">Result</th>
                <th scope="col" class="number">
                  Rows fail
                </th>
                <th scope="col">For example</th>
              </tr>
            </thead>
            <tbody>
              {expectations.map((one, index) => (
                <Row key={index} expectation={one} />
              ))}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

function Row({ expectation }: { expectation: Expectation }): JSX.Element {
  const { type, column, severity, success, failed, examples, error } = expectation;
  return (
    <tr>
      <th scope="row">{words(type.replace(/^expect_/, ""))}</th>
      <td data-label="Column">{column && <code>{column}</code>}</td>
      <td data-label="Severity">{severity}</td>
      <td data-label="Result">
        <Verdict good={success} yes="met" no={error ? "undecided" : "not met"} />
      </td>
      <td class="number" data-label="Rows fail">
        {exact(failed)}
      </td>
      <td class="why" data-label="For example">{error ?? (examples ?? []).map((key) => Object.values(key).join(", ")).join("; ")}</td>
    </tr>
  );
}

function Verdict({ good, yes, no }: { good: boolean; yes: string; no: string }): JSX.Element {
  return (
    <span class={good ? "is-ok state-cell" : "is-critical state-cell"}>
      <Icon name={good ? "ok" : "failing"} />
      {good ? yes : no}
    </span>
  );
}
