// The latest decisions, newest first. While somebody points or tabs into them, nothing moves under their fingers.

import { h, bar, text } from "./dom.js";
import { clock, count, ms, why } from "./format.js";

const MOST_ROWS = 60;
const SHOWN = {
  all: () => true,
  pulls: (row) => row.source != null,
  failed: (row) => row.failed || row.state === "retried" || row.attempt > 1,
};

const STATES = { waiting: "waiting", streaming: "streaming", retried: "retried elsewhere" };

function status(row) {
  if (row.state !== "done") return { kind: row.state === "retried" ? "warn" : "quiet", words: STATES[row.state] };
  return { kind: row.failed ? "bad" : "good", words: row.failed ? `failed, ${row.status}` : String(row.status) };
}

function reused(row) {
  const cached = row.reported_cached ?? row.predicted_cached;
  if (row.tokens == null || cached == null) return bar(0, "–");
  return bar(cached / Math.max(1, row.tokens), count(cached), row.source ? "pulled" : "");
}

export class Decisions {
  constructor({ table, held, which, open }) {
    this.body = table.tBodies[0];
    this.held = held;
    this.open = open;
    this.rows = new Map();
    this.kept = new Map();
    this.which = which;
    which.addEventListener("change", () => this.rebuild());
    const look = () => this.settle();
    table.addEventListener("pointerleave", look);
    table.addEventListener("focusout", () => setTimeout(look));
    this.table = table;
    this.shorten = (name) => name;
  }

  get busy() {
    const focused = document.activeElement;
    return this.table.matches(":hover") || (focused !== document.body && this.table.contains(focused));
  }

  replace(rows, shorten) {
    this.shorten = shorten;
    this.kept = new Map(rows.map((row) => [row.n, row]));
    this.rebuild();
  }

  add(rows, most, shorten) {
    this.shorten = shorten;
    for (const row of rows) this.kept.set(row.n, row);
    for (const number of this.kept.keys()) {
      if (this.kept.size <= most) break;
      this.kept.delete(number);
    }
    for (const row of rows) if (this.rows.has(row.n)) this.fill(row);
    this.settle();
  }

  rebuild() {
    this.rows.clear();
    this.body.replaceChildren();
    this.settle(true);
  }

  /** Bring in what is new, unless that would move what somebody is about to open. */
  settle(anyway = false) {
    const wanted = [...this.kept.values()].filter(SHOWN[this.which.value]).slice(-MOST_ROWS);
    const fresh = wanted.filter((row) => !this.rows.has(row.n));
    if (!anyway && this.busy && this.rows.size) {
      text(this.held, fresh.length ? `${fresh.length} more when you leave the table` : "");
      return;
    }
    text(this.held, "");
    for (const row of fresh) {
      const element = h("tr", { "data-decision": row.n, onclick: () => this.open(row.n) });
      this.rows.set(row.n, element);
      this.fill(row);
      this.body.prepend(element);
    }
    const numbers = new Set(wanted.map((row) => row.n));
    for (const [number, element] of this.rows) {
      if (numbers.has(number)) continue;
      element.remove();
      this.rows.delete(number);
    }
    if (!this.rows.size) this.body.replaceChildren(h("tr", { class: "none" }, h("td", { colspan: "8" }, "None yet, since this page is open.")));
    else this.body.querySelector(".none")?.remove();
  }

  fill(row) {
    const state = status(row);
    const cell = (label, kind, ...content) => h("td", { class: kind, "data-label": label }, content);
    const source = row.source
      ? h("span", { class: "mono from" }, `← ${this.shorten(row.source)}, ${count(row.pulled)} tokens`)
      : h("span", { class: "quiet" }, why(row.reason));
    const open = h("button", { type: "button", class: "link mono", "aria-haspopup": "dialog", onclick: (event) => {
      event.stopPropagation();
      this.open(row.n);
    } }, clock(row.at));
    const focused = this.rows.get(row.n).contains(document.activeElement);
    this.rows.get(row.n).replaceChildren(
      h("th", { scope: "row" }, open, h("span", { class: "under mono" }, row.id.length > 12 ? `${row.id.slice(0, 12)}…` : row.id)),
      cell("Pod", "mono", this.shorten(row.pod), row.rank ? ` rank ${row.rank}` : ""),
      cell("Why this source", "why", h("span", { class: `chip ${row.reason}`, title: why(row.reason) }, row.reason), source),
      cell("Prompt", "num", count(row.tokens)),
      cell("Reused", "", reused(row)),
      cell("Expected", "num quiet", ms(row.predicted_ms)),
      cell("First token", "num", ms(row.taken_ms)),
      cell("Status", "", h("span", { class: "chip", "data-kind": state.kind }, state.words)));
    if (focused) open.focus();
  }
}
