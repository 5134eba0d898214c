// Routes as a list.

import { byId, follow, make, say } from "./dom.js";
import { plural } from "./format.js";

export function draw(state) {
  const routes = state.nodes.flatMap((node) => node.routes.map((route) => ({ on: node.name, ...route })));
  const element = byId("routes");
  element.hidden = routes.length === 0;
  say(element.querySelector("summary"), plural(routes.length, "route"));
  follow(
    byId("route-rows"),
    routes,
    (route) => JSON.stringify([route.on, route.destination, route.via]),
    () => make("tr", "", make("th"), make("td"), make("td", "mono"), make("td", "mono")),
    (row, route) => {
      const cells = [route.on, route.node ?? "", route.destination, route.via];
      cells.forEach((text, index) => say(row.children[index], text));
      row.children[0].scope = "row";
    },
  );
}
