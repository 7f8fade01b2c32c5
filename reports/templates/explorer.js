// The example explorer: one line for each example. The inside of a line is built when the reader opens it.
(() => {
  const root = document.getElementById("explorer");
  if (!root) return;
  const { examples, candidates, tags, opening, joint } = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 10;
  let room = PAGE;

  const glyph = (right) => document.querySelector(`#examples .key .glyph-${right ? "right" : "false"}`).cloneNode(true);
  const nameOf = (response) => (response.by === null ? joint : candidates[response.by].name);
  const prose = (text) => Object.assign(make("pre", "text", text), { dir: "auto" });

  // The words of a text that are not in the longest common subsequence with another text.
  function differing(text, other) {
    const [a, b] = [text, other].map((each) => each.split(/(\s+)/).filter((word) => word.trim()));
    if (a.length * b.length > 250000) return new Set();
    const rows = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) rows[i][j] = a[i] === b[j] ? rows[i + 1][j + 1] + 1 : Math.max(rows[i + 1][j], rows[i][j + 1]);
    }
    const found = new Set();
    for (let i = 0, j = 0; i < a.length;) {
      if (j < b.length && a[i] === b[j]) { i += 1; j += 1; } else if (j < b.length && rows[i][j + 1] >= rows[i + 1][j]) j += 1;
      else { found.add(i); i += 1; }
    }
    return found;
  }

  // A text with the words that another one lacks, and with the piece that was read as its answer.
  function marked(text, other, place) {
    const box = prose("");
    const found = other === null ? new Set() : differing(text, other);
    // Places count characters, and strings of JavaScript count halves of some.
    const [start, end] = (place ?? [0, 0]).map((at) => Array.from(text).slice(0, at).join("").length);
    let word = -1, from = 0;
    for (const piece of text.split(/(\s+)/)) {
      if (piece.trim()) word += 1;
      const cuts = [0, start - from, end - from, piece.length].map((cut) => Math.min(Math.max(cut, 0), piece.length));
      for (const n of [0, 1, 2]) {
        const part = piece.slice(cuts[n], cuts[n + 1]);
        if (!part) continue;
        const shown = piece.trim() && found.has(word) ? make("mark", "", part) : part;
        box.append(n === 1 ? make("u", "read", shown) : shown);
      }
      from += piece.length;
    }
    return box;
  }

  function answer(response, base, taken, title = nameOf(response)) {
    const right = Boolean(response.right);
    const verdict = response.score === undefined || response.score === null ? (right ? "right" : "wrong") : `score ${response.score.toFixed(2)}`;
    const name = make("span", "who", make("bdi", "", title), taken ? " " : null, taken ? make("span", "tag", "taken") : null);
    const head = make("header", "", name, make("span", "how", glyph(right), verdict));
    const meta = make("p", "meta");
    // A translation or a bare number is the answer itself.
    const whole = response.text !== undefined && response.text.trim() === response.extracted;
    if (response.error) meta.append(`Failed: ${response.error}`);
    else {
      if (response.extracted === undefined) meta.append("no answer found");
      else if (whole) meta.append("read as a whole");
      else meta.append("read as ", make("b", "", make("bdi", "", response.extracted)));
      (response.differs ?? []).forEach((words, place) => meta.append(place ? "; " : ": ", make("bdi", "", words)));
      if (response.length !== undefined) meta.append(`, ${response.length.toLocaleString("en")} ${response.length === 1 ? "character" : "characters"}`);
      if (response.tokens) meta.append(`, ${response.tokens.toLocaleString("en")} tokens with its thinking`);
      if (response.end === "length") meta.append(", cut off");
    }
    const joint = response.by === null || taken ? " joint" : "";
    const other = response === base || base.text === undefined ? null : base.text;
    const text = response.text === undefined ? null : marked(response.text, other, whole ? null : response.place);
    return make("article", `answer ${right ? "right" : "false"}${joint}`, head, text, meta);
  }

  function inside(example) {
    const joint = example.responses.find((response) => response.by === null);
    const base = joint || example.responses[0];
    const answers = make("div", "answers", ...example.responses.map((response) => answer(response, base, response.by !== null && response.by === example.taken)));
    const link = Object.assign(make("a", "", "Link to this example"), { href: `#example=${encodeURIComponent(example.id)}` });
    const texts = example.responses.filter((response) => response.text !== undefined);
    const note = texts.length > 1 && base.text !== undefined ? `Marked: the differences from ${joint ? "the ensemble’s" : "the first"} response.` : "";
    const shots = opening ? make("details", "", make("summary", "", "The beginning of every prompt"), prose(opening)) : null;
    const turns = [["← Previous", -1], ["Next →", 1]].map(([words, by]) => {
      const button = Object.assign(make("button", "", words), { type: "button" });
      button.addEventListener("click", () => step(by));
      return button;
    });
    return make(
      "div", "inside", make("p", "label", "Prompt"), shots, prose(example.prompt),
      make("p", "label", "Reference"), prose(example.reference.join("\n")), answers,
      make("p", "foot", ...turns, make("span", "", note), link), example.trace ? stepStrip(example.trace) : null,
    );
  }

  // A column for each candidate, with its number on the leaderboard, and one for the ensemble. More than 12 do not fit.
  const answered = [...new Set(examples.flatMap((example) => example.responses.map((response) => response.by)))];
  const columns = answered.sort((a, b) => (a === null) - (b === null) || a - b).slice(0, 12);

  function dot(response, by) {
    const place = by === null ? "joint" : "";
    if (!response) return make("span", place);
    const element = make("span", `${response.right ? "right" : "false"} ${place}`, glyph(Boolean(response.right)));
    element.title = `${nameOf(response)}: ${response.right ? "right" : "wrong"}`;
    return element;
  }

  function heads() {
    const numbers = columns.map((by) => {
      const head = make("span", by === null ? "joint" : "", by === null ? "E" : String(by + 1));
      head.title = nameOf({ by });
      return head;
    });
    const keys = make("span", "keys", "The keys → and ← open the next and the previous one.");
    return make("p", "heads", status, keys, make("span", "dots", ...numbers));
  }

  function line(example) {
    const dots = make("span", "dots", ...columns.map((by) => dot(example.responses.find((response) => response.by === by), by)));
    const labels = make("span", "tags", ...example.tags.map((tag) => make("span", "tag", tags[tag])), dots);
    const ask = Object.assign(make("span", "ask", example.ask), { dir: "auto" });
    const details = make("details", "example", make("summary", "", make("span", "id", make("bdi", "", example.id)), ask, labels));
    details.addEventListener("toggle", () => {
      if (details.open && details.children.length === 1) details.append(inside(example));
    });
    return details;
  }

  const lines = examples.map(line);
  const texts = examples.map((each) => [each.id, each.prompt, ...each.reference, ...each.responses.map((response) => response.text ?? response.extracted ?? "")].join("\n").toLowerCase());
  const status = make("span", "said");
  status.setAttribute("aria-live", "polite");

  // The lines that the filter and the search leave.
  function fitting() {
    const { filter, wanted } = tools.state;
    return lines.filter((_, index) => (filter === "all" || examples[index].tags.includes(filter)) && texts[index].includes(wanted));
  }

  function refresh() {
    const found = fitting();
    const count = found.length;
    for (const each of lines) each.hidden = true;
    for (const each of found.slice(0, room)) each.hidden = false;
    status.textContent = count ? `${count} of ${examples.length} examples` : "No example matches. Try another filter or other words.";
    more.hidden = count <= room;
    more.textContent = `Show ${Math.min(2 * PAGE, count - room)} more`;
  }

  const filters = Object.keys(tags).map((tag) => [tag, tags[tag], examples.filter((example) => example.tags.includes(tag)).length]);
  const shown = [["all", "All", examples.length], ...filters.filter(([, , count]) => count)];
  const tools = filterTools(shown, "Search questions and responses", () => { room = PAGE; refresh(); });
  const more = Object.assign(make("button", "more"), { type: "button" });
  more.addEventListener("click", () => { room += 2 * PAGE; refresh(); });

  function unfold(line) {
    room = Math.max(room, fitting().indexOf(line) + 1);
    refresh();
    line.open = true;
    line.querySelector("summary").focus({ preventScroll: true });
    line.scrollIntoView({ block: "start" });
  }

  // From the open line that has the focus to the one before or after it; from the filters to the first one.
  function step(by) {
    const found = fitting();
    const own = root.contains(document.activeElement) ? (line) => line.contains(document.activeElement) : (line) => line.open;
    const at = found.findIndex(own);
    const to = found[at >= 0 && !found[at].open ? at : at + by];
    if (!to) return;
    for (const line of lines) line.open = false;
    unfold(to);
  }

  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const within = root.contains(event.target) || (event.target === document.body && lines.some((line) => line.open));
    if (!by || !within || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, .strip")) return;
    event.preventDefault();
    step(by);
  });

  function follow() {
    if (!location.hash.startsWith("#example=")) return;
    let wanted = "";
    try { wanted = decodeURIComponent(location.hash.slice("#example=".length)); } catch { return; }
    const index = examples.findIndex((example) => example.id === wanted);
    if (index < 0) { status.textContent = "The example of this link is not in the report; look for it in samples.jsonl."; return; }
    if (lines[index].hidden) tools.clear();
    root.closest("details").open = true;
    unfold(lines[index]);
  }

  root.append(tools.element, heads(), ...lines, more);
  root.hidden = false;
  document.getElementById("examples-static").remove();
  tools.press("all");
  window.addEventListener("hashchange", follow);
  follow();
})();
