"use strict";
(() => {
  const themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("lpsgd-theme") || "system"; } catch { /* storage is off */ }
  function applyTheme() {
    document.documentElement.dataset.theme = theme;
    document.getElementById("theme").textContent = `Theme: ${theme}`;
  }
  document.getElementById("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("lpsgd-theme", theme); } catch { /* storage is off */ }
    applyTheme();
  });
  applyTheme();
})();
