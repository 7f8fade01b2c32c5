// The map's two limits. When they change, the rules choose again from the same numbers, and the map shows the new set.
(() => {
  const form = document.getElementById("limits");
  if (!form) return;
  const { rules, candidates } = JSON.parse(document.getElementById("data").textContent);
  const TOLERANCE = 1e-9;
  const [gap, ratio] = [document.getElementById("max-gap"), document.getElementById("max-ratio")];
  const setText = (id, text) => { document.getElementById(id).textContent = text; };

  function rounded(value) { return Math.round(value * 1e9) / 1e9; }

  // Tokens if one of the two thinks and those of both are known, as in advisor/records.py.
  function lengthRatio(one, other) {
    const byTokens = (one.thinks || other.thinks) && one.tokens !== undefined && other.tokens !== undefined;
    const [a, b] = byTokens ? [one.tokens, other.tokens] : [one.length, other.length];
    if (a === null || b === null) return null;
    const [shorter, longer] = [Math.min(a, b), Math.max(a, b)];
    return shorter === 0 ? (longer === 0 ? 1 : Infinity) : longer / shorter;
  }

  // The rules of section 4.1, the same as in advisor/advice/rules.py: by accuracy, then the shorter mean length, then
  // the name. Both round to 9 decimals, so that they agree on ties.
  function choose(maxGap, maxRatio) {
    const length = (index) => (candidates[index].length === null ? Infinity : rounded(candidates[index].length));
    const order = candidates.map((_, index) => index).filter((index) => !candidates[index].failed && candidates[index].accuracy !== null);
    order.sort((a, b) => {
      const byAccuracy = rounded(candidates[b].accuracy) - rounded(candidates[a].accuracy);
      if (byAccuracy) return byAccuracy;
      if (length(a) !== length(b)) return length(a) < length(b) ? -1 : 1;
      return candidates[a].name < candidates[b].name ? -1 : 1;
    });
    const primary = candidates[order[0]];
    const fits = (index) => {
      const own = lengthRatio(candidates[index], primary);
      const near = Math.abs(candidates[index].accuracy - primary.accuracy) <= maxGap + TOLERANCE;
      return near && (own === null || own <= maxRatio + TOLERANCE);
    };
    const most = rules.maxModels === null ? Infinity : rules.maxModels;
    return order.filter((index, place) => place === 0 || fits(index)).slice(0, most);
  }

  function moveRegion(map, primary, maxGap, maxRatio) {
    const at = Object.fromEntries(["left", "right", "top", "bottom", "xLow", "xHigh", "yLow", "yHigh"].map((name) => [name, Number(map.dataset[name])]));
    const share = (value) => Math.min(Math.max(value, 0), 1);
    const x = (value) => at.left + share(Math.log(value / at.xLow) / Math.log(at.xHigh / at.xLow)) * (at.right - at.left);
    const y = (value) => at.bottom - share((value - at.yLow) / (at.yHigh - at.yLow)) * (at.bottom - at.top);
    const region = map.querySelector("[data-region] path");
    if (!region) return;
    const length = rules.unit === "tokens" ? primary.tokens : primary.length;
    const [left, right] = length ? [x(length / maxRatio), x(length * maxRatio)] : [at.left, at.right];
    region.setAttribute("d", `M${left} ${y(primary.accuracy - maxGap)}H${right}V${at.top}H${left}z`);
  }

  function show(maxGap, maxRatio) {
    const chosen = choose(maxGap, maxRatio);
    if (!chosen.length) return;
    for (const map of document.querySelectorAll("svg[data-map]")) {
      moveRegion(map, candidates[chosen[0]], maxGap, maxRatio);
      for (const mark of map.querySelectorAll("[data-shape]")) {
        const place = chosen.indexOf(Number(mark.dataset.point));
        const shape = place === 0 ? "primary" : place > 0 ? "selected" : "rejected";
        mark.dataset.shown = Number(mark.dataset.shape === shape);
      }
    }
    setText("max-gap-said", `${maxGap.toFixed(1)} points`);
    setText("max-ratio-said", `${maxRatio.toFixed(2)}×`);
    const same = maxGap === rules.maxGap && maxRatio === rules.maxRatio;
    setText("limits-lead", same ? "The run’s own limits chose" : "These limits would choose");
    const names = document.getElementById("limits-set");
    names.replaceChildren(...chosen.flatMap((index, place) => {
      const name = make("b", "", make("bdi", "", candidates[index].name));
      name.dataset.chosen = index;
      return place ? [", then ", name] : [name];
    }));
    names.append(chosen.length === 1 ? " alone." : ".");
    document.getElementById("limits-reset").disabled = same;
  }

  const moved = () => show(Number(gap.value), Number(ratio.value));
  gap.addEventListener("input", moved);
  ratio.addEventListener("input", moved);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => show(rules.maxGap, rules.maxRatio)));
  form.hidden = false;
  form.reset(); // a browser may restore the old values when the page is loaded again
})();
