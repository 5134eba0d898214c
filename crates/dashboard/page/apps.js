// Colours of applications. A colour once assigned stays.

import { byId, follow, make, say } from "./dom.js";
import { natural } from "./format.js";

const COLOURS = 10;
const given = new Map();

/** Gives colours to applications that have none yet, in the order of their names. */
export function learn(state) {
  const fresh = new Set();
  for (const node of state.nodes) {
    for (const pod of node.pods) {
      if (!given.has(appOf(pod))) fresh.add(appOf(pod));
    }
  }
  for (const app of [...fresh].sort(natural)) given.set(app, given.size % COLOURS);
}

export const appOf = (pod) => pod.app ?? "without application";

export const colourOf = (app) => `app-${given.get(app) ?? 0}`;

/** Draws the legend of applications. */
export function draw(state) {
  const counts = new Map();
  for (const node of state.nodes) {
    for (const pod of node.pods) counts.set(appOf(pod), (counts.get(appOf(pod)) ?? 0) + 1);
  }
  byId("legend").hidden = state.nodes.length === 0;
  follow(
    byId("apps"),
    [...counts].sort(([left], [right]) => natural(left, right)),
    ([app]) => app,
    ([app]) => {
      const swatch = make("span", `swatch ${colourOf(app)}`);
      swatch.setAttribute("aria-hidden", "true");
      return make("li", "", swatch, make("span", "name", app), make("span", "quiet"));
    },
    (element, [, count]) => say(element.lastElementChild, String(count)),
  );
}
