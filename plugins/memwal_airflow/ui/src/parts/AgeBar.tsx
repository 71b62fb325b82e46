import type { JSX } from "preact";

import { duration, short } from "../format";
import { level, position } from "../health";

interface Properties {
  seconds: number | null | undefined;
  late: number;
  critical: number;
  /** Only the bar: the age stands beside it. */
  bare?: boolean;
}

/** The age of the oldest waiting generation against its limit, the mark in the middle. */
export function AgeBar({ seconds, late, critical, bare }: Properties): JSX.Element {
  const state = level(seconds, late, critical);
  const words =
    seconds === null || seconds === undefined
      ? "nothing waits"
      : `${duration(seconds)}; late at ${duration(late)}, critical at ${duration(critical)}`;
  return (
    <span class={`age is-${state}`} title={words}>
      {!bare && (
        <span class="age-text">
          <b>{seconds === null || seconds === undefined ? "none" : short(seconds)}</b>
          <span class="quiet"> / {short(late)}</span>
        </span>
      )}
      <span class="age-track" aria-hidden="true">
        <span
          class="age-fill"
          style={{ transform: `scaleX(${position(seconds, late, critical).toFixed(3)})` }}
        />
      </span>
    </span>
  );
}
