/** What the page knows of the Airflow UI around it: where links lead, and its theme. */

/** The window around, when there is one of the same origin. */
function around(): Window | null {
  try {
    // Reading the document is what throws for another origin.
    return window.parent !== window && window.parent.document !== null ? window.parent : null;
  } catch {
    return null;
  }
}

/**
 * Follow a link in the whole window. Airflow's frame may not navigate it, but a link that belongs
 * to the document around may.
 */
export function follow(event: MouseEvent): void {
  const outside = around();
  const link = event.currentTarget as HTMLAnchorElement;
  if (outside === null || event.button !== 0 || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  const proxy = outside.document.createElement("a");
  proxy.href = link.href;
  proxy.click();
}

/**
 * Show the route in the address of Airflow's page around this one, so that the address can be
 * copied and survives a reload. Whole, since Airflow's page has a base address of its own.
 */
export function reflect(hash: string): void {
  const outside = around();
  if (outside === null || hash === "") return;
  const { pathname, search } = outside.location;
  outside.history.replaceState(outside.history.state, "", pathname + search + hash);
}

/** The route in the address of Airflow's page around this one; null without one. */
export function reflected(): string | null {
  const hash = around()?.location.hash ?? "";
  return hash.startsWith("#/") ? hash : null;
}

/** The address that shows what this page shows: that of Airflow's page around it, if there is one. */
export function shareable(): string {
  return (around() ?? window).location.href;
}

/** Only addresses that a link may safely have. */
export function safeHref(link: string | null | undefined): string | null {
  if (!link) return null;
  try {
    const url = new URL(link, document.baseURI);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

export type Theme = "light" | "dark";

function airflowTheme(): Theme | null {
  const classes = around()?.document.documentElement.classList;
  if (classes?.contains("dark")) return "dark";
  return classes?.contains("light") ? "light" : null;
}

/** Set `data-theme` on the page and keep it at what Airflow, or else the system, prefers. */
export function watchTheme(): void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const theme = airflowTheme() ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset["theme"] = theme;
    dispatchEvent(new Event("themechange"));
  };
  apply();
  dark.addEventListener("change", apply);
  const outside = around();
  if (outside !== null) {
    const observer = new MutationObserver(apply);
    observer.observe(outside.document.documentElement, { attributeFilter: ["class"] });
  }
}
