// What is asked of the gateway. An answer is its JSON; a failure is an Error that says what to do.

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
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
  const known = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(known).toString();
  let response;
  try {
    response = await fetch(`/dashboard/api/${path}${search ? `?${search}` : ""}`, { headers: { accept: "application/json" } });
  } catch {
    throw new Failure(0, "the gateway does not answer");
  }
  return answered(response);
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
