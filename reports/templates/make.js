// Children are appended as text and never as markup, so that no text of a model can become an element.
function make(name, className, ...children) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Tools above a list: buttons of which one is pressed, each with its count, and a search field.
function filterTools(filters, placeholder, changed) {
  const search = Object.assign(make("input"), { type: "search", placeholder });
  search.setAttribute("aria-label", placeholder);
  const state = { filter: "all", wanted: "" };
  const buttons = filters.map(([name, text, count]) => {
    const button = Object.assign(make("button", "", text, make("span", "count", count.toLocaleString("en"))), { type: "button" });
    button.dataset.filter = name;
    button.addEventListener("click", () => press(name));
    return button;
  });
  function press(name) {
    state.filter = name;
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.filter === name));
    changed();
  }
  search.addEventListener("input", () => { state.wanted = search.value.trim().toLowerCase(); changed(); });
  const element = make("div", "tools", ...buttons, search);
  const clear = () => { search.value = ""; state.wanted = ""; press("all"); };
  return { element, state, press, clear };
}
