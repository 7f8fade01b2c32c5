// Sortable tables: a column's head becomes a button. Cells have their values as data attributes.
(() => {
  function compare(a, b) {
    const numbers = [Number(a), Number(b)];
    return numbers.some(Number.isNaN) ? a.localeCompare(b) : numbers[0] - numbers[1];
  }

  function sort(table, head, direction) {
    const value = (row) => {
      const cell = row.cells[head.cellIndex];
      const written = cell.dataset.value ?? cell.textContent.trim();
      return written === "–" ? "" : written.replace("\u2212", "-");
    };
    const rows = [...table.tBodies[0].rows];
    rows.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      // Unknown values come last in both directions.
      if (a === "" || b === "") return Number(a === "") - Number(b === "");
      return direction === "ascending" ? compare(a, b) : compare(b, a);
    });
    table.tBodies[0].append(...rows);
    for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", direction);
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    table.classList.add("live");
    for (const head of table.querySelectorAll("th[data-sort]")) {
      const button = document.createElement("button");
      button.type = "button";
      // The names of models keep their elements, which turn them upright and isolate their direction.
      button.append(...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const first = head.dataset.first || "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        sort(table, head, head.getAttribute("aria-sort") === first ? second : first);
      });
    }
  }

  // A search field shows only the rows whose names contain all words.
  for (const table of document.querySelectorAll("table[data-search]")) {
    const search = Object.assign(document.createElement("input"), { type: "search", placeholder: table.dataset.search });
    search.setAttribute("aria-label", table.dataset.search);
    const box = document.createElement("div");
    box.className = "tools";
    box.append(search);
    table.parentElement.before(box);
    search.addEventListener("input", () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of table.tBodies[0].rows) {
        const names = [...row.querySelectorAll("bdi")].map((name) => name.textContent.toLowerCase());
        row.hidden = !words.every((word) => names.some((name) => name.includes(word)));
      }
    });
  }
})();
