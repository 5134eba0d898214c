// Loaded before anything is painted, so that a chosen theme never flashes.
(() => {
  const THEMES = ["auto", "light", "dark"];
  const KEY = "weft-theme";

  const stored = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // Storage may be forbidden; then the choice lasts as long as the page.
    }
  };
  let theme = THEMES.includes(stored()) ? stored() : "auto";
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };
  apply();

  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // As above.
      }
      apply();
    });
  });
})();
