// Parts of the page that are drawn anew under somebody's hands: focus, what is open and how far is scrolled stay.

import { fill } from "./dom.js";

/** From a part down to an element of it, child by child. Rows move, so one that can be picked is known by what it says. */
function wayTo(part, element) {
  const way = [];
  for (let at = element; at !== part; at = at.parentElement) {
    way.unshift(at.matches("tr.link") ? at.textContent : [...at.parentElement.children].indexOf(at));
  }
  return { way, tag: element.tagName };
}

function found(part, { way, tag }) {
  let at = part;
  for (const step of way) at = typeof step === "string" ? [...(at?.children ?? [])].find((row) => row.textContent === step) : at?.children[step];
  return at?.tagName === tag ? at : null;
}

/** As `fill`; whether the focus was in it, and nothing is there any more to have it. */
export function refill(part, ...children) {
  const had = document.activeElement;
  const focus = part !== had && part.contains(had) ? wayTo(part, had) : null;
  const open = [...part.querySelectorAll("details[open]")].map((element) => wayTo(part, element));
  const scrolled = [...part.querySelectorAll(".scroll")].filter((element) => element.scrollLeft > 0).map((element) => [wayTo(part, element), element.scrollLeft]);
  fill(part, ...children);
  for (const way of open) found(part, way)?.setAttribute("open", "");
  for (const [way, left] of scrolled) {
    const element = found(part, way);
    if (element) element.scrollLeft = left;
  }
  if (focus === null) return false;
  const element = found(part, focus);
  element?.focus({ preventScroll: true });
  return element === null;
}
