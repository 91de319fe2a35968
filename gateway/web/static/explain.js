// A decision in full: candidates, what they have, what each scorer says.

import { h, bar } from "./dom.js";
import { count, ms, nameOf, percent, why } from "./format.js";

const TOKENS_FROM = {
  given: "token ids came with the request",
  local: "tokenized in the gateway",
  pod: "tokenized by a pod",
  none: "its tokens are not known",
};

function inWords(decision, shorten) {
  const pod = h("strong", { class: "mono" }, shorten(nameOf(decision.chosen)));
  const ours = decision.candidates.find((each) => each.pod === decision.chosen && each.rank === decision.chosen_rank);
  const soonest = ours?.predicted_ttft_ms;
  const among = decision.candidates.length;
  const parts = ["On ", pod, `, of ${among} ${among === 1 ? "pod" : "candidates"}`];
  if (soonest != null) parts.push(`; first token expected after ${ms(soonest)}`);
  parts.push(". ");
  if (decision.source) {
    parts.push("It pulls from ", h("strong", { class: "mono" }, shorten(nameOf(decision.source.pod))),
      `, which holds ${count(decision.source.cached_tokens)} tokens of the prompt.`);
  } else {
    parts.push(`No source is named: ${why(decision.source_reason)}.`);
  }
  return h("p", { class: "said" }, parts);
}

function facts(decision, request) {
  const told = [
    ["Prompt", decision.tokens == null ? "not known" : `${count(decision.tokens)} tokens`],
    ["Tokens", TOKENS_FROM[decision.tokens_from] + (decision.tokens_reason ? ` (${decision.tokens_reason})` : "")],
    ["Reuse expected", decision.predicted_cached_tokens == null ? "not known" : `${count(decision.predicted_cached_tokens)} tokens`],
  ];
  if (request) {
    told.push(["Reuse reported", request.reported_cached == null ? "not told" : `${count(request.reported_cached)} tokens`]);
    told.push(["First token", `${ms(request.taken_ms)} (expected ${ms(request.predicted_ms)})`]);
    if (request.duration_ms != null) told.push(["Answer", `${request.status} after ${ms(request.duration_ms)}`]);
    told.push(["Model", request.model ?? "any"], ["Request", request.id]);
  }
  if (decision.filters_skipped.length) told.push(["Filters skipped", decision.filters_skipped.join(", ")]);
  return h("dl", { class: "facts" }, told.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** All candidates, best first; those that a filter dropped at the end. */
function table(decision, shorten) {
  const scorers = [...new Set(decision.candidates.flatMap((each) => Object.keys(each.scores)))];
  const isChosen = (each) => each.pod === decision.chosen && each.rank === decision.chosen_rank;
  const best = Math.max(...decision.candidates.map((each) => each.total ?? 0), 1e-9);
  const ordered = [...decision.candidates].sort((one, other) => (other.total ?? -1) - (one.total ?? -1) || isChosen(other) - isChosen(one));
  const ranks = ordered.some((each) => each.rank > 0);
  const number = (value) => h("td", { class: "num" }, value);
  const rows = ordered.map((each) => {
    const chosen = isChosen(each);
    const source = decision.source && each.pod === decision.source.pod && each.rank === decision.source.rank;
    return h("tr", { class: chosen ? "chosen" : "" },
      h("th", { scope: "row" }, h("span", { class: "mono" }, shorten(nameOf(each.pod)), ranks ? ` rank ${each.rank}` : ""),
        chosen && h("span", { class: "chip", "data-kind": "good" }, "chosen"),
        source && h("span", { class: "chip named" }, "source"),
        each.filtered_by && h("span", { class: "chip", "data-kind": "warn" }, `dropped by ${each.filtered_by}`)),
      h("td", {}, each.total == null ? "–" : bar(each.total / best, each.total.toFixed(3), chosen ? "pulled" : "")),
      scorers.map((name) => number(each.scores[name] == null ? "–" : each.scores[name].toFixed(3))),
      number(ms(each.predicted_ttft_ms)),
      h("td", { class: "mono" }, each.predicted_source ? shorten(nameOf(each.predicted_source)) : "–"),
      number(count(each.cached_tokens.gpu)), number(count(each.cached_tokens.cpu)), number(count(each.cached_tokens.any)),
      number(count(each.speculative_tokens)),
      number(`${count(each.running)} / ${count(each.waiting)}`),
      number(`${count(each.in_flight_requests)} / ${count(each.in_flight_tokens)}`),
      number(percent(each.kv_usage)), number(percent(each.credit)));
  });
  const heads = ["Total", ...scorers, "Expected", "Pulling from", "Cached GPU", "Cached CPU", "Usable", "About to hold",
    "Running / waiting", "From here / tokens", "KV in use", "Credit"];
  const left = new Set(["Total", "Pulling from"]);
  return h("div", { class: "scroll", role: "region", "aria-label": "Candidates and their scores", tabindex: "0" },
    h("table", { class: "candidates" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Candidate"),
        heads.map((name) => h("th", { scope: "col", class: left.has(name) ? "" : "num" }, name)))),
      h("tbody", {}, rows)));
}

export const explained = (decision, shorten, request = null) => [
  inWords(decision, shorten),
  facts(decision, request),
  table(decision, shorten),
];
