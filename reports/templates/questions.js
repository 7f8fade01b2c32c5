// Questions and models: a table of one page of questions at a time, which the reader sorts, filters and searches.
(() => {
  const root = document.getElementById("questions-tool");
  const { questions: data, candidates, examples } = JSON.parse(document.getElementById("data").textContent);
  if (!root || !data) return;
  const { models, kinds, ids, asks, cells, strategy, flags, heldOut } = data;
  const PAGE = 10;
  const SIGNS = { 1: ["✓", "right"], 0: ["✗", "wrong"], "-": ["·", "not asked"] };
  const names = Object.keys(kinds);
  const width = models.length;
  const questions = ids.map((id, index) => {
    const signs = cells.slice(index * width, (index + 1) * width);
    const flag = flags.charCodeAt(index) - 97;
    return {
      id, signs, index, ask: asks[index], taken: strategy[index], text: `${id}\n${asks[index]}`.toLowerCase(),
      right: signs.split("1").length - 1, kinds: names.filter((_, bit) => flag & (1 << bit)),
    };
  });
  const linked = new Set(examples.map((example) => example.id));
  const compared = root.dataset.strategy;
  let page = 0;
  let order = { by: "place", down: false };

  // What a column sorts by. Right comes before wrong, and questions that were not asked come last.
  const RANK = { 1: 0, 0: 1, "-": 2 };
  const key = (by) => {
    if (by === "place") return (question) => question.index;
    if (by === "right") return (question) => question.right;
    if (by === "kind") return (question) => (question.kinds.length ? names.indexOf(question.kinds[0]) : names.length);
    return by === "strategy" ? (question) => RANK[question.taken] : (question) => RANK[question.signs[by]];
  };

  const counts = names.map((name) => [name, kinds[name], questions.filter((question) => question.kinds.includes(name)).length]);
  const tools = filterTools([["all", "All", questions.length], ...counts.filter(([, , count]) => count)], "Search questions", () => { page = 0; show(); });
  const status = make("p", "said");
  status.setAttribute("aria-live", "polite");

  const columns = [["place", "Question"], ["kind", "Kind"], ["right", "Right"]];
  if (compared) columns.push(["strategy", compared]);
  models.forEach((number, place) => columns.push([place, candidates[number].name]));
  const heads = columns.map(([by, name]) => {
    const button = Object.assign(make("button", "", make("span", "", make("bdi", "", name))), { type: "button" });
    const head = make("th", typeof by === "number" || by === "strategy" ? "model" : by === "right" ? "num" : "", button);
    head.scope = "col";
    button.addEventListener("click", () => {
      order = { by, down: order.by === by && !order.down };
      page = 0;
      show();
    });
    return head;
  });
  const body = make("tbody");
  const table = make("table", "plain cells live", make("thead", "", make("tr", "", ...heads)), body);
  const frame = make("div", "scroll tall", table);
  Object.assign(frame, { tabIndex: 0 });
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", "Questions and models");

  // A page has a thousand cells, so each is a copy of one of three, and a single element: a sign, with a word to be read aloud.
  const patterns = Object.fromEntries(Object.entries(SIGNS).map(([sign, [drawn, word]]) => {
    const pattern = make("td", `cell is-${word.replace(" ", "-")}`, drawn);
    pattern.setAttribute("aria-label", word);
    return [sign, pattern];
  }));
  const cell = (sign) => patterns[sign].cloneNode(true);

  function line(question) {
    const name = make("bdi", "", question.id);
    const link = linked.has(question.id) ? Object.assign(make("a", "", name), { href: `#example=${encodeURIComponent(question.id)}` }) : name;
    const ask = Object.assign(make("span", "ask", question.ask), { dir: "auto" });
    const head = make("th", "", make("span", "id", link), question.index < heldOut ? null : make("span", "tag", "dev"), " ", ask);
    head.scope = "row";
    const kind = make("td", "kind", question.kinds.length ? kinds[question.kinds[0]] : "");
    const taken = compared ? [cell(question.taken)] : [];
    return make("tr", "", head, kind, make("td", "num", String(question.right)), ...taken, ...[...question.signs].map(cell));
  }

  function turn(text, step) {
    const button = Object.assign(make("button", "", text), { type: "button" });
    button.addEventListener("click", () => { page += step; show(); });
    return button;
  }
  const [back, on] = [turn("Previous page", -1), turn("Next page", 1)];

  function show() {
    const { filter, wanted } = tools.state;
    const fitting = questions.filter((question) => (filter === "all" || question.kinds.includes(filter)) && question.text.includes(wanted));
    const value = key(order.by);
    fitting.sort((a, b) => (order.down ? value(b) - value(a) : value(a) - value(b)) || a.index - b.index);
    const first = page * PAGE;
    const shown = fitting.slice(first, first + PAGE);
    body.replaceChildren(...shown.map(line));
    heads.forEach((head, place) => {
      if (columns[place][0] === order.by) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    status.textContent = fitting.length
      ? `${(first + 1).toLocaleString("en")} to ${(first + shown.length).toLocaleString("en")} of ${fitting.length.toLocaleString("en")} questions`
      : "No question matches. Try another filter or other words.";
    back.disabled = page === 0;
    on.disabled = first + PAGE >= fitting.length;
  }

  root.append(tools.element, status, frame, make("div", "turn", back, on));
  root.hidden = false;
  document.getElementById("questions-static").remove();
  tools.press("all");
})();
