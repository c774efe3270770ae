// Groups the events of a session into turns: messages, tool calls, approval decisions, and their times.

export const emptyStory = () => ({ turns: [], byId: new Map(), state: {}, closed: false, growing: null, calls: {} });

// `version` grows with each change of the turn, so that unchanged turns are not rendered again.
function turnOf(story, id, at) {
  let turn = story.byId.get(id);
  if (!turn) {
    turn = { id, at, number: story.turns.length, version: 0, parts: [], phase: "waiting", calls: 0, tokens: 0, cost: 0, spans: [], ratings: {} };
    story.turns.push(turn);
    story.byId.set(id, turn);
  }
  return turn;
}

const APPLY = {
  message(story, data, _, record) {
    const turn = turnOf(story, data.message_id, data.at);
    turn.parts.push({ kind: "said", record, who: data.sender.name, by: data.sender.kind, text: data.text, priority: data.priority, media: mediaOf(data.parts) });
    turn.accepted = data.at;
  },
  turn(story, data, turn) {
    if (data.phase === "started") {
      turn.began = data.at;
      span(turn, "in the inbox", "queue", turn.accepted, data.at);
    }
    if (data.phase === "suspended") turn.asked = data.at;
    if (data.phase === "resumed") span(turn, "a person", "person", turn.asked, data.at);
    turn.phase = data.phase === "suspended" ? "suspended" : "working";
  },
  answer(story, data, turn) {
    story.growing = null;
    turn.calls += 1;
    turn.tokens += data.usage.total.input_tokens + data.usage.total.output_tokens;
    turn.cost = turn.cost === null || data.usage.total.cost === null ? null : turn.cost + data.usage.total.cost;
    const end = Date.parse(data.at);
    if (data.seconds) span(turn, `model · ${turn.calls}`, "model", end - data.seconds * 1000, end);
    if (data.text) turn.parts.push({ kind: "answer", id: data.message_id, text: data.text, cut: data.cut });
    for (const call of data.calls) {
      const part = { kind: "call", call, result: null, begun: end };
      story.calls[call.id] = part;
      turn.parts.push(part);
    }
  },
  result(story, data, turn) {
    const part = story.calls[data.call_id];
    if (part) {
      part.result = data;
      span(turn, data.tool, "tool", part.begun, data.at);
    } else turn.parts.push({ kind: "call", call: { id: data.call_id, name: data.tool, arguments: {} }, result: data });
  },
  reply(story, data, turn) {
    const known = turn.parts.some((part) => part.kind === "answer" && part.text === data.text);
    if (!known && data.text) turn.parts.push({ kind: "answer", id: data.id, text: data.text });
    if (data.data !== null) turn.parts.push({ kind: "data", name: data.message_type || "data", data: data.data });
  },
  event: (story, data, turn) => turn.parts.push({ kind: "data", name: data.name, data: data.data }),
  route: (story, data, turn) => turn.parts.push({ kind: "data", name: `to ${data.action}`, data: data.data }),
  approval(story, data, turn) {
    turn.parts.push({ kind: "approval", approval: data, word: null });
    if (story.calls[data.call_id]) story.calls[data.call_id].waits = true;
  },
  decision(story, data, turn) {
    const part = turn.parts.find((each) => each.kind === "approval" && each.approval.id === data.id);
    if (!part) return;
    Object.assign(part, { word: data.word, by: data.by });
    if (story.calls[part.approval.call_id]) story.calls[part.approval.call_id].waits = false;
  },
  state: (story, data) => Object.assign(story.state, data.changes || {}),
  ended(story, data) {
    const turn = turnOf(story, data.message_id, data.at);
    story.growing = null;
    turn.phase = data.failed ? "failed" : "answered";
    turn.ended = data.at;
    if (data.failed === "model") span(turn, `model · ${turn.calls + 1} failed`, "model", lastEnd(turn), data.at); // a failed call has no record
    if (data.failed) turn.parts.push({ kind: "failed", failed: data.failed, words: data.error?.words || data.error?.class || "" });
  },
  feedback(story, data) {
    const turn = story.byId.get(data.message_id);
    if (turn) turn.ratings[data.by] = data;
  },
  closed: (story) => Object.assign(story, { closed: true }),
  progress(story, data) {
    const part = story.calls[data.call_id];
    if (part) part.progress = data;
  },
  token: grow,
  growing: grow,
};

const TURNLESS = ["message", "state", "ended", "feedback", "closed"];
const mediaOf = (parts) => (parts || []).filter((each) => each.type === "image" || each.type === "file");

function grow(story, data, turn) {
  if (turn?.phase === "waiting") turn.phase = "working";
  const shown = story.growing?.text || "";
  story.growing = { turn: turn?.id, text: shown.slice(0, data.begin || 0) + data.text };
}

function span(turn, label, kind, from, to) {
  const [begin, end] = [from, to].map((each) => (typeof each === "string" ? Date.parse(each) : each));
  if (begin && end >= begin) turn.spans.push({ label, kind, begin, end });
}

// The end of the last span of a turn, or the time at which the turn began.
const lastEnd = (turn) => Math.max(Date.parse(turn.began), ...turn.spans.map((each) => each.end));

// Applies one event to a story, in place.
export function tell(story, event) {
  const { data } = event;
  const turn = data.turn ? turnOf(story, data.turn, data.at) : story.turns.at(-1);
  if (!turn && !TURNLESS.includes(event.name)) return;
  APPLY[event.name]?.(story, data, turn, event.id === undefined ? undefined : Number(event.id));
  for (const each of [turn, story.byId.get(data.message_id)]) if (each) each.version += 1;
}
