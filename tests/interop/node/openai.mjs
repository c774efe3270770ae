// The OpenAI SDK for Node and the provider of the Vercel AI SDK, unchanged, against URL with TOKEN.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";

import { check, equal, report } from "./cases.mjs";

const baseURL = `${process.env.URL}/openai/v1`;
const apiKey = process.env.TOKEN;
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const provider = createOpenAI({ baseURL, apiKey });
const model = "clerk";
const parameters = { type: "object", properties: { unit: { type: "string" } }, required: ["unit"] };
const locate = { name: "locate", description: "Position of the user.", parameters };
const chat = (content, more = {}) => ({ model, messages: [{ role: "user", content }], ...more });
const functions = { locate: tool({ description: "Position.", inputSchema: jsonSchema(parameters), execute: async () => "Berlin" }) };

await check("models", async () => {
  const names = (await client.models.list()).data.map((each) => each.id);
  equal(names, ["clerk", "gpt-5-clerk"]);
});
await check("chat completion", async () => {
  const made = await client.chat.completions.create(chat("hello"));
  equal(made.choices[0].message.content, "you said: hello");
});
await check("streamed chat completion", async () => {
  const stream = client.chat.completions.stream(chat("hello"));
  equal(await stream.finalContent(), "you said: hello");
});
await check("tools of the client in a chat completion", async () => {
  const runner = client.chat.completions.runTools(
    chat("where am I?", {
      tools: [{ type: "function", function: { ...locate, parse: JSON.parse, function: () => "Berlin" } }],
    }),
  );
  equal(await runner.finalContent(), "The result is in. Berlin");
});
await check("response", async () => {
  const made = await client.responses.create({ model, input: "hello" });
  const again = await client.responses.create({ model, input: "again", previous_response_id: made.id });
  equal([made.output_text, again.output_text], ["you said: hello", "you said: again"]);
});
await check("streamed response", async () => {
  const stream = client.responses.stream({ model, input: "hello" });
  equal((await stream.finalResponse()).output_text, "you said: hello");
});
await check("tools of the client in a response", async () => {
  const made = await client.responses.create({ model, input: "where am I?", tools: [{ type: "function", ...locate }] });
  const [call] = made.output;
  equal([call.type, call.name, call.arguments], ["function_call", "locate", '{"unit": "x"}']);
  const output = { type: "function_call_output", call_id: call.call_id, output: "Berlin" };
  const done = await client.responses.create({ model, input: [output], previous_response_id: made.id });
  equal(done.output_text, "The result is in. Berlin");
});
await check("background response", async () => {
  let made = await client.responses.create({ model, input: "hello", background: true });
  while (["queued", "in_progress"].includes(made.status)) made = await client.responses.retrieve(made.id);
  equal([made.status, made.output_text], ["completed", "you said: hello"]);
});
await check("stream that is continued", async () => {
  const stream = await client.responses.create({ model, input: "hello", background: true, stream: true });
  let id;
  for await (const event of stream) {
    id ??= event.response?.id;
    if (event.sequence_number === 1) break;
  }
  const numbers = [];
  for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 1 })) {
    numbers.push(event.sequence_number);
  }
  equal(numbers[0], 2);
});
await check("error class", async () => {
  try {
    await client.chat.completions.create({ ...chat("hello"), model: "nobody" });
  } catch (error) {
    equal([error.constructor.name, error.status, error.code], ["NotFoundError", 404, "model_not_found"]);
    return;
  }
  throw new Error("no error");
});
for (const [kind, made] of [["Responses", provider.responses(model)], ["chat completions", provider.chat(model)]]) {
  await check(`AI SDK, ${kind}`, async () => {
    equal((await generateText({ model: made, prompt: "hello" })).text, "you said: hello");
  });
  await check(`AI SDK, streamed ${kind}`, async () => {
    let text = "";
    for await (const each of streamText({ model: made, prompt: "hello" }).textStream) text += each;
    equal(text, "you said: hello");
  });
  await check(`AI SDK, tools over ${kind}`, async () => {
    const done = await generateText({ model: made, prompt: "where am I?", tools: functions, stopWhen: stepCountIs(3) });
    equal(done.text, "The result is in. Berlin");
  });
}
report();
