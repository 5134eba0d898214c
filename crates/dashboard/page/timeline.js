// The timeline, newest entry first.

import { byId, follow, make, say } from "./dom.js";
import { bytes, clock, duration, plural } from "./format.js";

/** Delay of an announcement to screen readers, so that a burst is announced once. */
const PATIENCE = 5000;

let announced = null;
let newest = null;
let waiting = null;

export function draw(state) {
  const entries = [...state.timeline].reverse();
  byId("timeline-empty").hidden = entries.length > 0;
  // Another process may serve the page by now, and count from 1 again.
  follow(byId("timeline"), entries, (entry) => `${entry.number} ${entry.at}`, create, () => {});
  newest = entries[0] ?? null;
  // Entries from before the page was opened are not announced.
  const latest = newest?.number ?? 0;
  announced = Math.min(announced ?? latest, latest);
  if (latest > announced) waiting ??= setTimeout(announce, PATIENCE);
}

/** Announces the new entries to screen readers. */
function announce() {
  waiting = null;
  const count = (newest?.number ?? 0) - announced;
  if (count <= 0) return;
  say(byId("announcement"), count === 1 ? newest.what : `${count} changes, the latest: ${newest.what}`);
  announced = newest.number;
}

function create(entry) {
  const time = make("time", "mono quiet", clock(entry.at));
  time.dateTime = entry.at;
  const origin = [entry.where, entry.component].filter(Boolean).join(" · ");
  const item = make(
    "li",
    "entry",
    time,
    make("div", "", make("p", "what", entry.what), make("p", "origin quiet", origin)),
  );
  item.value = entry.number;
  if (announced !== null) item.classList.add("fresh");
  const cost = costText(entry.cost);
  if (cost) item.lastElementChild.append(make("p", "cost", cost));
  return item;
}

/** `+1 chain ~1 rule, 14 ms, 812 B instead of 49 kB`. */
function costText(cost) {
  if (cost === null) return "";
  const words = [];
  if (cost.changes) words.push(cost.changes);
  if (cost.milliseconds !== null) words.push(duration(cost.milliseconds));
  if (cost.bytes !== null) {
    const full = cost.avoided_bytes ? ` instead of ${bytes(cost.bytes + cost.avoided_bytes)}` : "";
    words.push(bytes(cost.bytes) + full);
  }
  if (cost.calls !== null && (cost.calls > 0 || cost.avoided_calls)) {
    const full = cost.avoided_calls ? ` instead of ${cost.calls + cost.avoided_calls}` : "";
    words.push(plural(cost.calls, "call") + full);
  }
  return words.join(", ");
}
