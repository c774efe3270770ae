// Differences between two sessions: figures, and the steps of their turns side by side.

const MOST_STEPS = 400; // of a turn that are aligned; in longer turns, steps at the same place are compared

// Steps of a turn that can be compared. Ids and times are left out, because they always differ.
function stepsOf(turn) {
  const steps = [];
  for (const part of turn.parts) {
    if (part.kind === "answer") steps.push({ kind: "answer", label: "answer", text: part.text });
    else if (part.kind === "call") {
      steps.push({ kind: "call", label: `calls ${part.call.name}`, text: JSON.stringify(part.call.arguments, null, 2) });
      if (part.result) steps.push({ kind: "result", label: `result of ${part.call.name}${part.result.status === "success" ? "" : `: ${part.result.status.replace("_", " ")}`}`, text: part.result.error || part.result.content });
    } else if (part.kind === "data") steps.push({ kind: "data", label: part.name, text: JSON.stringify(part.data, null, 2) });
    else if (part.kind === "approval") steps.push({ kind: "approval", label: `approval of ${part.approval.tool}`, text: part.word || "open" });
    else if (part.kind === "failed") steps.push({ kind: "failed", label: `failed: ${part.failed}`, text: part.words });
  }
  return steps;
}

const isSame = (one, other) => one.label === other.label && one.text === other.text;
const isLike = (one, other) => one.label === other.label;

// Returns pairs of steps in order: the longest common subsequence of steps with the same label; the other steps have no partner.
function align(one, other) {
  if (one.length > MOST_STEPS || other.length > MOST_STEPS) return Array.from({ length: Math.max(one.length, other.length) }, (_, place) => [one[place], other[place]]);
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint32Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i -= 1)
    for (let j = other.length - 1; j >= 0; j -= 1)
      // An equal step counts more than a step with the same label, so that equal steps become partners.
      lengths[i][j] = Math.max(lengths[i + 1][j], lengths[i][j + 1], isLike(one[i], other[j]) ? lengths[i + 1][j + 1] + (isSame(one[i], other[j]) ? 1000 : 1) : 0);
  const pairs = [];
  let [i, j] = [0, 0];
  while (i < one.length || j < other.length) {
    const gain = i < one.length && j < other.length && isLike(one[i], other[j]) ? lengths[i + 1][j + 1] + (isSame(one[i], other[j]) ? 1000 : 1) : -1;
    if (gain >= 0 && gain === lengths[i][j]) pairs.push([one[i++], other[j++]]);
    else if (j >= other.length || (i < one.length && lengths[i + 1][j] === lengths[i][j])) pairs.push([one[i++], undefined]);
    else pairs.push([undefined, other[j++]]);
  }
  return pairs;
}

const timeOf = (turn) => (turn?.began && turn.ended ? Date.parse(turn.ended) - Date.parse(turn.began) : 0);
const wordsOf = (turn) => turn?.parts.find((each) => each.kind === "said")?.text ?? "";

// Returns the turns of two stories side by side, with their aligned steps and whether anything differs.
export function turnsBeside(one, other) {
  return Array.from({ length: Math.max(one.turns.length, other.turns.length) }, (_, place) => {
    const turns = [one.turns[place], other.turns[place]];
    const steps = align(...turns.map((turn) => (turn ? stepsOf(turn) : []))).map((pair) => ({ pair, differs: !pair[0] || !pair[1] || !isSame(...pair) }));
    const texts = turns.map(wordsOf);
    return { number: place + 1, turns, texts, steps, times: turns.map(timeOf), differs: texts[0] !== texts[1] || !turns[0] !== !turns[1] || steps.some((each) => each.differs) };
  });
}

const sum = (values) => values.reduce((total, each) => total + each, 0);

// Returns the figures of a session.
export function figuresOf({ turns }) {
  const calls = turns.flatMap((turn) => turn.parts.filter((each) => each.kind === "call"));
  const models = new Set(turns.flatMap((turn) => turn.spans.filter((each) => each.kind === "model" && each.data).map((each) => each.data.model)));
  const costs = turns.map((turn) => turn.cost);
  return {
    models: [...models].filter(Boolean).join(", ") || "–",
    turns: turns.length,
    failed: turns.filter((turn) => turn.phase === "failed").length,
    modelCalls: sum(turns.map((turn) => turn.calls)),
    toolCalls: calls.length,
    toolErrors: calls.filter((each) => each.result && each.result.status !== "success").length,
    tokens: sum(turns.map((turn) => turn.tokens)),
    cost: costs.includes(null) ? null : sum(costs),
    time: sum(turns.map(timeOf)),
    modelTime: sum(turns.flatMap((turn) => turn.spans.filter((each) => each.kind.startsWith("model")).map((each) => each.end - each.begin))),
  };
}
