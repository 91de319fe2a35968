// Before the first paint, so that a chosen theme does not flash: this one script is no module.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("p2p-gateway-theme");
  } catch {
    // Storage is closed to this page: the system's theme it is.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
