// Colours: as the system has them, or light, or dark, kept in this browser.

import { keep, kept } from "./kept.js";

const ORDER = ["system", "light", "dark"];
const WORDS = { system: "as the system", light: "light", dark: "dark" };
const KEY = "clipmend-theme";

export function theme(button) {
  let now = ORDER.includes(kept(KEY)) ? kept(KEY) : "system";
  const apply = () => {
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.setAttribute("aria-label", `Colours: ${WORDS[now]}`);
    button.title = `Colours: ${WORDS[now]}`;
  };
  button.addEventListener("click", () => {
    now = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
    keep(KEY, now);
    apply();
  });
  apply();
}
