/** Values of the API that are polled while the page is visible. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { ApiError, get } from "./api";

export interface Polled<T> {
  /** The last answer; it stays when a later request fails. */
  value: T | null;
  /** Of the last request; null when it succeeded. */
  error: ApiError | null;
  /** When the value came, in milliseconds. */
  at: number | null;
  refresh: () => void;
}

export const EVERY_SECONDS = 10;

/**
 * Read `path` now, every so often while the page is visible, and when it becomes so. Without a
 * path nothing is read.
 */
export function usePolled<T>(path: string | null, everySeconds: number = EVERY_SECONDS): Polled<T> {
  const [state, setState] = useState<Omit<Polled<T>, "refresh">>({
    value: null,
    error: null,
    at: null,
  });
  const [asked, setAsked] = useState(0);
  const last = useRef(0);

  useEffect(() => {
    const controller = new AbortController();
    let busy = false;
    const read = async (): Promise<void> => {
      if (busy || path === null) return;
      busy = true;
      last.current = Date.now();
      try {
        const value = await get<T>(path, controller.signal);
        setState({ value, error: null, at: Date.now() });
      } catch (error) {
        if (controller.signal.aborted) return;
        const known = error instanceof ApiError ? error : new ApiError(0, String(error));
        setState((before) => ({ ...before, error: known }));
      } finally {
        busy = false;
      }
    };
    const tick = (): void => {
      if (!document.hidden && Date.now() - last.current >= everySeconds * 1000 - 50) void read();
    };
    void read();
    const timer = setInterval(tick, 1000);
    document.addEventListener("visibilitychange", tick);
    return () => {
      controller.abort();
      clearInterval(timer);
      document.removeEventListener("visibilitychange", tick);
    };
  }, [path, everySeconds, asked]);

  const refresh = useCallback(() => setAsked((before) => before + 1), []);
  return { ...state, refresh };
}
