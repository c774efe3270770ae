import { useMemo, useSyncExternalStore } from "react";

import type { Content, Decision, SendOptions, Session } from "./index.js";
import { SessionStore, type Snapshot } from "./store.js";
import type * as api from "./types.js";

export interface SessionHook extends Snapshot {
  /** Send a message. */
  send(content: Content, options?: SendOptions): Promise<api.Run>;
  /** Decide an approval. */
  decide(approvalId: string, decision: Decision): Promise<void>;
  /** Interrupt the running turn. */
  interrupt(): Promise<void>;
}

const stores = new WeakMap<Session, SessionStore>();

/**
 * Return the state of a session, which follows its events while a component uses it.
 *
 * Create the session outside of the component, or with `useMemo`: components with the same object share one connection.
 */
export function useSession(session: Session): SessionHook {
  let store = stores.get(session);
  if (store === undefined) stores.set(session, (store = new SessionStore(session)));
  const snapshot = useSyncExternalStore(store.subscribe, store.getSnapshot, store.getSnapshot);
  const actions = useMemo(
    () => ({
      send: (content: Content, options?: SendOptions) => session.send(content, options),
      decide: (approvalId: string, decision: Decision) => session.client.decide(approvalId, decision),
      interrupt: () => session.interrupt(),
    }),
    [session],
  );
  return { ...snapshot, ...actions };
}
