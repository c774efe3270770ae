// `DefaultChatTransport`, which `useChat` uses, and `readUIMessageStream` of `ai`, unchanged, against URL with TOKEN.
import { DefaultChatTransport, readUIMessageStream } from "ai";

import { check, equal, report } from "./cases.mjs";

const transport = new DefaultChatTransport({
  api: `${process.env.URL}/vercel/clerk`,
  headers: { Authorization: `Bearer ${process.env.TOKEN}` },
});
const ask = (text) => ({ id: `m-${text}`, role: "user", parts: [{ type: "text", text }] });
const tools = [{ name: "locate", parameters: { type: "object", properties: { unit: { type: "string" } } } }];

async function send(chatId, messages, { message, body } = {}) {
  const stream = await transport.sendMessages({ chatId, trigger: "submit-message", messages, body });
  return await read(stream, message);
}

async function read(stream, message) {
  let last, failed;
  const options = { stream, message, onError: (error) => void (failed = String(error)) };
  for await (const each of readUIMessageStream(options)) last = each;
  return { last, failed };
}

const textOf = (message) => message.parts.filter((each) => each.type === "text").map((each) => each.text).join("");
const statesOf = (message) => message.parts.filter((each) => each.toolCallId).map((each) => each.state);

await check("text", async () => {
  const { last } = await send("text", [ask("hello")]);
  equal([textOf(last), last.metadata.usage.outputTokens], ["you said: hello", 5]);
});
await check("tool of the agent", async () => {
  const { last } = await send("tool", [ask("please add")]);
  equal([statesOf(last), textOf(last)], [["output-available", "output-available"], "I add. The result is in."]);
});
for (const [approved, ran] of [[true, "output-available"], [false, "output-error"]]) {
  await check(`approval, ${approved}`, async () => {
    const chatId = `approval-${approved}`;
    const { last } = await send(chatId, [ask("please pay")]);
    const asked = last.parts.find((each) => each.state === "approval-requested");
    asked.state = "approval-responded";
    asked.approval = { ...asked.approval, approved, reason: "because" };
    const done = await send(chatId, [ask("please pay"), last], { message: last });
    equal([statesOf(done.last), textOf(done.last), done.last.id], [[ran], "The result is in.", last.id]);
  });
}
await check("tool of the client", async () => {
  const { last } = await send("client", [ask("where am I?")], { body: { tools } });
  const call = last.parts.find((each) => each.state === "input-available");
  equal([call.toolName, call.type], ["locate", "dynamic-tool"]);
  Object.assign(call, { state: "output-available", output: "Berlin" });
  const done = await send("client", [ask("where am I?"), last], { message: last, body: { tools } });
  equal(textOf(done.last), "The result is in. Berlin");
});
await check("failure", async () => {
  const { failed } = await send("failure", [ask("please fail")]);
  equal([failed !== undefined, String(failed).includes("secret-canary")], [true, false]);
});
await check("reconnection without a running turn", async () => {
  equal(await transport.reconnectToStream({ chatId: "text" }), null);
});
await check("reconnection to a suspended turn", async () => {
  const { last } = await send("waits", [ask("please pay")]);
  const stream = await transport.reconnectToStream({ chatId: "waits" });
  const again = await read(stream);
  equal(statesOf(again.last), statesOf(last));
});
report();
