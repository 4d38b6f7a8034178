// Who is looking: asked once, kept in a cookie that no script can read.

import { ask, tell } from "../api.js";
import { h } from "../dom.js";

const FAILED = {
  away: "Your provider does not answer just now. Try again in a moment.",
  refused: "Your provider has not let you in.",
  invalid: "What your provider said could not be trusted. Begin again; the gateway's log says what it was.",
  nothing: "You are signed in, and may see nothing here: a rule of the policy has to let you.",
};

/** The form. */
export function draw(onDone) {
  const field = h("input", { type: "password", name: "key", autocomplete: "current-password", required: true });
  // Not `autofocus`, which waits for the next frame: by then somebody may be typing, and the browser complains.
  queueMicrotask(() => field.focus());
  const reason = new URLSearchParams(location.search).get("signed_in");
  const said = h("p", { class: "bad", role: "alert" }, Object.hasOwn(FAILED, reason) ? FAILED[reason] : "");
  const submit = async (event) => {
    event.preventDefault();
    said.textContent = "";
    try {
      await tell("sign-in", { key: field.value });
      onDone();
    } catch (error) {
      said.textContent = error.message;
    }
  };
  const provider = h("div");
  ask("sign-in").then((ways) => {
    if (ways.provider) provider.append(h("p", null, h("a", { class: "action", href: "/dashboard/oidc/begin" }, "Sign in with your organisation")), h("p", { class: "fine" }, "Or with a key."));
  }, () => { /* then there is the key */ });
  return h("div", { class: "narrow" },
    h("h1", null, "Sign in"), provider, said,
    h("p", { class: "fine" }, "With a key of this gateway: one with ", h("code", null, "admin: true"), " sees everything, one with ", h("code", null, "viewer: true"), " its tenant."),
    h("form", { class: "form", onsubmit: submit }, h("input", { name: "username", autocomplete: "username", value: "key", hidden: true }), h("label", null, "Key", field), h("button", { class: "action first" }, "Sign in")));
}

/** What stands here where there is nothing to show. */
export function noLedger() {
  return h("div", { class: "narrow" },
    h("h1", null, "No ledger is kept"),
    h("p", null, "The dashboard shows what the ledger has. Add one to the policy file and start the gateway again:"),
    h("pre", null, 'ledger: {url: "sqlite:///ledger.sqlite3"}'),
    h("p", { class: "fine" }, "To see it with made-up weeks first: ", h("code", null, "slipstream demo")));
}
