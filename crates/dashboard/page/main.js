// Draws every state that the process sends, the latest only, once a frame.

import * as apps from "./apps.js";
import * as nodes from "./nodes.js";
import * as pods from "./pods.js";
import * as processes from "./processes.js";
import * as routes from "./routes.js";
import * as services from "./services.js";
import * as stream from "./stream.js";
import * as summary from "./summary.js";
import * as threads from "./threads.js";
import * as timeline from "./timeline.js";

/** Interval of updating times such as "3 min". */
const TICK = 10_000;

let latest = null;
let scheduled = false;

function draw() {
  scheduled = false;
  if (latest === null) return;
  apps.learn(latest);
  for (const part of [summary, nodes, apps, routes, services, timeline, processes, threads]) part.draw(latest);
  document.body.dataset.drawn = latest.generated;
}

function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(draw);
}

stream.takeToken();
pods.listen();
threads.listen();
stream.connect((state) => {
  latest = state;
  schedule();
});
setInterval(schedule, TICK);
