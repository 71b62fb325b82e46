/** Requests to the API beside the page. */

export class ApiError extends Error {
  /** `status` is 0 when there was no answer at all. */
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Address of an API path, relative to the page, so that any prefix of the server works. */
function address(path: string): string {
  return new URL(`api/${path}`, document.baseURI.replace(/#.*$/, "")).href;
}

export function tablePath(name: string, rest = ""): string {
  return `tables/${encodeURIComponent(name)}${rest}`;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return call<T>(path, { ...(signal ? { signal } : {}) });
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return call<T>(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", "X-Requested-With": "memwal" },
  });
}

async function call<T>(path: string, init: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch(address(path), { credentials: "same-origin", ...init });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer.");
  }
  if (!response.ok) throw new ApiError(response.status, await complaint(response));
  try {
    return (await response.json()) as T;
  } catch {
    // A proxy that answers a request with its log-in page, for example.
    throw new ApiError(response.status, "The server answered with something that is not JSON.");
  }
}

async function complaint(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const detail: unknown = (JSON.parse(text) as { detail?: unknown }).detail;
    if (typeof detail === "string") return detail;
    if (Array.isArray(detail)) {
      return detail.map((one: { msg?: string }) => one.msg ?? String(one)).join("; ");
    }
  } catch {
    // Not JSON: the status has to do.
  }
  return `The server answered ${response.status} ${response.statusText}`.trim() + ".";
}
