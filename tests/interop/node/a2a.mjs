// `ClientFactory` of @a2a-js/sdk, unchanged, over both bindings, against URL with TOKEN; OTHER is a token of another owner.
import { ClientFactory, ClientFactoryOptions, JsonRpcTransportFactory, RestTransportFactory } from "@a2a-js/sdk/client";
import { Role, TaskState } from "@a2a-js/sdk";

import { check, equal, report } from "./cases.mjs";

const url = `${process.env.URL}/a2a/clerk/.well-known/agent-card.json`;
const textOf = (task) =>
  task.artifacts.flatMap((each) => each.parts).map((part) => part.content.value).join("");

async function connect(Transport, token) {
  const fetchImpl = (address, init = {}) =>
    fetch(address, { ...init, headers: { ...Object.fromEntries(new Headers(init.headers)), Authorization: `Bearer ${token}` } });
  const options = { ...ClientFactoryOptions.default, transports: [new Transport({ fetchImpl })] };
  return await new ClientFactory(options).createFromUrl(url, "");
}

function ask(text, messageId, more = {}) {
  const part = { content: { $case: "text", value: text }, metadata: undefined, filename: "", mediaType: "" };
  const message = {
    messageId, contextId: "", taskId: "", role: Role.ROLE_USER, parts: [part], metadata: undefined, extensions: [],
    referenceTaskIds: [], ...more,
  };
  return { tenant: "", message, configuration: undefined, metadata: undefined };
}

async function stream(client, request) {
  const events = [];
  for await (const event of client.sendMessageStream(request)) events.push(event.payload);
  return events;
}

for (const Transport of [JsonRpcTransportFactory, RestTransportFactory]) {
  const name = Transport.name.replace("TransportFactory", "");
  const client = await connect(Transport, process.env.TOKEN);
  const get = (id) => client.getTask({ tenant: "", id });
  await check(`${name}: text`, async () => {
    const task = await client.sendMessage(ask("hello", `${name}-text`));
    equal([task.status.state, textOf(task)], [TaskState.TASK_STATE_COMPLETED, "you said: hello"]);
  });
  await check(`${name}: stream`, async () => {
    const events = await stream(client, ask("please add", `${name}-stream`));
    equal([events[0].$case, events.at(-1).value.status.state], ["task", TaskState.TASK_STATE_COMPLETED]);
    equal(textOf(await get(events[0].value.id)), "The result is in.");
  });
  await check(`${name}: approval`, async () => {
    const asked = await client.sendMessage(ask("please pay", `${name}-pay`));
    equal([asked.status.state, asked.status.message.parts[0].content.value], [TaskState.TASK_STATE_INPUT_REQUIRED, "Really pay?"]);
    const known = { taskId: asked.id, contextId: asked.contextId };
    const done = await client.sendMessage(ask("approve", `${name}-approve`, known));
    equal([done.id, done.status.state, textOf(done)], [asked.id, TaskState.TASK_STATE_COMPLETED, "The result is in."]);
  });
  await check(`${name}: cancel`, async () => {
    const asked = await client.sendMessage(ask("please pay", `${name}-cancel`));
    const ended = await client.cancelTask({ tenant: "", id: asked.id, metadata: undefined });
    equal(ended.status.state, TaskState.TASK_STATE_CANCELED);
  });
  await check(`${name}: subscription`, async () => {
    const asked = await client.sendMessage(ask("please pay", `${name}-subscribe`));
    const states = [];
    for await (const event of client.resubscribeTask({ tenant: "", id: asked.id })) {
      if (states.push(event.payload.value.status?.state) === 1) {
        await client.cancelTask({ tenant: "", id: asked.id, metadata: undefined });
      }
    }
    equal([states[0], states.at(-1)], [TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_CANCELED]);
  });
  await check(`${name}: repeated message`, async () => {
    const tasks = [];
    for (let turn = 0; turn < 2; turn += 1) tasks.push(await client.sendMessage(ask("hello", `${name}-again`)));
    equal(tasks[1].id, tasks[0].id);
    equal(textOf(await get(tasks[0].id)), textOf(tasks[1]));
  });
  await check(`${name}: list`, async () => {
    const known = { contextId: "", status: TaskState.TASK_STATE_COMPLETED, pageToken: "", pageSize: 2, tenant: "" };
    const listed = await client.listTasks({ ...known, historyLength: undefined, statusTimestampAfter: undefined, includeArtifacts: true });
    equal([listed.tasks.length, listed.pageSize, listed.nextPageToken !== ""], [2, 2, true]);
  });
  await check(`${name}: task of another owner`, async () => {
    const task = await client.sendMessage(ask("hello", `${name}-owned`));
    const other = await connect(Transport, process.env.OTHER);
    const error = await other.getTask({ tenant: "", id: task.id }).catch((found) => found);
    equal(error.constructor.name.endsWith("TaskNotFoundError"), true);
  });
}
report();
