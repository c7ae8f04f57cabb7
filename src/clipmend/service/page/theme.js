// Colours: as the system has them, or light, or dark, kept in this browser.

const ORDER = ["system", "light", "dark"];
const WORDS = { system: "as the system", light: "light", dark: "dark" };
const KEY = "clipmend-theme";

function stored() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // a browser that lets nothing be kept
  }
}

export function theme(button) {
  let now = ORDER.includes(stored()) ? stored() : "system";
  const apply = () => {
    if (now === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = now;
    button.setAttribute("aria-label", `Colours: ${WORDS[now]}`);
    button.title = `Colours: ${WORDS[now]}`;
  };
  button.addEventListener("click", () => {
    now = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEY, now);
    } catch {
      // it holds for this page then
    }
    apply();
  });
  apply();
}
