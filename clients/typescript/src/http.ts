import { OPERATIONS, type Operations, type Problem } from "./types.js";

export type OperationName = keyof Operations;
type Empty = Record<string, never>;
type Path<N extends OperationName> = Operations[N]["path"];
type Query<N extends OperationName> = Operations[N]["query"];
type Body<N extends OperationName> = Operations[N]["body"];

/** Arguments of a request: path and query parameters, and the body, as far as the operation has them. */
export type CallArguments<N extends OperationName> = (Path<N> extends Empty ? { path?: undefined } : { path: Path<N> }) &
  (Query<N> extends Empty ? { query?: undefined } : { query?: Query<N> }) &
  (Body<N> extends undefined ? { body?: undefined } : { body: Body<N> }) &
  RequestOptions;

export interface RequestOptions {
  /** Ends the request when it is aborted. */
  signal?: AbortSignal;
  /** Key under which the request has its effect once. By default each call has a new key, and its retries share it. */
  idempotencyKey?: string;
  /** Seconds for which the server waits for the outcome of a message. */
  wait?: number;
  /** More request headers. */
  headers?: Record<string, string>;
}

export interface ClientOptions {
  /** Address of the gateway without `/v1`. Default: the origin of the page. */
  url?: string;
  /** Token that `actgent token new` has created, or a function that returns it for each request. */
  token: string | (() => string | Promise<string>);
  /** Owner to act for, with a token that has the scope `impersonate:`. */
  owner?: string;
  /** Seconds for which a request is retried while the server is unreachable or busy. Default: 30. */
  retrySeconds?: number;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

/** The server has answered with an error. */
export class ProblemError extends Error {
  override readonly name = "ProblemError";

  constructor(
    /** The problem document (RFC 9457). */
    readonly problem: Problem,
  ) {
    super(problem.detail || problem.title);
  }

  /** Kind of the problem: the last segment of its type, such as `not-found`. */
  get kind(): string {
    return this.problem.type.slice(this.problem.type.lastIndexOf("/") + 1);
  }

  /** HTTP status. */
  get status(): number {
    return this.problem.status;
  }

  /** True if the request was refused only for now and had no effect, so that it can be sent again. */
  get isTemporary(): boolean {
    return (this.status === 429 || this.status === 503) && this.kind !== "limit-reached" && !this.problem.may_be_done;
  }
}

/** The server could not be reached, or the connection was lost. */
export class ConnectionError extends Error {
  override readonly name = "ConnectionError";
}

const MIN_PAUSE_SECONDS = 0.1;
const MAX_PAUSE_SECONDS = 10;

/** Return the pause in seconds before a retry: doubled for each try, with jitter, and at least `minimum`. */
export function retryPause(tries: number, minimum = 0): number {
  const pause = Math.min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2 ** Math.min(tries, 16));
  return Math.max(minimum, pause) * (0.75 + Math.random() / 2);
}

/** Wait for some seconds. The promise is rejected when the signal is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason as Error);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** Sends requests to a gateway. Requests that are safe to repeat are retried. */
export class Connection {
  readonly #options: ClientOptions;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    this.#options = options;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  /** Seconds for which a request is retried. */
  get retrySeconds(): number {
    return this.#options.retrySeconds ?? 30;
  }

  /** Send a request, and return its decoded answer. */
  async call<N extends OperationName>(name: N, given: CallArguments<N>): Promise<Operations[N]["answer"]> {
    const [method, , hasKey] = OPERATIONS[name];
    const headers: Record<string, string> = { ...given.headers };
    const key = given.idempotencyKey ?? (method === "POST" ? crypto.randomUUID() : undefined); // a PUT needs none
    if (hasKey && key !== undefined) headers["idempotency-key"] = key;
    if (given.wait) headers["prefer"] = `wait=${Math.ceil(given.wait)}`;
    const isRepeatable = hasKey || method !== "POST";
    const until = Date.now() + this.retrySeconds * 1000;
    for (let tries = 0, mayBeDone = false; ; tries++) {
      let minimum = 0;
      try {
        return (await this.#receive(await this.send(name, given, headers))) as Operations[N]["answer"];
      } catch (error) {
        if (given.signal?.aborted || Date.now() >= until) throw error;
        if (error instanceof ProblemError) {
          if (mayBeDone && method === "DELETE" && error.status === 404) return undefined as Operations[N]["answer"];
          if (!error.isTemporary && !(error.problem.may_be_done && isRepeatable)) throw error;
          mayBeDone ||= error.problem.may_be_done === true;
          minimum = error.problem.retry_after ?? 0;
          if (Date.now() + minimum * 1000 >= until) throw error;
        } else if (error instanceof ConnectionError && isRepeatable) {
          mayBeDone = true;
        } else {
          throw error;
        }
      }
      await sleep(retryPause(tries, minimum), given.signal);
    }
  }

  /** Send a request once, and return the response; a response with an error status is thrown as `ProblemError`. */
  async send<N extends OperationName>(
    name: N,
    given: CallArguments<N>,
    headers: Record<string, string>,
  ): Promise<Response> {
    const [method, template] = OPERATIONS[name];
    const { token, url = globalThis.location?.origin ?? "", owner } = this.#options;
    const path = template.replace(/\{(\w+)\}/g, (_, key: string) =>
      encodeURIComponent((given.path as Record<string, string>)[key] ?? ""),
    );
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries(given.query ?? {})) {
      if (value !== undefined) query.set(key, String(value));
    }
    const sent: Record<string, string> = {
      accept: "application/json",
      authorization: `Bearer ${typeof token === "string" ? token : await token()}`,
      ...headers,
    };
    if (owner !== undefined) sent["actgent-owner"] = owner;
    const init: RequestInit = { method, headers: sent, redirect: "manual" }; // a redirected POST would become a GET
    if (given.signal) init.signal = given.signal;
    if (method === "POST" || method === "PUT") {
      sent["content-type"] = "application/json";
      init.body = JSON.stringify(given.body ?? {});
    }
    let response: Response;
    try {
      response = await this.#fetch(`${url.replace(/\/$/, "")}${path}${query.size ? `?${query}` : ""}`, init);
    } catch (error) {
      throw given.signal?.aborted ? error : new ConnectionError(`${method} ${path}: ${String(error)}`, { cause: error });
    }
    if (response.status >= 400 || response.type === "opaqueredirect") throw await problemOf(response);
    if (response.status >= 300 && response.status !== 304) throw await problemOf(response);
    return response;
  }

  async #receive(response: Response): Promise<unknown> {
    const media = response.headers.get("content-type") ?? "";
    if (media.startsWith("text/html")) {
      throw new ConnectionError("the answer is an HTML page: check that url is that of an actgent gateway");
    }
    try {
      if (response.status === 204 || response.status === 304) return undefined;
      if (media.startsWith("application/json")) return await response.json();
      return media.startsWith("text/") ? await response.text() : await response.blob();
    } catch (error) {
      throw new ConnectionError(`the answer broke off: ${String(error)}`, { cause: error });
    }
  }
}

/** Statuses of proxies that lost the connection to the server: the request may have had its effect. */
const LOST_STATUSES = new Set([408, 502, 504, 520, 521, 522, 523, 524]);

async function problemOf(response: Response): Promise<ProblemError> {
  const text = await response.text().catch(() => "");
  try {
    const known = JSON.parse(text) as Problem;
    if (typeof known.type === "string") return new ProblemError(known);
  } catch {
    // an error page of a proxy
  }
  const { status } = response;
  const isLost = LOST_STATUSES.has(status);
  const kind = status === 429 ? "too-many-requests" : isLost || status === 503 ? "unavailable" : "internal";
  const problem: Problem = {
    type: `/errors/${kind}`,
    title: `HTTP status ${status} without a problem document, as from a proxy`,
    status,
    detail: "",
    instance: response.headers.get("x-request-id") ?? "",
  };
  if (status < 400) {
    problem.title = `the server redirects to ${response.headers.get("location") ?? "another address"}: use the address of the gateway`;
  }
  if (isLost) problem.may_be_done = true;
  const wait = response.headers.get("retry-after") ?? "";
  if (/^\d{1,9}$/.test(wait)) problem.retry_after = Number(wait);
  return new ProblemError(problem);
}
