// Ratings of an answer: a thumb and a comment. The latest rating of each user replaces the earlier ones.

import { useState } from "../vendor/hooks.js";
import { ask, may, path } from "../api.js";
import { FocusedField, html } from "../parts.js";
import { AddButton } from "./add-to-dataset.js";

const GOOD = 0.5; // a score that is higher, of 0 to 1, is a good one

const Thumb = ({ up }) =>
  html`<svg viewBox="0 0 24 24" width="16" height="16" aria-hidden="true"><path fill="currentColor" transform=${up ? undefined : "translate(0 24) scale(1 -1)"} d="M2 10h4v11H2zM8 21V10l4-8c1.7 0 2.6 1.2 2.3 2.8L13.6 9H19c1.4 0 2.3 1.2 2 2.5l-1.7 7.6c-.2 1.1-1.1 1.9-2.2 1.9z" /></svg>`;

export function Judged({ rating }) {
  const good = rating.score > GOOD;
  return html`<p class="judged"><span class="tag flat ${good ? "ok" : "bad"}"><${Thumb} up=${good} />${good ? "good" : "bad"}</span> <span class="dim">${rating.by}</span>
    ${rating.comment && html` ${rating.comment}`}${rating.expected && html` <span class="dim">expected:</span> ${rating.expected}`}</p>`;
}

export function Feedback({ turn, session }) {
  const [state, setState] = useState({ score: null, asks: false, busy: false, error: null }); // `asks`: for a comment
  const target = path("sessions", session.id, "messages", turn.id, "feedback");
  const give = async (score, words = {}) => {
    setState((now) => ({ ...now, score, busy: true, error: null }));
    try {
      await ask("POST", target, { query: { agent: session.agent }, body: { score, ...words } });
      const asks = words.comment === undefined;
      setState({ score: asks ? score : null, asks, busy: false, error: null });
    } catch (error) {
      setState((now) => ({ ...now, busy: false, error }));
    }
  };
  const send = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    give(state.score, { comment: given.comment, ...(given.expected ? { expected: given.expected } : {}) });
  };
  const ratings = Object.values(turn.ratings);
  if (!may("chat") && !ratings.length) return null;
  return html`<div class="feedback">
    ${ratings.map((each) => html`<${Judged} key=${each.by} rating=${each} />`)}
    ${may("chat") && html`<div class="row">${may("admin") && html`<${AddButton} session=${session} turn=${turn} />`}
      <div class="row" role="group" aria-label="How good is the answer?">
      <button class="btn thumb" disabled=${state.busy} aria-pressed=${state.score === 1} onClick=${() => give(1)} aria-label="Good answer"><${Thumb} up=${true} /></button>
      <button class="btn thumb" disabled=${state.busy} aria-pressed=${state.score === 0} onClick=${() => give(0)} aria-label="Bad answer"><${Thumb} up=${false} /></button></div>
      ${state.error && html`<span class="err" role="alert">The rating was not saved: ${state.error.message}</span>`}
    </div>`}
    ${state.asks &&
    html`<form class="stack tight" onSubmit=${send}>
      <p class="dim" role="status">The rating is saved. A comment helps later readers.</p>
      <label>Why <${FocusedField} name="comment" maxlength="10000" /></label>
      <label>Correct answer <input name="expected" maxlength="10000" /></label>
      <div class="row"><button class="btn main" disabled=${state.busy}>Save comment</button><button class="btn" type="button" onClick=${() => setState({ score: null, asks: false, busy: false, error: null })}>Skip</button></div>
    </form>`}
  </div>`;
}
