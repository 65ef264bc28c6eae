// The tree explorer: one state (run, prompt, turn, round, left, right), drawn anew on each change. Token texts are output of a
// model and reach the page as text nodes only.
const ROW = 26, BOX = 20, PAD = 7, GAP = 24, NUMBER = 34, EDGE = 8;
const runs = JSON.parse(document.getElementById("explorer-data").textContent);
const app = document.getElementById("explorer-app");
const form = app.querySelector("form").elements;
const panels = [...app.querySelectorAll(".panel")];
const drawn = panels[0].querySelector("svg");
const pen = document.createElement("canvas").getContext("2d");
const state = { run: 0, prompt: "", turn: 0, round: 1, left: "", right: "" };

const unique = (values) => [...new Set(values)];
const plural = (count, noun, many = `${noun}s`) => `${count} ${count === 1 ? noun : many}`;
const run = () => runs[state.run];
const rounds = (method) => (run().answers.find(
  (answer) => answer.prompt === state.prompt && answer.turn === state.turn && answer.method === method) ?? { rounds: [] }).rounds;
const last = () => Math.max(1, rounds(state.left).length, rounds(state.right).length);

/** The nearest state that exists: what a change of data set, prompt or turn takes away is replaced by the first choice. */
function settle() {
  const prompts = unique(run().answers.map((answer) => answer.prompt));
  if (!prompts.includes(state.prompt)) state.prompt = prompts[0];
  const answers = run().answers.filter((answer) => answer.prompt === state.prompt);
  const turns = unique(answers.map((answer) => answer.turn));
  if (!turns.includes(state.turn)) state.turn = turns[0];
  const methods = Object.keys(run().methods);
  ["left", "right"].forEach((side, place) => {
    if (!methods.includes(state[side])) state[side] = run().pair[place];
  });
  state.round = Math.min(Math.max(1, Math.round(state.round) || 1), last());
  return { prompts, turns, methods };
}

function fill(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
}

function show() {
  const { prompts, turns, methods } = settle();
  fill(form.run, runs.map((entry, place) => [place, entry.name]), state.run);
  fill(form.prompt, prompts.map((prompt) => [prompt, prompt]), state.prompt);
  fill(form.turn, turns.map((turn) => [turn, turn + 1]), state.turn);
  form.round.max = last();
  form.round.value = state.round;
  form.round.setAttribute("aria-valuetext", `${state.round} of ${last()}`);
  app.querySelector(".place").textContent = `${state.round} of ${last()}`;
  form.back.disabled = state.round === 1;
  form.next.disabled = state.round === last();
  const told = panels.map((panel) => {
    const method = state[panel.dataset.side];
    fill(panel.querySelector("select"), methods.map((name) => [name, run().methods[name]]), method);
    return `${run().methods[method]} ${draw(panel, rounds(method))}`;
  });
  document.getElementById("status").textContent = `Round ${state.round} of ${last()}: ${told.join("; ")}.`;
}

/** Draws one method's round into a panel; returns what happened in it. */
function draw(panel, all) {
  const tree = all[state.round - 1];
  const [facts, answer, box, svg] = [".facts", ".answer", ".tree", "svg"].map((name) => panel.querySelector(name));
  write(answer, all);
  box.hidden = !tree;
  if (!tree) {
    facts.textContent = all.length ? `The answer was complete after round ${all.length}.` : "No tree was recorded for this answer.";
    return all.length ? `was done after round ${all.length}` : "has no tree";
  }
  const accepted = tree.accepted.length - 1, drafted = tree.tokens.length - 2;
  const before = 1 + all.slice(0, state.round - 1).reduce((sum, one) => sum + one.emitted, 0);
  facts.textContent = `${plural(drafted, "drafted node")} in ${plural(tree.passes, "draft pass", "draft passes")}, `
    + `${accepted} accepted, ${plural(tree.emitted, "token")} emitted; ${plural(before + tree.emitted, "token")} of the answer so far.`;
  plot(svg, tree);
  const path = [...tree.accepted.slice(1), tree.accepted.at(-1) + 1].map((node) => run().labels[tree.tokens[node]]);
  svg.setAttribute("aria-label", `Draft tree of ${plural(drafted, "node")}; accepted and own tokens: ${path.join(" ")}`);
  box.scrollTo(0, 0);
  return `accepted ${accepted} of ${drafted}`;
}

/** The answer: what stood before the round as plain text, what the round added marked. */
function write(answer, all) {
  if (!all.length) return answer.replaceChildren();
  const pieces = run().pieces;
  const added = (tree) => [...tree.accepted.slice(1), tree.accepted.at(-1) + 1].slice(0, tree.emitted);
  const texts = (tree) => added(tree).map((node) => pieces[tree.tokens[node]]).join("");
  const parts = [pieces[all[0].tokens[0]] + all.slice(0, state.round - 1).map(texts).join("")];
  const tree = all[state.round - 1];
  for (const node of tree ? added(tree) : []) {
    const mark = document.createElement("mark");
    mark.className = tree.accepted.includes(node) ? "accepted" : "own";
    mark.textContent = pieces[tree.tokens[node]];
    parts.push(mark);
  }
  answer.replaceChildren(...parts);
  answer.scrollTop = answer.scrollHeight;
}

function element(name, attributes, parent, text) {
  const made = document.createElementNS(drawn.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return parent.appendChild(made);
}

/** A column per depth, as wide as its longest label; a first child stays in its parent's row, so that no lines cross. */
function plot(svg, tree) {
  pen.font = `12px ${getComputedStyle(panels[0].querySelector(".answer")).fontFamily}`;
  const labels = tree.tokens.map((token) => run().labels[token]);
  const widths = [];
  tree.depths.forEach((depth, node) => {
    const number = tree.probabilities[node] === null || node === 0 ? 0 : NUMBER;
    widths[depth] = Math.max(widths[depth] ?? 0, Math.ceil(pen.measureText(labels[node]).width) + number + 2 * PAD);
  });
  const starts = widths.map((_, depth) => EDGE + widths.slice(0, depth).reduce((sum, width) => sum + width + GAP, 0));
  const onPath = new Set(tree.accepted), own = tree.accepted.at(-1) + 1;
  const parents = [], rows = [];
  svg.replaceChildren();
  const lines = element("g", {}, svg), nodes = element("g", {}, svg);
  tree.depths.forEach((depth, node) => {
    rows.push(node === 0 ? 0 : rows[node - 1] + (depth <= tree.depths[node - 1] ? 1 : 0));
    const role = node === own ? "own" : onPath.has(node) ? "accepted" : "drafted";
    const x = starts[depth], y = EDGE + rows[node] * ROW;
    if (depth > 0) {
      const parent = parents[depth - 1], from = starts[depth - 1] + widths[depth - 1];
      const line = `M${from},${EDGE + rows[parent] * ROW + BOX / 2}h${GAP / 2}V${y + BOX / 2}H${x}`;
      element("path", { d: line, class: role }, lines);
    }
    parents[depth] = node;
    box(nodes, { x, y, width: widths[depth], role, label: labels[node], node, tree });
  });
  for (const line of lines.querySelectorAll(".accepted, .own")) lines.append(line); // above the others
  const size = [starts.at(-1) + widths.at(-1) + EDGE, (rows.at(-1) + 1) * ROW - ROW + BOX + 2 * EDGE];
  for (const [name, value] of [["width", size[0]], ["height", size[1]], ["viewBox", `0 0 ${size.join(" ")}`]]) svg.setAttribute(name, value);
}

function box(parent, { x, y, width, role, label, node, tree }) {
  const probability = tree.probabilities[node];
  const group = element("g", { class: role, "data-node": node }, parent);
  const piece = JSON.stringify(run().pieces[tree.tokens[node]]);
  const told = node === 0 ? "last token of the answer" : probability === null ? "the target's own token" : `path probability ${probability}`;
  element("title", {}, group, `${piece}, ${told}`);
  element("rect", { x, y, width, height: BOX, rx: 3, class: "shape" }, group);
  element("text", { x: x + PAD, y: y + 14, "xml:space": "preserve" }, group, label);
  if (node === 0 || probability === null) return;
  element("rect", { x, y: y + BOX - 2, width: width * probability, height: 2, class: "bar" }, group);
  element("text", { x: x + width - PAD, y: y + 14, class: "probability" }, group, percent(probability));
}

/** At most five characters. */
function percent(share) {
  if (share < 0.0005) return "<.1%";
  return share < 0.0995 ? `${(100 * share).toFixed(1)}%` : `${Math.round(100 * share)}%`;
}

function address() {
  const { prompt, round, left, right } = state;
  const parts = new URLSearchParams({ run: run().key, prompt, turn: state.turn + 1, round, left, right });
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch { /* a page inside a sandboxed frame has no address of its own */ }
}

/** Takes the state from the address; false where the address is that of a section. */
function read() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (!parts.has("run")) return false;
  state.run = Math.max(0, runs.findIndex((entry) => entry.key === parts.get("run")));
  for (const name of ["prompt", "left", "right"]) state[name] = parts.get(name) ?? "";
  state.turn = Number(parts.get("turn")) - 1;
  state.round = Number(parts.get("round"));
  return true;
}

function go(changes) {
  Object.assign(state, changes);
  show();
  address();
}

app.addEventListener("input", ({ target: { name, value } }) => {
  const number = { run: Number, turn: Number, round: Number }[name];
  const restart = ["run", "prompt", "turn"].includes(name) ? { round: 1 } : {};
  go({ ...restart, [name]: number ? number(value) : value });
});
form.back.addEventListener("click", () => go({ round: state.round - 1 }));
form.next.addEventListener("click", () => go({ round: state.round + 1 }));
app.addEventListener("keydown", (event) => {
  // Fields and boxes that scroll have their own use for these keys.
  if (event.target.closest("select, input, [role=region]") || event.altKey || event.ctrlKey || event.metaKey) return;
  const round = { ArrowLeft: state.round - 1, ArrowRight: state.round + 1, Home: 1, End: last() }[event.key];
  if (round === undefined) return;
  event.preventDefault();
  go({ round });
});
addEventListener("hashchange", () => read() && show());
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => (part.open = true)));

app.hidden = false;
const shared = read();
show();
if (shared) app.scrollIntoView({ behavior: "instant" });
