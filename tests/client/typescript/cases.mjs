// Cases of the TypeScript client against a gateway. Prints the outcome of each case as JSON; an empty text is a success.
import { createElement } from "react";
import { act, create } from "react-test-renderer";

import { Client, ConnectionError, ProblemError, SessionStore } from "actgent";
import { useSession } from "actgent/react";

const { URL: url, TOKEN: token, OTHER: other, ADMIN: admin } = process.env;
const client = new Client({ url, token });
const outcomes = {};
globalThis.IS_REACT_ACT_ENVIRONMENT = true;

function check(isTrue, words) {
  if (!isTrue) throw new Error(words);
}

function equal(found, expected, words = "value") {
  check(JSON.stringify(found) === JSON.stringify(expected), `${words}: ${JSON.stringify(found)} instead of ${JSON.stringify(expected)}`);
}

async function run(name, work) {
  try {
    await work();
    outcomes[name] = "";
  } catch (error) {
    outcomes[name] = String(error?.stack ?? error);
  }
}

/** Return a fetch that fails in a given way before or after some requests. */
function faulty(fault) {
  const counts = {};
  return async (address, init) => {
    const key = `${init.method} ${new URL(address).pathname}`;
    counts[key] = (counts[key] ?? 0) + 1;
    return fault(counts[key], () => fetch(address, init), { key, init });
  };
}

/** Return a client whose streams break, each after some more bytes than the one before. */
function cutting() {
  return new Client({
    url,
    token,
    fetch: faulty(async (count, send) => {
      const answer = await send();
      let left = 250 + 400 * count;
      const body = answer.body.pipeThrough(
        new TransformStream({
          transform(chunk, controller) {
            controller.enqueue(chunk.slice(0, left));
            left -= chunk.length;
            if (left <= 0) controller.error(new Error("cut"));
          },
        }),
      );
      return new Response(body, { status: answer.status, headers: answer.headers });
    }),
  });
}

await run("chat returns the outcome", async () => {
  const session = await client.createSession({ agent: "clerk", id: "ts-chat" });
  const status = await session.chat("hello");
  equal([status.status, status.outcome.text], ["answered", "you said: hello"]);
  equal((await session.get()).owner, "ada");
  equal((await session.messages({ limit: 1 })).items[0].text, "you said: hello");
});

await run("creating twice with an id returns the same session", async () => {
  const [one, two] = await Promise.all([1, 2].map(() => client.createSession({ agent: "clerk", id: "ts-twice" })));
  equal([one.id, two.id], ["ts-twice", "ts-twice"]);
});

await run("a message id is one message", async () => {
  const session = await client.createSession({ agent: "clerk" });
  await session.chat("once", { id: "m1" });
  await session.chat("once", { id: "m1" });
  equal((await session.messages()).total, 2);
});

await run("stream yields the events of a message until it ended", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const names = [];
  for await (const event of session.stream("hello")) if (event.id !== undefined) names.push(event.event);
  equal(names.filter((each) => each !== "token"), ["message", "turn", "answer", "reply", "ended"]);
});

await run("the stream of a run resumes after each break, and its message is one message", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const found = [];
  for await (const event of cutting().session(session.id).stream("hello", { live: [], id: "m1" })) found.push(event.event);
  equal(found, ["message", "turn", "answer", "reply", "ended"]);
  equal((await session.messages()).total, 2);
});

await run("runs are listed, and an ended run is not cancelled", async () => {
  const session = await client.createSession({ agent: "clerk" });
  for (const id of ["m1", "m2"]) await session.chat("hello", { id });
  await session.cancel("m1");
  const page = await session.runs({ limit: 1 });
  equal(page.items.map((each) => [each.message_id, each.status]), [["m2", "answered"]]);
  equal((await session.runs({ after: page.next })).items.map((each) => each.message_id), ["m1"]);
});

await run("an approval suspends the stream, and a decision continues it", async () => {
  const session = await client.createSession({ agent: "clerk", mode: "act" });
  const seen = [];
  for await (const event of session.stream("deploy")) seen.push(event);
  equal(seen.at(-1).data.phase, "suspended");
  const [approval] = await session.approvals();
  equal([approval.tool, approval.arguments], ["deploy", { place: "mars" }]);
  await session.approve(approval.id);
  const events = [];
  for await (const event of session.events({ after: seen.findLast((each) => each.id).id })) {
    events.push(event.event);
    if (event.event === "ended") break;
  }
  check(events.includes("decision") && events.includes("result"), events.join());
});

await run("a rejection reaches the model, and a second decision is a conflict", async () => {
  const session = await client.createSession({ agent: "clerk", mode: "act" });
  const status = await session.chat("deploy");
  equal(status.status, "suspended");
  const id = status.waits_for[0].id;
  await session.reject(id, "not today");
  const done = await session.run(status.message_id, { wait: 30 });
  check(done.outcome.text.includes("not today"), done.outcome.text);
  try {
    await session.approve(id);
    check(false, "no conflict");
  } catch (error) {
    check(error instanceof ProblemError, String(error));
    equal([error.kind, error.status], ["already-decided", 409]);
  }
});

await run("interrupt ends a message that waits for an approval", async () => {
  const session = await client.createSession({ agent: "clerk", mode: "act" });
  const status = await session.chat("deploy");
  await session.interrupt({ message_id: status.message_id });
  equal((await session.run(status.message_id, { wait: 30 })).outcome.failed, "interrupted");
});

await run("errors are typed problems", async () => {
  try {
    await new Client({ url, token: other }).session("ts-chat").get();
    check(false, "another owner reads the session");
  } catch (error) {
    check(error instanceof ProblemError && error.kind === "not-found" && error.problem.instance, String(error));
  }
  try {
    await new Client({ url: "http://127.0.0.1:1", token, retrySeconds: 0 }).agents();
    check(false, "no error");
  } catch (error) {
    check(error instanceof ConnectionError, String(error));
  }
});

await run("a message whose answer is lost is sent again, and is one message", async () => {
  const broken = new Client({
    url,
    token,
    fetch: faulty(async (count, send, { key }) => {
      const answer = await send();
      if (key.endsWith("/messages") && count < 3) throw new TypeError("connection reset");
      return answer;
    }),
  });
  const session = await broken.createSession({ agent: "clerk" });
  await session.send("hello", { wait: 30 });
  equal((await session.messages()).total, 2);
});

await run("busy answers are retried, and others are not", async () => {
  let sent = 0;
  const busy = new Client({
    url,
    token,
    fetch: faulty(async (count, send) => {
      sent += 1;
      if (count > 2) return send();
      const problem = { type: "/errors/busy", title: "", status: 429, detail: "", instance: "", retry_after: 0.01 };
      return new Response(JSON.stringify(problem), { status: 429 });
    }),
  });
  check((await busy.agents()).length > 0, "no agents");
  equal(sent, 3);
  await busy.session("never").close().catch((error) => equal(error.kind, "not-found"));
});

/** Return a client whose first answer is replaced, after the server has received the request, and the number of its requests. */
function behindProxy(status, headers, body, options) {
  const proxy = { sent: 0 };
  proxy.client = new Client({
    url,
    token,
    ...options,
    fetch: faulty(async (count, send) => {
      proxy.sent += 1;
      const answer = await send();
      return count > 1 ? answer : new Response(body, { status, headers });
    }),
  });
  return proxy;
}

const PAGE = { "content-type": "text/html" };

await run("answers of a proxy are retried, if the request is repeatable", async () => {
  for (const status of [200, 429, 502, 503, 504, 524]) {
    const proxy = behindProxy(status, PAGE, "<h1>wait</h1>");
    check((await proxy.client.agents()).length > 0, `no agents after ${status}`);
    equal([status, proxy.sent], [status, 2]);
  }
  const session = await client.createSession({ agent: "clerk" });
  for (const status of [502, 504]) {
    const proxy = behindProxy(status, PAGE, "");
    const error = await proxy.client.call("interrupt", { path: { id: session.id }, body: {} }).catch((each) => each);
    equal([error.status, error.problem?.may_be_done, proxy.sent], [status, true, 1]);
  }
});

await run("a redirect and a long Retry-After are errors", async () => {
  const moved = behindProxy(301, { location: "https://other.example/" }, null);
  const error = await moved.client.agents().catch((each) => each);
  check(error.message.includes("redirects to https://other.example/"), String(error));
  const full = behindProxy(503, { ...PAGE, "retry-after": "3600" }, "");
  equal((await full.client.agents().catch((each) => each)).problem.retry_after, 3600);
  equal([moved.sent, full.sent], [1, 1]);
});

await run("a stream that a proxy replaces is opened again", async () => {
  const session = await client.createSession({ agent: "clerk" });
  await session.chat("one");
  const stream = { "content-type": "text/event-stream" };
  for (const [headers, body] of [[PAGE, "<h1>login</h1>"], [stream, "id: 1\ndata: {oops\n\n"], [stream, ""]]) {
    const proxy = behindProxy(200, headers, body);
    const events = proxy.client.session(session.id).events();
    equal((await events.next()).value.event, "message");
    await events.return();
    equal(proxy.sent, 2);
  }
});

await run("a broken stream resumes without gap and without repetition", async () => {
  const direct = await client.createSession({ agent: "clerk" });
  for (const words of ["one", "two", "three"]) await direct.chat(words);
  const expected = (await client.call("get_events", { path: { id: direct.id } })).items;
  const cut = cutting();
  const found = [];
  for await (const event of cut.session(direct.id).events()) {
    found.push([event.id, event.event]);
    if (event.id === expected.at(-1).id) break;
  }
  equal(found, expected.map((each) => [each.id, each.event]));
});

await run("an aborted stream ends with the reason", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("left the page")), 50);
  try {
    for await (const _ of session.events({ signal: stop.signal }));
    check(false, "no error");
  } catch (error) {
    equal(error.message, "left the page");
  }
});

await run("closing ends the events, and changes report the session", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const stop = new AbortController();
  const heads = client.changes(["heads"], stop.signal);
  const first = heads.next();
  await new Promise((resolve) => setTimeout(resolve, 200));
  await session.close();
  equal([(await first).value.event, (await first).value.data.id], ["head", session.id]);
  stop.abort();
  let last;
  for await (const event of session.events()) last = event.event;
  equal(last, "closed");
});

await run("a store follows a session", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const store = new SessionStore(session);
  const ended = new Promise((resolve) => {
    const leave = store.subscribe(() => {
      const { status, entries } = store.getSnapshot();
      if (status === "idle" && entries.length === 2) {
        leave();
        resolve();
      }
    });
  });
  await store.send("hello");
  await ended;
  equal(store.getSnapshot().entries.map((each) => [each.kind, each.text]), [["message", "hello"], ["reply", "you said: hello"]]);
});

await run("useSession shows messages and approvals, and sends decisions", async () => {
  const session = await client.createSession({ agent: "clerk", mode: "act" });
  let shown;
  const View = () => {
    shown = useSession(session);
    return createElement("p", null, shown.status);
  };
  let root;
  await act(async () => {
    root = create(createElement(View));
  });
  const until = async (isDone) => {
    for (let tries = 0; !isDone(); tries++) {
      check(tries < 200, `never reached: ${JSON.stringify(shown)}`);
      await act(() => new Promise((resolve) => setTimeout(resolve, 25)));
    }
  };
  await shown.send("deploy");
  await until(() => shown.approvals.length === 1 && shown.status === "suspended");
  await shown.decide(shown.approvals[0].id, { approve: {} });
  await until(() => shown.status === "idle" && shown.entries.length === 2);
  equal([shown.approvals, shown.entries[1].text], [[], "done: deployed to mars"]);
  equal(root.toJSON().children, ["idle"]);
  await act(async () => root.unmount());
});

await run("a session is added to a dataset", async () => {
  const session = await client.createSession({ agent: "clerk" });
  const { message_id } = await session.chat("hello");
  const root = new Client({ url, token: admin });
  const name = `set-${session.id}`;
  const made = await root.addDatasetCase(name, { session_id: session.id, message_id, expected: "Good day" });
  equal([made.name, made.case.expected], [`${session.id}/${message_id}`, "Good day"]);
  equal(await root.datasetCases(name), [made]);
  equal((await root.datasets()).filter((each) => each.name === name).map((each) => each.cases), [1]);
  const edited = await root.replaceDatasetCase(name, made, { ...made.case, expected: "Good evening" });
  equal([edited.name, edited.case.expected], [made.name, "Good evening"]);
  const conflict = await root.removeDatasetCase(name, made).catch((error) => error);
  check(conflict instanceof ProblemError && conflict.kind === "conflict", String(conflict));
  await root.removeDatasetCase(name, edited);
  equal(await root.datasetCases(name), []);
  equal(await root.evaluations(name), []);
  const missing = await root.evaluation(name, "x").catch((error) => error);
  check(missing instanceof ProblemError && missing.kind === "not-found", String(missing));
});

console.log(JSON.stringify(outcomes));
process.exit(0);
