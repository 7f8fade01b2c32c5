// Matrices: a cell shows its names and its value on hover and on focus. The arrow keys go from cell to cell.
(() => {
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

  function equip(figure) {
    const table = figure.querySelector("table");
    const cells = [...table.querySelectorAll("[data-row]")];
    const tip = Object.assign(make("p", "tip"), { hidden: true });
    figure.append(tip);

    function show(cell) {
      const [box, frame] = [cell.getBoundingClientRect(), figure.getBoundingClientRect()];
      tip.textContent = cell.getAttribute("aria-label");
      tip.hidden = false;
      const left = Math.min(box.left - frame.left, Math.max(frame.width - tip.offsetWidth, 0));
      tip.style.left = `${left}px`;
      tip.style.top = `${box.top - frame.top - tip.offsetHeight - 4}px`;
    }

    const hide = () => { tip.hidden = !cells.includes(document.activeElement); if (!tip.hidden) show(document.activeElement); };

    for (const cell of cells) {
      // A tip of this script replaces the browser's tooltip, which comes late and only by mouse.
      cell.setAttribute("aria-label", cell.title);
      cell.setAttribute("tabindex", cell === cells[0] ? "0" : "-1");
      cell.removeAttribute("title");
      cell.addEventListener("pointerenter", () => show(cell));
      cell.addEventListener("pointerleave", hide);
      cell.addEventListener("focus", () => show(cell));
      cell.addEventListener("blur", hide);
    }

    table.addEventListener("keydown", (event) => {
      const step = STEPS[event.key];
      const at = document.activeElement;
      if (event.key === "Escape") tip.hidden = true;
      if (!step || !cells.includes(at)) return;
      event.preventDefault();
      const [row, column] = [Number(at.dataset.row) + step[0], Number(at.dataset.column) + step[1]];
      const next = cells.find((cell) => Number(cell.dataset.row) === row && Number(cell.dataset.column) === column);
      if (!next) return;
      at.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  }

  document.querySelectorAll(".matrix").forEach(equip);
})();
