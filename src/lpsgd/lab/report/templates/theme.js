"use strict";
// The system's colours unless the reader chose. A "themechange" event tells what was painted with them.
(() => {
  const themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("lpsgd-theme") || "system"; } catch { /* storage is off */ }
  if (!themes.includes(theme)) theme = "system";

  const tell = () => document.dispatchEvent(new Event("themechange"));
  function applyTheme() {
    document.documentElement.dataset.theme = theme;
    document.getElementById("theme").textContent = `Theme: ${theme}`;
    tell();
  }
  document.getElementById("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("lpsgd-theme", theme); } catch { /* storage is off */ }
    applyTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  applyTheme();
})();
