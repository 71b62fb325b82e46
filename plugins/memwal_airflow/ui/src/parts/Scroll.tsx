import type { ComponentChildren, JSX } from "preact";

interface Properties {
  /** Names the group for screen readers; the section around it is the landmark. */
  label: string;
  children: ComponentChildren;
  className?: string;
}

/** Room for a wide table, which the keyboard can scroll. */
export function Scroll({ label, children, className }: Properties): JSX.Element {
  return (
    <div class={`scroll ${className ?? ""}`} tabIndex={0} role="group" aria-label={label}>
      {children}
    </div>
  );
}
