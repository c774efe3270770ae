import { type CallArguments, type Connection, ConnectionError, type OperationName, ProblemError, retryPause, sleep } from "./http.js";
import type { ChangeEvent, ObservationEvent, SessionStreamEvent } from "./types.js";

const STREAM_SILENCE_SECONDS = 45;
/** Seconds after which the end of a stream without events does not count as a failure. */
const CALM_SECONDS = 5;
const LIVE_EVENTS = new Set(["token", "growing", "progress", "resync", "lagged", "bye"]);

interface Frame {
  id?: number;
  event: string;
  data: unknown;
}

/** An event of a session with its cursor. Live events, such as `token`, have none. */
export type EventWithCursor = SessionStreamEvent & { id?: number };

export interface EventOptions {
  /** Cursor after which the events start; 0 is the beginning of the session. Default: 0. */
  after?: number;
  /** Names of live events to receive in addition to all others: `token`, `growing`, `progress`. Default: none. */
  live?: ReadonlyArray<"token" | "growing" | "progress">;
  /** Ends the stream when it is aborted. */
  signal?: AbortSignal;
}

const RECORD_EVENTS = [
  "message", "turn", "answer", "tools", "result", "reply", "event", "route", "call", "approval", "decision", "lift",
  "state", "schedule", "ended", "failed", "feedback", "closed",
];

/**
 * Yield the events of a session, each once. A lost connection is opened again at the last cursor.
 *
 * The generator ends when the session is closed.
 */
export async function* sessionEvents(
  connection: Connection,
  session: { id: string; agent?: string },
  options: EventOptions = {},
): AsyncGenerator<EventWithCursor, void, undefined> {
  const given: CallArguments<"get_events"> = { path: { id: session.id } };
  if (session.agent !== undefined) given.query = { agent: session.agent };
  yield* eventsOf(connection, "get_events", given, {}, options);
}

/**
 * Send a message with `stream`, and yield the events of its run, each once. A lost connection is opened again at the last cursor.
 *
 * The generator ends when the run has ended, or waits for approvals or calls.
 */
export async function* runEvents(
  connection: Connection,
  given: CallArguments<"say">,
  key: string,
  options: EventOptions & { headers?: Record<string, string> },
): AsyncGenerator<EventWithCursor, void, undefined> {
  let isSuspended = false;
  const isOver = async () => {
    if (!isSuspended) return false; // the connection was lost
    const request = { path: { ...given.path, m: key }, ...(given.query ? { query: given.query } : {}) };
    return (await connection.call("get_run", request)).status === "suspended";
  };
  const headers = { ...options.headers, "idempotency-key": key };
  for await (const event of eventsOf(connection, "say", given, headers, options, isOver)) {
    yield event;
    if (event.event === "ended" && event.data.message_id === key) return;
    if (event.event === "turn") isSuspended = event.data.phase === "suspended";
  }
}

async function* eventsOf<N extends "get_events" | "say">(
  connection: Connection,
  name: N,
  given: CallArguments<N>,
  headers: Record<string, string>,
  options: EventOptions,
  isOver?: () => Promise<boolean>,
): AsyncGenerator<EventWithCursor, void, undefined> {
  let cursor = options.after ?? 0;
  if (options.live?.length) headers["actgent-events"] = [...RECORD_EVENTS, ...options.live].join(",");
  const open = () => {
    if (cursor) headers["last-event-id"] = String(cursor);
    return openStream(connection, name, given, headers, options.signal);
  };
  let held: Frame[] = []; // events of a record whose last event, which has the cursor, has not arrived
  for await (const frame of reconnecting(connection, open, options.signal, () => (held = []), isOver)) {
    if (frame.event === "resync") {
      held = [];
      cursor = frame.id ?? cursor;
      yield frame as EventWithCursor;
    } else if (LIVE_EVENTS.has(frame.event)) {
      yield frame as EventWithCursor;
    } else {
      held.push(frame);
      if (frame.id === undefined) continue;
      const complete = held;
      held = [];
      if (frame.id <= cursor) continue;
      cursor = frame.id;
      for (const each of complete) yield { ...each, id: cursor } as EventWithCursor;
      if (frame.event === "closed") return;
    }
  }
}

/** Yield the changes in all sessions that the token may access. After `resync`, read the lists again. */
export async function* changes(
  connection: Connection,
  watch: string,
  signal?: AbortSignal,
): AsyncGenerator<ChangeEvent, void, undefined> {
  const open = () => openStream(connection, "watch", { query: { watch } }, {}, signal);
  let isFirst = true;
  const begin = () => {
    isFirst = false;
  };
  for await (const frame of reconnecting(connection, open, signal, begin)) {
    if (frame.event !== "bye" && frame.event !== "lagged") yield frame as ChangeEvent;
    else if (!isFirst) yield { event: "resync", data: {} };
  }
}

/** Yield the observations of a session: intents, plans, thoughts, tools, answers and errors. */
export async function* observations(
  connection: Connection,
  session: { id: string; agent?: string },
  options: { after?: number; types?: string; turn?: string; signal?: AbortSignal } = {},
): AsyncGenerator<Extract<ObservationEvent, { event: "observation" }>["data"], void, undefined> {
  let cursor = options.after ?? 0;
  const query: NonNullable<CallArguments<"get_observations">["query"]> = {};
  if (session.agent !== undefined) query.agent = session.agent;
  if (options.types !== undefined) query.types = options.types;
  if (options.turn !== undefined) query.turn = options.turn;
  const open = () =>
    openStream(
      connection, "get_observations", { path: { id: session.id }, query },
      { "last-event-id": String(cursor) }, options.signal,
    );
  for await (const frame of reconnecting(connection, open, options.signal, () => undefined)) {
    if (frame.event === "end") return;
    if (frame.event !== "observation") continue;
    const found = frame.data as Extract<ObservationEvent, { event: "observation" }>["data"];
    cursor = frame.id ?? cursor;
    yield found;
  }
}

async function* reconnecting(
  connection: Connection,
  open: () => Promise<AsyncGenerator<Frame, void, undefined> | null>,
  signal: AbortSignal | undefined,
  begin: () => void,
  isOver = async () => false,
): AsyncGenerator<Frame, void, undefined> {
  let until = Date.now() + connection.retrySeconds * 1000;
  for (let tries = 0; ; ) {
    let minimum = 0;
    try {
      begin();
      const frames = await open();
      if (frames === null) return;
      const opened = Date.now();
      let isCut = false;
      for await (const frame of frames) {
        isCut = frame.event === "bye" || frame.event === "lagged";
        if (isCut) break;
        tries = 0;
        until = Date.now() + connection.retrySeconds * 1000;
        yield frame;
      }
      if (Date.now() - opened > CALM_SECONDS * 1000) tries = 0; // a proxy cuts quiet streams
      if (!isCut && (await isOver())) return;
    } catch (error) {
      const isTemporary =
        error instanceof ConnectionError || (error instanceof ProblemError && (error.isTemporary || error.problem.may_be_done));
      if (signal?.aborted || !isTemporary || Date.now() >= until) throw error;
      if (error instanceof ProblemError) minimum = error.problem.retry_after ?? 0;
    }
    if (signal?.aborted) throw signal.reason;
    await sleep(retryPause(tries++, minimum), signal);
  }
}

/** Open a stream, and return its events; null if the server has no more events. */
async function openStream<N extends OperationName>(
  connection: Connection,
  name: N,
  given: CallArguments<N>,
  headers: Record<string, string>,
  signal: AbortSignal | undefined,
): Promise<AsyncGenerator<Frame, void, undefined> | null> {
  const stop = new AbortController();
  const abort = () => stop.abort(signal?.reason);
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  const release = () => signal?.removeEventListener("abort", abort);
  try {
    const response = await connection.send(name, { ...given, signal: stop.signal }, { ...headers, accept: "text/event-stream" });
    if (response.status === 204 || response.body === null) {
      release();
      return null;
    }
    if (response.status === 202) throw new ConnectionError("no node serves the session at the moment");
    if (!(response.headers.get("content-type") ?? "").startsWith("text/event-stream")) {
      throw new ConnectionError("the response is not an event stream: check that url is that of an actgent gateway");
    }
    return frames(response.body, stop, release);
  } catch (error) {
    release();
    throw error;
  }
}

function parseData(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch (error) {
    throw new ConnectionError(`the data of an event is not JSON: ${String(error)}`, { cause: error });
  }
}

/** Decode the server-sent events of a response. A stream that is silent for too long counts as lost. */
async function* frames(
  body: ReadableStream<Uint8Array>,
  stop: AbortController,
  release: () => void,
): AsyncGenerator<Frame, void, undefined> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let frame: { id?: number; event: string; data: string[] } = { event: "message", data: [] };
  try {
    for (;;) {
      const timer = setTimeout(() => stop.abort(new ConnectionError("the stream is silent")), STREAM_SILENCE_SECONDS * 1000);
      let chunk: ReadableStreamReadResult<Uint8Array>;
      try {
        chunk = await reader.read();
      } catch (error) {
        if (stop.signal.aborted) throw stop.signal.reason;
        throw new ConnectionError(`the stream broke off: ${String(error)}`, { cause: error });
      } finally {
        clearTimeout(timer);
      }
      if (chunk.done) return;
      const lines = (rest + decoder.decode(chunk.value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        const colon = line.indexOf(":");
        const field = colon < 0 ? line : line.slice(0, colon);
        const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (line === "") {
          if (frame.data.length) yield { ...frame, data: parseData(frame.data.join("\n")) };
          frame = { event: "message", data: [] };
        } else if (field === "data") frame.data.push(value);
        else if (field === "event") frame.event = value;
        else if (field === "id" && /^\d+$/.test(value)) frame.id = Number(value);
      }
    }
  } finally {
    release();
    await reader.cancel().catch(() => undefined);
    stop.abort();
  }
}
