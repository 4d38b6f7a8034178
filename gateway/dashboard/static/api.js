// What is asked of the gateway. An answer is its JSON; a failure is an Error that says what to do.

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const MOST_KNOWN = 50;
const known = new Map();
let spentMs = 0;

/** What the gateway's processor has spent on answers since this was asked last, in milliseconds. */
export function takeSpent() {
  const spent = spentMs;
  spentMs = 0;
  return spent;
}

/** Forget all answers: somebody else looks. */
export function forget() {
  known.clear();
}

async function answered(response) {
  if (response.ok) return response.json();
  let message = `the gateway answered with ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch { /* then it is not the gateway that has answered */ }
  throw new Failure(response.status, message);
}

/** GET /dashboard/api/PATH. Raises: Failure, with status 0 where the gateway is away. */
export async function ask(path, query = {}) {
  const fields = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(fields).toString();
  const url = `/dashboard/api/${path}${search ? `?${search}` : ""}`;
  const last = known.get(url);
  let response;
  try {
    response = await fetch(url, { headers: { accept: "application/json", ...(last ? { "if-none-match": last.tag } : {}) } });
  } catch {
    throw new Failure(0, "the gateway does not answer");
  }
  // It was true then, and still is.
  if (response.status === 304) return { ...last.value, as_of: last.value.as_of && last.value.as_of + (performance.now() - last.at) / 1000 };
  spentMs += Number(/dur=([\d.]+)/.exec(response.headers.get("server-timing"))?.[1] ?? 0);
  const value = await answered(response);
  const tag = response.headers.get("etag");
  if (known.size > MOST_KNOWN) known.clear();
  if (tag) known.set(url, { tag, value, at: performance.now() });
  return value;
}

/** POST or DELETE, which changes something. */
export async function tell(path, body, method = "POST") {
  const headers = { "content-type": "application/json", "x-slipstream-csrf": "1" };
  let response;
  try {
    response = await fetch(`/dashboard/api/${path}`, { method, headers, body: JSON.stringify(body) });
  } catch {
    throw new Failure(0, "the gateway does not answer");
  }
  return answered(response);
}

/** The same of what is told line by line while it is found out; an abort by `signal` ends it here and there. */
export async function told(path, body, signal, onMessage) {
  const headers = { "content-type": "application/json", "x-slipstream-csrf": "1" };
  let rest = "";
  try {
    const response = await fetch(`/dashboard/api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (!response.ok) return await answered(response);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + piece.value).split("\n");
      rest = lines.pop();
      lines.forEach((line) => onMessage(JSON.parse(line)));
    }
  } catch (error) {
    if (error instanceof Failure) throw error;
    throw new Failure(0, signal.aborted ? "Stopped." : "the gateway does not answer");
  }
  return null;
}
