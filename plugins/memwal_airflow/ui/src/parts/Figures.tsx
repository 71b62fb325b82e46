import type { ComponentChildren, JSX } from "preact";

export interface Figure {
  name: string;
  value: ComponentChildren;
  note?: ComponentChildren;
  title?: string;
}

/** A row of figures with their names; each keeps its place for any value. */
export function Figures({ label, figures }: { label: string; figures: readonly Figure[] }): JSX.Element {
  return (
    <dl class="figures" aria-label={label}>
      {figures.map(({ name, value, note, title }) => (
        <div key={name} class="figure" title={title}>
          <dt>{name}</dt>
          <dd class="figure-value">{value}</dd>
          <dd class="figure-note">{note ?? "\u00a0"}</dd>
        </div>
      ))}
    </dl>
  );
}
