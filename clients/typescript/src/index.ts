import { type EventOptions, type EventWithCursor, changes, observations, runEvents, sessionEvents } from "./events.js";
import { type CallArguments, type ClientOptions, Connection, type OperationName, type RequestOptions } from "./http.js";
import type * as api from "./types.js";

export type { EventOptions, EventWithCursor } from "./events.js";
export {
  type CallArguments,
  type ClientOptions,
  ConnectionError,
  type OperationName,
  ProblemError,
  type RequestOptions,
} from "./http.js";
export { SessionStore, type Snapshot } from "./store.js";
export type * as api from "./types.js";

/** Text, or parts: text, pictures and files. */
export type Content = api.SayBody["input"];
/** Decision of an approval. */
export type Decision = api.PostDecisionBody;

export interface SendOptions extends Omit<api.SayBody, "input" | "message_id" | "stream">, RequestOptions {
  /** Id of the message. A repeated id is the same message. Default: a new one. */
  id?: string;
}

/** The gateway of one or more agents. */
export class Client {
  readonly connection: Connection;

  constructor(options: ClientOptions) {
    this.connection = new Connection(options);
  }

  /** Call any operation of the API by its name in the OpenAPI document. */
  call<N extends OperationName>(name: N, given: CallArguments<N>): Promise<api.Operations[N]["answer"]> {
    return this.connection.call(name, given);
  }

  /** Create a session of an agent. With an `id`, a repeated call returns the same session. */
  async createSession(options: api.PostSessionBody & { id?: string } & RequestOptions): Promise<Session> {
    const { id, signal, idempotencyKey, headers, wait: _, ...body } = options;
    const request = defined({ signal, idempotencyKey, headers });
    const made =
      id === undefined
        ? await this.call("post_session", { body, ...request })
        : await this.connection.call("put_session", { path: { id }, body, ...request });
    return new Session(this, made.id, made.agent);
  }

  /** Return a handle of an existing session. Nothing is sent. `agent` is needed only if several agents have this id. */
  session(id: string, agent?: string): Session {
    return new Session(this, id, agent);
  }

  /** Return a page of the sessions that the token may access, the last changed first. */
  sessions(query: NonNullable<api.Operations["list_sessions"]["query"]> = {}): Promise<api.SessionSummaryPage> {
    return this.call("list_sessions", { query });
  }

  /** Return the running agents. */
  async agents(): Promise<api.Agent[]> {
    return (await this.call("list_agents", {})).items;
  }

  /** Return open approvals, the oldest first. */
  approvals(query: NonNullable<api.Operations["get_approvals"]["query"]> = {}): Promise<api.ApprovalPage> {
    return this.call("get_approvals", { query });
  }

  /** Decide an approval of any session. */
  async decide(approvalId: string, decision: Decision): Promise<void> {
    await this.call("post_decision", { path: { id: approvalId }, body: decision });
  }

  /** Return owner and scopes of the token. */
  me(): Promise<api.Identity> {
    return this.call("get_me", {});
  }

  /** Return the evaluation datasets of the server, by name. Requires the scope admin. */
  async datasets(): Promise<api.Dataset[]> {
    return (await this.call("list_datasets", {})).items;
  }

  /** Return the cases of a dataset, in the order of the file. Requires the scope admin. */
  async datasetCases(name: string): Promise<api.DatasetCase[]> {
    return (await this.call("get_dataset_cases", { path: { d: name } })).items;
  }

  /** Append a session as a case to a dataset. A missing dataset is created. Requires the scope admin. */
  addDatasetCase(name: string, session: api.AddDatasetCaseBody): Promise<api.DatasetCase> {
    return this.call("add_dataset_case", { path: { d: name }, body: session });
  }

  /** Replace the content of a case that `datasetCases` returned. A changed name renames the case. Requires the scope admin. */
  replaceDatasetCase(name: string, { name: id, version }: api.DatasetCase, content: api.DatasetCase["case"]): Promise<api.DatasetCase> {
    return this.call("replace_dataset_case", { path: { d: name, case: id }, body: { version, case: content } });
  }

  /** Remove a case that `datasetCases` returned. Requires the scope admin. */
  async removeDatasetCase(name: string, { name: id, version }: api.DatasetCase): Promise<void> {
    await this.call("remove_dataset_case", { path: { d: name, case: id }, query: { version } });
  }

  /** Return the evaluations of a dataset, the latest first. Requires the scope admin. */
  async evaluations(name: string): Promise<api.EvaluationSummary[]> {
    return (await this.call("list_evaluations", { path: { d: name } })).items;
  }

  /** Return the results of an evaluation, compared with the evaluation before. Requires the scope admin. */
  evaluation(name: string, evaluationId: string): Promise<api.Evaluation> {
    return this.call("get_evaluation", { path: { d: name, evaluation: evaluationId } });
  }

  /** Follow the changes in all sessions; `watch` names the kinds: `heads`, `agents`, `approvals`, `errors`. */
  changes(watch: ReadonlyArray<"heads" | "agents" | "approvals" | "errors">, signal?: AbortSignal): AsyncGenerator<api.ChangeEvent, void, undefined> {
    return changes(this.connection, watch.join(","), signal);
  }
}

/** A session. The object holds no connection and need not be closed. */
export class Session {
  constructor(
    readonly client: Client,
    readonly id: string,
    readonly agent?: string,
  ) {}

  get #path() {
    return { path: { id: this.id }, ...(this.agent === undefined ? {} : { query: { agent: this.agent } }) };
  }

  /** Return the current state of the session. */
  async get(): Promise<api.Session> {
    return (await this.client.call("get_session", this.#path)) as api.Session;
  }

  /** Send a message, and return when it is accepted; with `wait`, after at most so many seconds when it has ended. */
  send(input: Content, options: SendOptions = {}): Promise<api.Run> {
    const { id, signal, idempotencyKey, headers, wait, ...body } = options;
    return this.client.call("say", {
      ...this.#path,
      body: { ...body, input },
      ...defined({ signal, headers, wait }),
      idempotencyKey: id ?? idempotencyKey ?? crypto.randomUUID(),
    });
  }

  /**
   * Send a message, and wait until it is answered, has failed, or waits for approvals.
   *
   * The status tells which. A failed message is no exception: `outcome.failed` names the kind of the failure.
   */
  async chat(input: Content, options: SendOptions = {}): Promise<api.Run> {
    let run = await this.send(input, { wait: 60, ...options });
    while (run.status === "waiting" || run.status === "working") {
      run = await this.run(run.message_id, { wait: 60, ...defined({ signal: options.signal }) });
    }
    return run;
  }

  /** Return the run of a message: its status and outcome; with `wait`, after at most so many seconds when it has ended. */
  run(messageId: string, options: RequestOptions = {}): Promise<api.Run> {
    return this.client.call("get_run", {
      path: { id: this.id, m: messageId },
      ...(this.agent === undefined ? {} : { query: { agent: this.agent } }),
      ...options,
    });
  }

  /** Return a page of the runs of the session, the newest first. */
  runs(query: Omit<NonNullable<api.Operations["list_runs"]["query"]>, "agent"> = {}): Promise<api.RunPage> {
    return this.client.call("list_runs", {
      path: { id: this.id },
      query: { ...query, ...defined({ agent: this.agent }) },
    });
  }

  /** Cancel a run, working or still queued. Returns when its turn has ended. */
  async cancel(messageId: string, options: api.CancelRunBody = {}): Promise<void> {
    await this.client.call("cancel_run", {
      path: { id: this.id, m: messageId },
      body: options,
      ...(this.agent === undefined ? {} : { query: { agent: this.agent } }),
    });
  }

  /** Send a message, and yield the events from its record on, until it has ended or waits for approvals. */
  async *stream(
    input: Content,
    options: SendOptions & Pick<EventOptions, "live"> = {},
  ): AsyncGenerator<EventWithCursor, void, undefined> {
    const { live, id, signal, idempotencyKey, headers, wait: _, ...body } = options;
    const key = id ?? idempotencyKey ?? crypto.randomUUID();
    const request = { ...this.#path, body: { ...body, input, stream: true } };
    yield* runEvents(this.client.connection, request, key, {
      live: live ?? ["token", "progress"],
      ...defined({ signal, headers }),
    });
  }

  /** Yield the events of the session, each once, also across lost connections. Ends when the session is closed. */
  events(options: EventOptions = {}): AsyncGenerator<EventWithCursor, void, undefined> {
    return sessionEvents(this.client.connection, defined({ id: this.id, agent: this.agent }), options);
  }

  /** Yield the observations of the session: intents, plans, thoughts, tools, answers and errors. */
  observations(
    options: Parameters<typeof observations>[2] = {},
  ): AsyncGenerator<api.Observation, void, undefined> {
    return observations(this.client.connection, defined({ id: this.id, agent: this.agent }), options);
  }

  /** Return messages of the history: the newest, or those before or after an index. */
  messages(query: Omit<NonNullable<api.Operations["get_messages"]["query"]>, "agent"> = {}): Promise<api.MessagePage> {
    return this.client.call("get_messages", {
      path: { id: this.id },
      query: { ...query, ...defined({ agent: this.agent }) },
    });
  }

  /** Return the open approvals of the session and its child sessions. */
  async approvals(): Promise<api.Approval[]> {
    return (await this.client.call("list_of_session", this.#path)).items;
  }

  /** Approve a tool call; `content` has the values of a form. */
  approve(approvalId: string, content: api.JSONObject = {}): Promise<void> {
    return this.client.decide(approvalId, { approve: content });
  }

  /** Reject a tool call. The model receives the reason. */
  reject(approvalId: string, reason: string): Promise<void> {
    return this.client.decide(approvalId, { reject: reason });
  }

  /** Send the result of a call of a tool that this program runs itself. */
  async answerCall(callId: string, result: api.AnswerCallBody): Promise<void> {
    await this.client.call("answer_call", {
      path: { id: this.id, call: callId },
      body: result,
      ...(this.agent === undefined ? {} : { query: { agent: this.agent } }),
    });
  }

  /** Interrupt the running turn, or one message. Returns when the turn has ended. */
  async interrupt(options: api.InterruptBody = {}): Promise<void> {
    await this.client.call("interrupt", { ...this.#path, body: options });
  }

  /** Close the session and its child sessions. */
  async close(): Promise<void> {
    await this.client.call("close", this.#path);
  }
}

/** Return an object without the fields that are undefined. */
function defined<T extends object>(fields: T): { [K in keyof T]: Exclude<T[K], undefined> } {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as {
    [K in keyof T]: Exclude<T[K], undefined>;
  };
}
