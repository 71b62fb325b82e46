import type { JSX } from "preact";

import { HEALTH_NAMES, reasonsText } from "../health";
import type { Health, Reason } from "../types";
import { Icon, healthIcon } from "./icons";

export function HealthBadge({
  health,
  reasons,
}: {
  health: Health;
  reasons: readonly Reason[];
}): JSX.Element {
  return (
    <span class={`health is-${health}`} title={reasonsText(reasons, health)}>
      <Icon name={healthIcon(health)} />
      {HEALTH_NAMES[health] ?? health}
    </span>
  );
}
