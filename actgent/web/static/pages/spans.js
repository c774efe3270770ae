// The spans of one turn as a tree in the order of their begin, with the spans of its child sessions.

import { get, path } from "../api.js";
import { readEvents, storyOf } from "./feed.js";

const MOST_CHILDREN = 50; // child sessions that are read for one turn
const MOST_RECORDS = 5000; // of one child session
const DEEPEST = 4; // levels of child sessions

// Spans of a turn that have not ended yet: queued, suspended, running calls, pending approvals, and the model call.
function openSpans(turn, now) {
  const found = [];
  const add = (label, kind, begin, more) => begin && found.push({ label, kind, begin, end: now, isOpen: true, ...more });
  const ended = Boolean(turn.ended);
  if (ended) return found;
  if (!turn.began) add("in the inbox", "queue", Date.parse(turn.accepted || turn.at), { key: "inbox" });
  for (const part of turn.parts) {
    if (part.kind === "call" && !part.result && !part.waits) add(part.call.name, "tool", part.begun, { key: `call-${part.call.id}`, call: part.call });
    if (part.kind === "approval" && !part.word) add(`approval of ${part.approval.tool}`, "person", Date.parse(part.approval.at), { key: `approval-${part.approval.id}`, data: part.approval });
  }
  if (turn.asked) add("suspended", "person", Date.parse(turn.asked), { key: "suspended-open", waitsFor: turn.waitsFor });
  else if (turn.began && !found.length && turn.phase === "working") add(`model · ${turn.calls + 1}`, "model", Math.max(Date.parse(turn.began), ...turn.spans.map((each) => each.end)), { key: "model-open" });
  return found;
}

// Returns the rows of a turn: each span with its depth. A rate limit belongs to its model call, an approval to its suspension,
// and the turns of a child session to the tool call during which they began.
export function rowsOf(turn, children, now) {
  const spans = [...turn.spans, ...openSpans(turn, now)].sort((one, other) => one.begin - other.begin);
  const inside = new Map();
  const nest = (outer, rows) => inside.set(outer.key, [...(inside.get(outer.key) || []), ...rows]);
  const isWithin = (span, outer) => outer !== span && outer.begin <= span.begin + 1 && outer.end >= span.begin;
  const top = spans.filter((span) => {
    const outer =
      span.kind === "limit" ? spans.find((each) => each.key === span.within)
      : span.key.startsWith("approval") ? spans.find((each) => each.key.startsWith("suspended") && each.begin <= span.end && each.end >= span.begin)
      : null;
    if (outer) nest(outer, [{ ...span, depth: 1 }]);
    return !outer;
  });
  const calls = spans.filter((each) => each.kind.startsWith("tool"));
  const loose = [];
  for (const child of children) {
    for (const below of child.story.turns) {
      const begin = Date.parse(below.accepted || below.at);
      if (!(begin >= Date.parse(turn.at) - 1 && begin <= (turn.ended ? Date.parse(turn.ended) : now))) continue;
      const rows = rowsOf(below, child.children, now).map((each) => ({ ...each, depth: each.depth + 2, session: each.session || child.session, key: `${child.session.id}/${each.key}` }));
      const end = below.ended ? Date.parse(below.ended) : now;
      const head = { key: `child-${child.session.id}-${below.id}`, label: child.session.agent, kind: "child", begin, end, isOpen: !below.ended, depth: 1, session: child.session, turn: below };
      const fits = calls.filter((each) => isWithin(head, each));
      const outer = fits.find((each) => each.label.includes(child.session.agent.replace(/[^a-zA-Z0-9_-]+/g, "_"))) || fits.at(-1);
      if (outer) nest(outer, [head, ...rows]);
      else loose.push({ ...head, depth: 0 }, ...rows.map((each) => ({ ...each, depth: each.depth - 1 })));
    }
  }
  const rows = top.flatMap((span) => [{ ...span, depth: 0 }, ...(inside.get(span.key) || [])]);
  return [...rows, ...loose];
}

// Reads the child sessions that were active during a turn, and theirs.
export async function childrenOf(session, turn, signal, depth = 1) {
  const { items } = await get("/sessions", { parent: session.id, limit: MOST_CHILDREN }, { signal });
  const [begin, end] = [Date.parse(turn.at), turn.ended ? Date.parse(turn.ended) : Infinity];
  const active = items.filter((each) => each.parent?.agent === session.agent && Date.parse(each.created_at) <= end && Date.parse(each.updated_at) >= begin - 1);
  return Promise.all(
    active.map(async (each) => {
      const story = storyOf(await readEvents(each.id, each.agent, Math.max(0, each.records - MOST_RECORDS), each.records, signal));
      const children = depth < DEEPEST ? await childrenOf(each, turn, signal, depth + 1) : [];
      return { session: each, story, children };
    }),
  );
}

// Reads the story of a session around one turn: the turn that begins at record `at`, and the beginning of the next turn.
// Without `at` it is the last turn.
export async function readTurn(id, agent, turnId, at, signal) {
  const head = await get(path("sessions", id), { agent }, { signal });
  const PAGE = 300;
  let after = at ? Math.max(0, at - 1) : head.records;
  let events = [];
  const isHere = (story) => (turnId ? story.byId.has(turnId) : story.turns.length > 0);
  while (!at && after > 0) {
    const begin = Math.max(0, after - PAGE);
    events = [...(await readEvents(id, agent, begin, after, signal)), ...events];
    after = begin;
    const story = storyOf(events);
    const turn = turnId ? story.byId.get(turnId) : story.turns.at(-1);
    if (isHere(story) && turn.parts.some((each) => each.kind === "said")) return { head, story, turn };
  }
  let story = storyOf(events);
  while (after < head.records) {
    const end = Math.min(head.records, after + PAGE);
    events = [...events, ...(await readEvents(id, agent, after, end, signal))];
    after = end;
    story = storyOf(events);
    const turn = turnId ? story.byId.get(turnId) : story.turns[0];
    if (turn?.ended && story.turns.length > turn.number + 1) break;
  }
  const turn = turnId ? story.byId.get(turnId) : story.turns[0];
  return { head, story, turn };
}

// Returns the last turn before a record, or null.
export async function turnBefore(id, agent, record, signal) {
  for (let end = record - 1; end > 0; end -= 300) {
    const story = storyOf(await readEvents(id, agent, Math.max(0, end - 300), end, signal));
    const turn = story.turns.findLast((each) => each.parts.some((part) => part.kind === "said" && part.record));
    if (turn) return turn;
  }
  return null;
}
