// Elements without markup in strings: what a request or a model is called can be anything.

const SVG = "http://www.w3.org/2000/svg";

export const by = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false));
  return element;
}

export const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

/** Set text only where it differs, so that selections stay and nothing is laid out again. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function attribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** A bar of `share`, 0 to 1, with its value in words beside it. */
export function bar(share, words, kind = "") {
  const fill = h("span", { class: `fill ${kind}` });
  const track = h("span", { class: "track", "aria-hidden": "true" }, fill);
  const label = h("span", {}, words);
  const whole = h("span", { class: "bar" }, track, label);
  whole.set = (value, said) => {
    fill.style.setProperty("inline-size", `${Math.max(0, Math.min(1, value ?? 0)) * 100}%`);
    text(label, said);
  };
  whole.set(share, words);
  return whole;
}

/** A style's colour as it is now, for a canvas. */
export function colour(name) {
  const probe = h("span");
  probe.style.setProperty("color", `var(${name})`);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
