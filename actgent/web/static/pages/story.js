// Groups the events of a session into turns: messages, tool calls, approval decisions, and their times.

import { lasted } from "../parts.js";

export const emptyStory = () => ({ turns: [], byId: new Map(), state: {}, closed: false, growing: null, calls: {}, last: 0 });

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
      span(turn, "in the inbox", "queue", turn.accepted, data.at, { key: "inbox" });
    }
    if (data.phase === "suspended") [turn.asked, turn.waitsFor] = [data.at, data.waits_for];
    if (data.phase === "resumed") {
      span(turn, "suspended", "person", turn.asked, data.at, { key: `suspended-${turn.spans.length}`, waitsFor: turn.waitsFor });
      turn.asked = null;
    }
    turn.phase = data.phase === "suspended" ? "suspended" : "working";
  },
  answer(story, data, turn, record) {
    story.growing = null;
    turn.calls += 1;
    turn.tokens += data.usage.total.input_tokens + data.usage.total.output_tokens;
    turn.cost = turn.cost === null || data.usage.total.cost === null ? null : turn.cost + data.usage.total.cost;
    const end = Date.parse(data.at);
    // A call begins after the spans before it: `seconds` comes from another clock than the times of records, which are rounded to milliseconds.
    const begun = Math.max(Math.min(lastEnd(turn), end), end - data.seconds * 1000);
    if (data.seconds) span(turn, `model · ${turn.calls}`, "model", begun, end, { key: `model-${record}`, record, data });
    if (data.waited >= 0.001) span(turn, "rate limit", "limit", begun, begun + data.waited * 1000, { key: `limit-${record}`, within: `model-${record}` });
    const form = objectIn(data.text); // some protocols let the model write JSON around the text for the user
    if (form) turn.parts.push({ kind: "data", name: "answer as JSON", data: form, text: data.text });
    else if (data.text) turn.parts.push({ kind: "answer", id: data.message_id, text: data.text, cut: data.cut });
    for (const call of data.calls) {
      const part = { kind: "call", call, result: null, begun: end, answer: record };
      story.calls[call.id] = part;
      turn.parts.push(part);
    }
  },
  tools(story, data) {
    for (const id of data.call_ids) if (story.calls[id]) story.calls[id].begun = Date.parse(data.at);
  },
  result(story, data, turn, record) {
    const part = story.calls[data.call_id];
    if (part) {
      part.result = data;
      const failed = data.status !== "success";
      span(turn, data.tool, failed ? "tool bad" : "tool", data.started_at || part.begun, data.ended_at || data.at, { key: `call-${data.call_id}`, record, data, call: part.call });
    } else turn.parts.push({ kind: "call", call: { id: data.call_id, name: data.tool, arguments: {} }, result: data });
  },
  reply(story, data, turn) {
    const known = turn.parts.findLast((part) => part.text === data.text && ["answer", "data"].includes(part.kind));
    if (known) Object.assign(known, { kind: "answer", id: data.id }); // the user reads the JSON
    else if (data.text) turn.parts.push({ kind: "answer", id: data.id, text: data.text });
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
    span(turn, `approval of ${part.approval.tool}`, "person", part.approval.at, data.at, { key: `approval-${data.id}`, data: { ...part.approval, word: data.word, by: data.by } });
    if (story.calls[part.approval.call_id]) Object.assign(story.calls[part.approval.call_id], { waits: false, begun: Date.parse(data.at) });
  },
  state: (story, data) => Object.assign(story.state, data.changes || {}),
  ended(story, data) {
    const turn = turnOf(story, data.message_id, data.at);
    story.growing = null;
    turn.phase = data.failed ? "failed" : "answered";
    turn.ended = data.at;
    if (data.failed === "model") span(turn, `model · ${turn.calls + 1} failed`, "model bad", lastEnd(turn), data.at, { key: "failed", failure: data }); // a failed call has no record
    if (data.failed) turn.parts.push({ kind: "failed", failed: data.failed, words: data.error?.text || data.error?.class || "" });
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

// The JSON object that a text consists of; null for other texts.
function objectIn(text) {
  if (!text?.startsWith("{")) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const TURNLESS = ["message", "state", "ended", "feedback", "closed"];
const mediaOf = (parts) => (parts || []).filter((each) => each.type === "image" || each.type === "file");

function grow(story, data, turn) {
  if (turn?.phase === "waiting") turn.phase = "working";
  const shown = story.growing?.text || "";
  story.growing = { turn: turn?.id, text: shown.slice(0, data.begin || 0) + data.text };
}

function span(turn, label, kind, from, to, more) {
  const [begin, end] = [from, to].map((each) => (typeof each === "string" ? Date.parse(each) : each));
  if (begin && end >= begin) turn.spans.push({ label, kind, begin, end, ...more });
}

// The end of the last span of a turn, or the time at which the turn began.
const lastEnd = (turn) => Math.max(Date.parse(turn.began) || 0, ...turn.spans.map((each) => each.end));

const INBOX = 100; // milliseconds in the inbox that are worth a word

// The time of an ended turn in words: from its start to its end, and the wait in the inbox before.
export function timesOf(turn) {
  if (!turn.ended || !turn.began) return "";
  const waited = Date.parse(turn.began) - Date.parse(turn.accepted);
  return `took ${lasted(Date.parse(turn.ended) - Date.parse(turn.began))}${waited >= INBOX ? `, after ${lasted(waited)} in the inbox` : ""}`;
}

// Applies one event to a story, in place.
export function tell(story, event) {
  const { data } = event;
  if (event.id !== undefined) story.last = Number(event.id);
  const turn = data.turn ? turnOf(story, data.turn, data.at) : story.turns.at(-1);
  if (!turn && !TURNLESS.includes(event.name)) return;
  APPLY[event.name]?.(story, data, turn, event.id === undefined ? undefined : Number(event.id));
  for (const each of [turn, story.byId.get(data.message_id)]) if (each) each.version += 1;
}
