import type { ComponentChildren, JSX } from "preact";

interface Properties {
  id: string;
  title: string;
  children: ComponentChildren;
  note?: ComponentChildren;
  tools?: ComponentChildren;
  className?: string;
}

/** A section with its heading, a landmark by it. */
export function Panel({ id, title, note, tools, children, className }: Properties): JSX.Element {
  return (
    <section class={`panel ${className ?? ""}`} aria-labelledby={`${id}-title`}>
      <header class="panel-head">
        <h2 id={`${id}-title`}>{title}</h2>
        {note && <span class="quiet">{note}</span>}
        {tools && <div class="panel-tools">{tools}</div>}
      </header>
      {children}
    </section>
  );
}
