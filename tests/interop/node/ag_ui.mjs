// `HttpAgent` of @ag-ui/client, unchanged, with its checks of schemas and of the order of events, against URL with TOKEN.
import { HttpAgent } from "@ag-ui/client";

import { check, equal, report } from "./cases.mjs";

const headers = { Authorization: `Bearer ${process.env.TOKEN}` };
const makeAgent = (threadId) => new HttpAgent({ url: `${process.env.URL}/agui/clerk`, threadId, headers });
const LOCATE = {
  name: "locate",
  description: "Position of the user.",
  parameters: { type: "object", properties: { unit: { type: "string" } }, required: ["unit"] },
};

async function run(agent, text, options = {}) {
  if (text) agent.addMessage({ id: `m-${text}`, role: "user", content: text });
  const kinds = [];
  await agent.runAgent(options, { onEvent: ({ event }) => void kinds.push(event.type) });
  return kinds;
}

const lastText = (agent) => agent.messages.at(-1).content;

await check("text", async () => {
  const agent = makeAgent("text");
  await run(agent, "hello");
  equal(lastText(agent), "you said: hello");
});
await check("tool of the agent", async () => {
  const agent = makeAgent("tool");
  const kinds = await run(agent, "please add");
  equal(kinds.filter((each) => each === "TOOL_CALL_RESULT").length, 2);
  equal(lastText(agent), "The result is in.");
});
await check("approval", async () => {
  const agent = makeAgent("approval");
  await run(agent, "please pay");
  const [open] = agent.pendingInterrupts;
  await run(agent, "", { resume: [{ interruptId: open.id, status: "resolved", payload: { approved: true } }] });
  equal(lastText(agent), "The result is in.");
});
await check("tool of the client", async () => {
  const agent = makeAgent("client");
  await run(agent, "where am I?", { tools: [LOCATE] });
  const call = agent.messages.at(-1).toolCalls[0];
  equal([call.function.name, call.function.arguments], ["locate", '{"unit": "x"}']);
  agent.addMessage({ id: "result", role: "tool", toolCallId: call.id, content: "Berlin" });
  await run(agent, "", { tools: [LOCATE] });
  equal(lastText(agent), "The result is in. Berlin");
});
await check("failure", async () => {
  const kinds = [];
  const agent = makeAgent("failure");
  agent.addMessage({ id: "m", role: "user", content: "please fail" });
  await agent.runAgent({}, { onEvent: ({ event }) => void kinds.push(event.type) }).catch(() => kinds.push("threw"));
  equal(kinds.includes("RUN_ERROR"), true);
});
await check("repeated run", async () => {
  const seen = [];
  for (let turn = 0; turn < 2; turn += 1) {
    const agent = makeAgent("repeated");
    const kinds = await run(agent, "hello", { runId: "run-1" });
    const { id, content } = agent.messages.at(-1);
    seen.push([[...new Set(kinds)], id, content]); // text may come in other pieces
  }
  equal(seen[1], seen[0]);
});
await check("aborted run goes on", async () => {
  const agent = makeAgent("aborted");
  const running = run(agent, "hello", { runId: "run-1" }).catch(() => []);
  agent.abortRun();
  await running;
  const again = makeAgent("aborted");
  await run(again, "hello", { runId: "run-1" });
  equal(lastText(again), "you said: hello");
});
await check("broken run goes on in the same client", async () => {
  const agent = makeAgent("broken");
  agent.addMessage({ id: "m", role: "user", content: "please add" });
  let received = false;
  const onEvent = ({ event }) => {
    received ||= event.type === "TOOL_CALL_ARGS";
    if (received) agent.abortRun();
  };
  await agent.runAgent({ runId: "run-1" }, { onEvent }).catch(() => undefined);
  equal([received, agent.messages.length > 1], [true, true]);
  await run(agent, "", { runId: "run-1" });
  const calls = agent.messages.flatMap((each) => each.toolCalls ?? []);
  equal(calls.map((each) => JSON.parse(each.function.arguments).b), [3, 3]);
  equal(agent.messages.filter((each) => each.content === "I add. ").length, 1);
  equal(lastText(agent), "The result is in.");
});
report();
