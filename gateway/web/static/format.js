// Numbers and names as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NOTHING = "–";

export const count = (value) => (value == null ? NOTHING : WHOLE.format(value));

/** From 10,000 on with one decimal and a unit. */
export const short = (value) => (value == null ? NOTHING : value < 10000 ? WHOLE.format(value) : SHORT.format(value));

export const rate = (value) => (value == null ? NOTHING : value && value < 10 ? value.toFixed(1) : short(value));

export const percent = (share) => (share == null ? NOTHING : `${Math.round(share * 100)} %`);

export function ms(value) {
  if (value == null) return NOTHING;
  if (value === 0) return "0 ms";
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 10000 ? `${(value / 1000).toFixed(2)} s` : `${(value / 1000).toFixed(1)} s`;
}

export function age(seconds) {
  if (seconds == null) return "never";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

/** `host:port` without the one of the two that is the same for all pods. */
export function shortener(names) {
  const hosts = new Set(names.map((name) => name.replace(/:\d+$/, "")));
  if (names.length > 1 && hosts.size === 1) return (name) => name.replace(/^.*(:\d+)$/, "$1");
  if (hosts.size === names.length && hosts.size > 1) return (name) => name.replace(/:\d+$/, "");
  return (name) => name;
}

/** A pod's name from its URL. */
export const nameOf = (url) => url.replace(/^https?:\/\//i, "").replace(/\/+$/, "");

const REASONS = {
  named: "a peer holds more of the prompt",
  self: "the pod holds as much as anybody",
  "below-floor": "a peer holds hardly more",
  cost: "computing is quicker than a pull",
  "no-holder": "nobody holds any of it",
  batch: "several sequences at once",
  endpoint: "engines do not pull for these",
  breaker: "pulls from there fail",
  differ: "the two can never pull from each other",
  late: "a pull was late, this is the second attempt",
  disabled: "pulls are turned off",
};

export const why = (reason) => REASONS[reason] ?? reason;
