// The events of a session: the newest ones as a stream, earlier ones page by page.

import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { follow, get, path } from "../api.js";
import { whileSeen } from "../live.js";
import { emptyStory, tell } from "./story.js";

const TAIL = 400; // records that are read at first
const BEFORE = 50; // records that are read before the one that a link names
const PAGE = 500; // records of one earlier page; the gateway's limit

export const eventPage = (id, query, signal) => get(path("sessions", id, "events"), query, { accept: "application/json", signal });

// Reads all events of the records after `first` and up to `last`.
export async function readEvents(id, agent, first, last, signal) {
  const events = [];
  for (let after = first; after < last; ) {
    const page = await eventPage(id, { agent, after, limit: Math.min(PAGE, last - after) }, signal);
    events.push(...page.items.filter((each) => each.id <= last).map((each) => ({ id: each.id, name: each.event, data: each.data })));
    if (page.next === null) break;
    after = page.cursor;
  }
  return events;
}

export function storyOf(events) {
  const story = emptyStory();
  for (const each of events) tell(story, each);
  return story;
}

// The story of a session: its newest records, and all records from `at` on. `earlier` prepends a page; it returns a promise.
export function useStory(id, agent, records, at) {
  const [view, setView] = useState({ story: null, link: { live: false }, first: 0, error: null });
  const prepend = useRef(null);
  useEffect(() => {
    if (records === undefined) return undefined;
    const abort = new AbortController();
    let [events, story, first, link, error, frame, loading] = [[], emptyStory(), Math.max(0, Math.min(records - TAIL, at ? at - BEFORE : records)), { live: false }, null, 0, null];
    const show = () => {
      if (abort.signal.aborted) return; // another part of the session is shown now
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        setView({ story, link, first, error });
      });
    };
    let seen = first;
    const take = (event) => {
      if (event.id !== undefined) {
        seen = Number(event.id);
        events.push(event);
      }
      tell(story, event);
      show();
    };
    const load = async () => {
      const begin = Math.max(0, first - PAGE);
      try {
        const older = await readEvents(id, agent, begin, first, abort.signal);
        const { growing } = story;
        events = [...older, ...events];
        [story, first, error] = [storyOf(events), begin, null];
        story.growing = growing;
      } catch (raised) {
        if (!abort.signal.aborted) error = raised;
      }
      loading = null;
      show();
    };
    prepend.current = () => (loading ||= first > 0 ? load() : Promise.resolve());
    const read = ({ signal }) => follow(path("sessions", id, "events"), { query: { agent }, after: seen, signal, onEvent: take, onState: (state) => ((link = state), show()) });
    whileSeen(abort.signal, read);
    show();
    return () => {
      abort.abort();
      cancelAnimationFrame(frame);
    };
  }, [id, agent, records === undefined, at]);
  return { ...view, earlier: () => prepend.current?.() };
}
