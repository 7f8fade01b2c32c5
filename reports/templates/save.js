// A button below each drawing that saves it as an SVG file, with the colours that the reader sees.
(() => {
  function save(figure) {
    const drawing = [...figure.querySelectorAll("svg")].find((svg) => svg.getClientRects().length).cloneNode(true);
    for (const hidden of drawing.querySelectorAll('[data-shown="0"]')) hidden.remove();
    drawing.setAttribute("font-family", getComputedStyle(figure).fontFamily);
    // Outside of the page its variables mean nothing.
    const probe = figure.appendChild(make("span"));
    const text = new XMLSerializer().serializeToString(drawing).replace(/var\((--[\w-]+)\)/g, (_, name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    });
    probe.remove();
    const href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
    Object.assign(make("a"), { href, download: `${figure.closest("[id]").id}.svg` }).click();
    URL.revokeObjectURL(href);
  }

  for (const figure of document.querySelectorAll("figure.drawing")) {
    const button = Object.assign(make("button", "save", "Save as SVG"), { type: "button" });
    button.addEventListener("click", () => save(figure));
    figure.append(button);
  }
})();
