import type { JSX } from "preact";
import { useState } from "preact/hooks";

import { shareable } from "../outside";

/** Copies the address that shows this table in Airflow. */
export function CopyLink(): JSX.Element {
  const [told, setTold] = useState("");
  const copy = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(shareable());
      setTold("copied");
    } catch {
      // Without HTTPS, or where the browser asks first: the address bar has the same address.
      setTold("not copied: take it from the address bar");
    }
  };
  return (
    <>
      <button type="button" class="small" onClick={() => void copy()}>
        Copy link
      </button>
      <span class="quiet" role="status">
        {told}
      </span>
    </>
  );
}
