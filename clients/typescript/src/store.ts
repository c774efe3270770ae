import type { Content, SendOptions, Session } from "./index.js";
import type * as api from "./types.js";

/** A message, reply or failure of the conversation, in order. */
export interface Entry {
  id: string;
  kind: "message" | "reply" | "failure";
  text: string;
  /** Parts of a message: text, pictures and files. */
  parts: api.Part[];
}

/** State of a session for a user interface. Each change makes a new object. */
export interface Snapshot {
  /** `connecting` until the first event or the first answer of the server. */
  status: "connecting" | "idle" | "working" | "suspended" | "closed" | "failed";
  entries: readonly Entry[];
  /** Text of the unfinished answer; empty if there is none. */
  partial: string;
  /** Tool calls without a result. */
  calls: readonly api.ToolCall[];
  /** Approvals that wait for a decision. */
  approvals: readonly api.Approval[];
  /** Calls of tools that this program runs itself. */
  callerCalls: readonly api.CallerCall[];
  /** Error that has ended the connection; undefined if there is none. */
  error: Error | undefined;
}

const START: Snapshot = {
  status: "connecting",
  entries: [],
  partial: "",
  calls: [],
  approvals: [],
  callerCalls: [],
  error: undefined,
};

/** Follows a session, and keeps its state. It connects with the first listener and disconnects after the last. */
export class SessionStore {
  #snapshot = START;
  #cursor = 0;
  #listeners = new Set<() => void>();
  #connection: AbortController | undefined;

  constructor(readonly session: Session) {}

  /** Return the current state. It is the same object until the state changes. */
  readonly getSnapshot = (): Snapshot => this.#snapshot;

  /** Call a function after each change. Returns a function that removes it. */
  readonly subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    if (this.#connection === undefined) void this.#follow((this.#connection = new AbortController()));
    return () => {
      this.#listeners.delete(listener);
      if (this.#listeners.size) return;
      this.#connection?.abort();
      this.#connection = undefined;
    };
  };

  /** Send a message. */
  send(content: Content, options?: SendOptions): Promise<api.Run> {
    return this.session.send(content, options);
  }

  async #follow(connection: AbortController): Promise<void> {
    try {
      const known = await this.session.get();
      this.#change({ status: known.status === "waiting" ? "working" : known.status });
      const options = { after: this.#cursor, live: ["token", "growing"] as const, signal: connection.signal };
      for await (const event of this.session.events(options)) {
        if (connection.signal.aborted) return;
        if (event.id !== undefined) this.#cursor = event.id;
        this.#change(reduce(this.#snapshot, event));
      }
    } catch (error) {
      if (connection.signal.aborted) return;
      this.#change({ status: "failed", error: error instanceof Error ? error : new Error(String(error)) });
    }
  }

  #change(changes: Partial<Snapshot>): void {
    this.#snapshot = { ...this.#snapshot, ...changes };
    for (const listener of this.#listeners) listener();
  }
}

/** Return the changes of the state that an event causes. */
export function reduce(state: Snapshot, event: api.SessionStreamEvent): Partial<Snapshot> {
  switch (event.event) {
    case "message": {
      const { message_id, text, parts } = event.data;
      return { entries: [...state.entries, { id: message_id, kind: "message", text, parts }] };
    }
    case "turn":
      return { status: event.data.phase === "suspended" ? "suspended" : "working" };
    case "token":
    case "growing":
      return { partial: state.partial.slice(0, event.data.begin) + event.data.text };
    case "answer":
      return { partial: "", calls: [...state.calls, ...event.data.calls] };
    case "result":
      return { calls: state.calls.filter((call) => call.id !== event.data.call_id) };
    case "reply": {
      const { id, text } = event.data;
      return { entries: [...state.entries, { id, kind: "reply", text: text ?? "", parts: [] }] };
    }
    case "approval":
      return { approvals: [...state.approvals, event.data] };
    case "call":
      return { callerCalls: [...state.callerCalls, event.data] };
    case "decision":
      return {
        approvals: state.approvals.filter((each) => each.id !== event.data.id),
        callerCalls: state.callerCalls.filter((each) => each.id !== event.data.id),
      };
    case "ended": {
      const { message_id, failed, error } = event.data;
      const ended = { status: "idle", partial: "", calls: [] } as const;
      if (failed === null) return ended;
      const text = error?.text || failed;
      return { ...ended, entries: [...state.entries, { id: message_id, kind: "failure", text, parts: [] }] };
    }
    case "closed":
      return { status: "closed", partial: "", calls: [], approvals: [], callerCalls: [] };
    case "resync":
      return { ...START };
    default:
      return {};
  }
}
