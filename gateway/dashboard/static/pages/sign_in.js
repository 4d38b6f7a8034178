// Who is looking: asked once, kept in a cookie that no script can read.

import { tell } from "../api.js";
import { h } from "../dom.js";

/** The form. */
export function draw(onDone) {
  const field = h("input", { type: "password", name: "key", autocomplete: "current-password", required: true, autofocus: true });
  const said = h("p", { class: "bad", role: "alert" });
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
  return h("div", { class: "narrow" },
    h("h1", null, "Sign in"),
    h("p", { class: "fine" }, "With a key of this gateway: one with ", h("code", null, "admin: true"), " sees everything, one with ", h("code", null, "viewer: true"), " its tenant."),
    h("form", { class: "form", onsubmit: submit }, h("input", { name: "username", autocomplete: "username", value: "key", hidden: true }), h("label", null, "Key", field), h("button", { class: "action first" }, "Sign in"), said));
}

/** What stands here where there is nothing to show. */
export function noLedger() {
  return h("div", { class: "narrow" },
    h("h1", null, "No ledger is kept"),
    h("p", null, "The dashboard shows what the ledger has. Add one to the policy file and start the gateway again:"),
    h("pre", null, 'ledger: {url: "sqlite:///ledger.sqlite3"}'),
    h("p", { class: "fine" }, "To see it with a made-up week first: ", h("code", null, "slipstream demo")));
}
