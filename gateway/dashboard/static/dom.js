// Elements from plain values. Texts are only ever texts: there is no way here to make HTML of a string.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...shownOf(children));
  return element;
}

function shownOf(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Have these in an element, and nothing else; what is null or false is left out. */
export function fill(element, ...children) {
  element.replaceChildren(...shownOf(children));
}

/** An HTML element; properties that begin with `on` are listeners. */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** An SVG element. */
export function svg(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

/** A bar from one share to another one of its whole width; `mark` is a line across it. */
export function bar(from, to, kind = "", mark = null) {
  const clamp = (share) => Math.min(Math.max(share, 0), 1) * 100;
  return svg("svg", { class: "bar", viewBox: "0 0 100 5", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("rect", { class: "rail", width: 100, height: 5 }),
    svg("rect", { class: `fill ${kind}`, x: clamp(from), width: Math.max(clamp(to) - clamp(from), 0), height: 5 }),
    mark !== null && svg("rect", { class: "fill edge", x: clamp(mark), width: 0.6, height: 5 }));
}

/** A line without axes, as high as its greatest value, or as `least`. */
export function spark(values, least = 1) {
  const most = Math.max(...values, least, 1e-9);
  const points = values.map((value, index) => `${(index / Math.max(values.length - 1, 1)) * 100},${19 - (value / most) * 18}`);
  return svg("svg", { viewBox: "0 0 100 20", width: 110, height: 16, preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("polyline", { class: "spark", points: points.join(" ") }));
}

function cellText(text) {
  // A spreadsheet would reckon with what begins like this.
  const safe = /^[=+@\t\r-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/**
 * A table, and a button that saves it. Columns: {title, of(row), csv(row), number, cell(row)}; `of` is its text,
 * `csv` what is saved where that is more exact, `cell` an element in its place.
 */
export function table(name, columns, rows, { onpick = null, caption = null } = {}) {
  const save = () => {
    const lines = [columns.map((column) => cellText(column.title))];
    for (const row of rows) lines.push(columns.map((column) => cellText(String((column.csv ?? column.of)(row) ?? ""))));
    const blob = new Blob([lines.map((line) => line.join(",")).join("\r\n") + "\r\n"], { type: "text/csv" });
    const link = h("a", { href: URL.createObjectURL(blob), download: `${name}.csv` });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  const kind = (column) => (column.number ? "number" : "text");
  const body = rows.map((row) => {
    const picked = onpick && { class: "link", tabindex: 0, onclick: () => onpick(row), onkeydown: (event) => event.key === "Enter" && onpick(row) };
    return h("tr", picked || null, columns.map((column) => {
      const text = column.of(row) ?? "–";
      return h("td", { class: kind(column), title: column.number ? null : text }, column.cell ? column.cell(row) : text);
    }));
  });
  return h("div", null,
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
      h("table", null, caption && h("caption", null, caption),
        h("thead", null, h("tr", null, columns.map((column) => h("th", { class: kind(column), scope: "col" }, column.title)))),
        h("tbody", null, body))),
    h("div", { class: "tools" }, h("button", { class: "quiet", onclick: save }, "Save as CSV")));
}
