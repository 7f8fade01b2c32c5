"use strict";
// The style sheet switches the theme. This script remembers it, if the browser lets a local file store anything.
(() => {
  const key = "unite-advisor-theme";
  const choices = document.querySelectorAll("input[name=theme]");
  try {
    const remembered = localStorage.getItem(key);
    for (const choice of choices) choice.checked = choice.value === (remembered || "system");
    for (const choice of choices) choice.addEventListener("change", () => localStorage.setItem(key, choice.value));
  } catch { /* no storage: the theme lasts until the page is closed */ }
})();

// A button copies the command, if the browser gives this page a clipboard.
(() => {
  const command = document.getElementById("command");
  if (!command || !navigator.clipboard) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(command.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  command.parentElement.append(button);
})();
