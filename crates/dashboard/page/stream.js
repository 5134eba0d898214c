// The connection to the process: a stream of states, and requests for actions.

import { byId, say } from "./dom.js";
import { clock } from "./format.js";

const RETRY = 2000;
const TOKEN = "weft-token";

let disconnected = null;

/** Takes the token out of the address bar, where it would be seen and copied. */
export function takeToken() {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(TOKEN, found[1]);
  history.replaceState(null, "", location.pathname + location.search);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/** Calls back with every state, for as long as the page is open. */
export function connect(show) {
  const source = new EventSource("/api/events");
  source.addEventListener("open", () => connection(true));
  source.addEventListener("state", (event) => {
    connection(true);
    show(JSON.parse(event.data));
  });
  source.addEventListener("error", () => {
    connection(false);
    // The browser reconnects by itself after a cut, but not after a refusal.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => connect(show), RETRY);
  });
}

function connection(connected) {
  const pill = byId("connection");
  const banner = byId("banner");
  pill.dataset.state = connected ? "live" : "cut";
  say(pill.querySelector(".text"), connected ? "live" : "not connected");
  document.body.classList.toggle("stale", !connected);
  if (connected) {
    disconnected = null;
  } else {
    disconnected ??= new Date().toISOString();
    say(banner, `Not connected since ${clock(disconnected)}. The page shows the last known state; reconnecting …`);
  }
  banner.hidden = connected;
}

/** Requests an action on a process. Resolves to the error text, empty on success. */
export async function act(process, action) {
  try {
    const answer = await fetch(`/api/processes/${encodeURIComponent(process)}/${action}`, {
      method: "POST",
      headers: { "x-weft-token": sessionStorage.getItem(TOKEN) ?? "" },
    });
    return answer.ok ? "" : (await answer.text()).trim() || `refused (${answer.status})`;
  } catch {
    return "the process that serves this page does not answer";
  }
}
