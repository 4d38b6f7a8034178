// A question to the gateway, from the page of who has no traffic yet: its answer as it comes, and what it took.

import { h } from "./dom.js";
import * as format from "./format.js";

/** The box; a gateway with keys is tried from a terminal, for the page does not keep one. */
export function tryIt({ me, again }) {
  const model = me.models[0] ?? "any-model";
  const body = { model, messages: [{ role: "user", content: "Hello!" }], stream: true };
  const line = `curl -N ${location.origin}/v1/chat/completions -H 'content-type: application/json'${me.has_keys ? ' -H "authorization: Bearer $KEY"' : ""} \\\n  -d '${JSON.stringify(body)}'`;
  if (me.has_keys) return h("div", null, h("p", null, "Try it from a terminal:"), h("pre", null, line));
  const name = h("input", { name: "model", value: model, required: true });
  const text = h("input", { name: "text", value: "What is 12+30?", required: true });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const facts = h("p", { class: "fine" });
  const button = h("button", { class: "action first" }, "Ask");
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    answer.textContent = "";
    facts.textContent = "";
    try {
      facts.textContent = await stream({ ...body, model: name.value, messages: [{ role: "user", content: text.value }], stream_options: { include_usage: true } }, answer);
    } catch (error) {
      answer.textContent = error.message;
    }
    button.disabled = false;
  };
  return h("div", null,
    h("form", { class: "form", onsubmit: submit }, h("label", null, "Model", name), h("label", null, "Question", text), h("div", { class: "tools" }, button, h("button", { class: "quiet", type: "button", onclick: again }, "Show the figures"))),
    answer, facts, h("p", { class: "fine" }, "Or from a terminal:"), h("pre", null, line));
}

async function stream(body, answer) {
  const begun = performance.now();
  const response = await fetch("/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
  if (!response.ok) throw new Error((await response.json()).error.message);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let first = null;
  let usage = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const chunk = JSON.parse(event.slice(6));
      const piece = chunk.choices?.[0]?.delta?.content ?? "";
      if (piece && first === null) first = performance.now() - begun;
      answer.append(piece);
      usage = chunk.usage ?? usage;
    }
  }
  const cost = await costOf(response.headers.get("x-request-id"));
  const cache = response.headers.get("x-cache");
  return [`first token ${format.ms(first)}`, `in all ${format.ms(performance.now() - begun)}`, usage && `${usage.prompt_tokens} + ${usage.completion_tokens} tokens`, cache && `cache: ${cache}`, cost].filter(Boolean).join("; ");
}

/** As the ledger has it, which takes about a second. */
async function costOf(id) {
  const answer = await fetch(`/v1/calls/${encodeURIComponent(id)}?wait=10`);
  if (!answer.ok) return null;
  const { cost_usd } = await answer.json();
  return cost_usd === null ? "of unknown price" : `$${cost_usd}`;
}
