import type { ComponentChildren, JSX } from "preact";

import { follow, safeHref } from "../outside";
import { Icon } from "./icons";

interface Properties {
  to: string | null | undefined;
  children: ComponentChildren;
  label?: string;
}

/** A link to another page of Airflow, for the whole window. Without an address: its text alone. */
export function OutLink({ to, children, label }: Properties): JSX.Element {
  const href = safeHref(to);
  if (href === null) return <>{children}</>;
  return (
    <a href={href} target="_top" class="out" onClick={follow} {...(label ? { "aria-label": label } : {})}>
      {children}
      <Icon name="out" />
    </a>
  );
}
