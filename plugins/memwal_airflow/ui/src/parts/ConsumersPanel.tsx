import type { JSX } from "preact";

import { duration, exact, size } from "../format";
import type { Consumer } from "../types";
import { Icon } from "./icons";
import { Panel } from "./Panel";
import { Scroll } from "./Scroll";

/** Who reads the changes of the table, and what is kept for it. */
export function ConsumersPanel({ consumers }: { consumers: readonly Consumer[] }): JSX.Element {
  return (
    <Panel id="consumers" title="Consumers of changes">
      <Scroll label="Consumers">
        <table class="skipped stack">
          <thead>
            <tr>
              <th scope="col">Consumer</th>
              <th scope="col" class="number">Committed version</th>
              <th scope="col" class="number">Idle</th>
              <th scope="col" class="number">Kept for it</th>
              <th scope="col">Process</th>
              <th scope="col">State</th>
            </tr>
          </thead>
          <tbody>
            {consumers.map((one) => (
              <tr key={one.name}>
                <th scope="row">{one.name}</th>
                <td class="number" data-label="Committed version">
                  {one.version === null ? "nothing" : exact(one.version)}
                </td>
                <td class="number" data-label="Idle">
                  {duration(one.idle_seconds)}
                </td>
                <td class="number" data-label="Kept for it">
                  {size(one.held_bytes)}
                </td>
                <td data-label="Process">{one.owner}</td>
                <td class="why" data-label="State">
                  <Icon name={one.expired === null ? "ok" : "failing"} />
                  {one.expired === null ? "active" : `expired: ${one.expired}`}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </Panel>
  );
}
