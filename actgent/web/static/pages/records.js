// Formats journal records as one line each, and the difference between two states.

const textOf = (message) => (message?.parts || []).filter((part) => part.type === "text").map((part) => part.text).join(" ");
const callsOf = (message) => (message?.parts || []).filter((part) => "arguments" in part);
const resultsOf = (message) => (message?.parts || []).filter((part) => "call_id" in part && !("arguments" in part));
const inShort = (value) => {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return text.length > 200 ? `${text.slice(0, 200)} …` : text;
};

const SENTENCES = {
  opened: (record) => `for ${record.owner?.name || record.owner || "nobody"}`,
  accepted: ({ message }) => `${message.sender?.name || ""}: ${textOf(message)}`,
  appended: (record) => `${record.joins ? "joins the turn" : record.is_repeated ? "the turn resumes" : "a turn begins"}: ${record.message_id}`,
  said: ({ message, stop }) => [textOf(message), ...callsOf(message).map((call) => `calls ${call.name}`), ...resultsOf(message).map((each) => `${each.tool_name} → ${each.status}`), stop].filter(Boolean).join(" · "),
  started: (record) => record.call_ids.join(", "),
  finished: ({ result }) => `${result.tool_name} → ${result.status}: ${result.error || inShort(result.content ?? "")}`,
  changed: (record) => Object.entries(record.changes).map(([name, value]) => `${name}: ${inShort(value)}`).join(", "),
  told: (record) => `${record.kind} ${record.text || record.name || ""}`,
  delivered: (record) => record.ids.join(", "),
  ended: (record) => (record.failed ? `failed: ${record.failed} ${record.error} ${record.error_text}` : "answered"),
  asked: ({ approval }) => `${approval.tool_name} waits for an approval`,
  decided: (record) => `${record.decision?.type || "decided"} by ${record.by?.name || record.by || "the clock"}`,
  lifted: (record) => `${record.by} trusts the text of ${record.source} so far${record.reason ? `: ${record.reason}` : ""}`,
  scheduled: (record) => `${record.description} ${record.cron || ""}`,
  spent: (record) => Object.entries({ "model calls": record.model_calls, "tool calls": record.tool_calls, tokens: record.tokens, "$": record.cost, s: record.seconds }).filter(([, value]) => value).map(([name, value]) => `${Number(value.toPrecision(3))} ${name}`).join(", ") + (record.turn ? "" : " of the session"),
};

export function sentenceOf(record) {
  const told = SENTENCES[record.type];
  return told ? inShort(told(record)) : "";
}

// Returns rows of [sign, name, value]: unchanged, added and removed entries.
export function changesOf(before, after) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort();
  return names.flatMap((name) => {
    const [old, now] = [before, after].map((state) => (name in state ? JSON.stringify(state[name]) : null));
    if (old === now) return [[" ", name, now]];
    return [...(old === null ? [] : [["-", name, old]]), ...(now === null ? [] : [["+", name, now]])];
  });
}
