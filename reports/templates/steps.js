// Inside a step: a response as a strip of its tokens, and for the selected token the probabilities of every member.
function stepStrip(trace) {
  const { members, left, steps } = trace;
  const share = (thousandths) => `${(thousandths / 10).toFixed(1)}%`;
  const names = (numbers) => numbers.map((number) => members[number]).join(", ");

  // Spaces at the ends of a text, line ends and an empty text are invisible, so each has a sign.
  const shown = (text) => (text === null ? "end" : text.replace(/^ +| +$/g, (ends) => "␣".repeat(ends.length)).replaceAll("\n", "↵") || "(nothing)");

  function winners([, wonBy]) {
    if (wonBy.length === members.length) return "all";
    return wonBy.length === 0 ? "none" : wonBy.includes(0) ? "primary" : "others";
  }

  const WON = {
    all: () => "the first choice of every member",
    none: () => "no member’s first choice, but the best on average",
    primary: (wonBy) => `the first choice of ${names(wonBy)}`,
    others: (wonBy) => `the first choice of ${names(wonBy)}, not of the primary`,
  };

  const HOW = "Bold: a member’s first choice. Pale: not among its own likeliest. Disagreement is the Jensen-Shannon divergence of the members’ probabilities on the union: 0 where they are the same, 1 where they have nothing in common.";

  function token(step, number) {
    const [text, wonBy, disagreement, shade] = step;
    const dots = make("span", "votes", ...members.map((_, member) => make("span", wonBy.includes(member) ? "vote" : "vote against")));
    const button = make("button", `token shade-${shade} won-${winners(step)}${text === null ? " end" : ""}`, make("bdi", "", shown(text)), dots);
    button.type = "button";
    const apart = disagreement === null ? "" : `, disagreement ${disagreement.toFixed(2)}`;
    button.setAttribute("aria-label", `Step ${number + 1}, ${shown(text)}: ${WON[winners(step)](wonBy)}${apart}`);
    return button;
  }

  function bar(thousandths, first) {
    const fill = make("span", "fill");
    // The page's policy forbids style attributes in the markup, but allows a script to set styles.
    fill.style.width = `${thousandths / 10}%`;
    return make("td", `num share${first ? " first" : ""}`, make("span", "amount", share(thousandths)), make("span", "track", fill));
  }

  function look(number) {
    const [text, wonBy, disagreement, , union, chosen, choices] = steps[number];
    const best = members.map((_, member) => Math.max(...choices.map((choice) => choice[3 + member])));
    const head = ["Candidate", "Mean", ...members].map((name, column) => {
      const cell = make("th", column ? "num" : "", make("bdi", "", name));
      cell.scope = "col";
      return cell;
    });
    const rows = choices.map(([written, wantedBy, mean, ...own], place) => {
      const name = make("th", "", make("bdi", "", shown(written)), ...(place === chosen ? [make("span", "tag", "won")] : []));
      name.scope = "row";
      const cells = own.map((thousandths, member) => {
        const cell = bar(thousandths, thousandths === best[member]);
        if (!wantedBy.includes(member)) cell.classList.add("lent");
        return cell;
      });
      return make("tr", place === chosen ? "chosen" : "", name, bar(mean, false), ...cells);
    });
    const table = make("table", "plain", make("thead", "", make("tr", "", ...head)), make("tbody", "", ...rows));
    const apart = disagreement === null ? "" : ` The members’ disagreement is ${disagreement.toFixed(2)}.`;
    const about = make(
      "p", "about", make("b", "", `Step ${number + 1} of ${steps.length + left}: `, make("bdi", "", shown(text))),
      `, ${WON[winners(steps[number])](wonBy)}.${apart}`,
    );
    const rest = union > choices.length ? `${choices.length} of the union’s ${union} candidates; the others are unlikely. ` : "";
    return [about, make("div", "scroll", table), make("p", "note", `${rest}${HOW}`)];
  }

  function legend() {
    const kinds = { all: "first choice of all members", primary: "of the primary, but not of all", others: "only of other members", none: "of no member" };
    const met = new Set(steps.map(winners));
    const lines = Object.keys(kinds).filter((kind) => met.has(kind)).map((kind) => make("li", "", make("span", `line won-${kind}`), kinds[kind]));
    const shades = make("span", "shades", ...[0, 1, 2, 3, 4].map((shade) => make("span", `shade-${shade}`)));
    const dots = make("span", "votes", make("span", "vote"), make("span", "vote against"));
    return make(
      "ul", "legend", ...lines, make("li", "", dots, "a dot for each member, full where it was its first choice"),
      make("li", "", "agreeing ", shades, " divided"),
    );
  }

  const strip = make("div", "strip", ...steps.map(token));
  strip.setAttribute("role", "group");
  strip.setAttribute("aria-label", "The response’s tokens; the arrow keys go from one to the next");
  const panel = make("div", "step");
  panel.setAttribute("aria-live", "polite");
  const buttons = [...strip.children];

  // The strip is one stop for the tab key, because a response may have hundreds of tokens.
  function select(number, focus) {
    buttons.forEach((button, place) => {
      button.tabIndex = place === number ? 0 : -1;
      button.setAttribute("aria-pressed", String(place === number));
    });
    if (focus) buttons[number].focus();
    panel.replaceChildren(...look(number));
  }

  strip.addEventListener("click", (event) => {
    const number = buttons.indexOf(event.target.closest("button"));
    if (number >= 0) select(number, true);
  });
  strip.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    select(Math.min(Math.max(to, 0), buttons.length - 1), true);
  });

  // At first the step with the largest disagreement is open.
  const divided = steps.map((step) => step[2] || 0);
  select(divided.indexOf(Math.max(...divided)), false);
  const more = left ? make("p", "note", `The last ${left} steps were not recorded.`) : null;
  return make("section", "steps", make("p", "label", "Inside each step of the ensemble’s response"), strip, legend(), more, panel);
}
