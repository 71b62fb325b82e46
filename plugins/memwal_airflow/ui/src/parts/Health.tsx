import type { JSX } from "preact";

import { human } from "../format";
import { HEALTH_MEANINGS, HEALTH_NAMES } from "../health";
import type { Health } from "../types";
import { Icon, healthIcon } from "./icons";

export function HealthBadge({
  health,
  reasons,
}: {
  health: Health;
  reasons: readonly string[];
}): JSX.Element {
  const why = reasons.length ? human(reasons.join("; ")) : HEALTH_MEANINGS[health];
  return (
    <span class={`health is-${health}`} title={why}>
      <Icon name={healthIcon(health)} />
      {HEALTH_NAMES[health] ?? health}
    </span>
  );
}
