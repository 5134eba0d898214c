// Counts, savings and checks.

import { byId, follow, make, say } from "./dom.js";
import { ago, bytes, less } from "./format.js";

export function draw(state) {
  const pods = state.nodes.flatMap((node) => node.pods);
  const ready = (list) => list.filter((item) => item.ready).length;
  const fine = state.checks.filter((check) => check.ok).length;
  const counts = [
    ["Nodes", state.nodes.length, ready(state.nodes), "ready"],
    ["Pods", pods.length, ready(pods), "ready"],
    ["Services", state.services.length, state.services.filter(answers).length, "ready"],
  ];
  if (state.checks.length > 0) counts.push(["Checks", state.checks.length, fine, "passing"]);
  follow(byId("counts"), counts, ([name]) => name, createCount, updateCount);
  drawSavings(state.savings);
  drawChecks(state.checks);
  drawCluster(state);
}

const answers = (service) =>
  service.kind === "ExternalName" || service.endpoints.some((endpoint) => endpoint.ready);

function createCount([name]) {
  return make("div", "count", make("dt", "", name), make("dd", "", make("strong"), make("span", "quiet")));
}

function updateCount(element, [, total, good, word]) {
  say(element.querySelector("strong"), String(total));
  const whole = good === total ? `all ${word}` : `${good} ${word}`;
  say(element.querySelector("dd span"), total === 0 ? "" : whole);
  element.classList.toggle("wanting", good < total);
}

function drawSavings(savings) {
  const element = byId("savings");
  element.hidden = savings === null;
  if (savings === null) return;
  const rows = [
    ["fewer bytes written", savings.bytes_written, savings.bytes_full, bytes],
    ["fewer API calls", savings.calls_made, savings.calls_polling, String],
  ];
  follow(
    element,
    rows.filter(([, , whole]) => whole > 0),
    ([name]) => name,
    ([name]) => make("div", "saving", make("dt", "", name), make("dd", "", make("strong"), make("span", "quiet"))),
    (row, [, part, whole, write]) => {
      say(row.querySelector("strong"), less(part, whole));
      say(row.querySelector("dd span"), `${write(part)} instead of ${write(whole)}`);
    },
  );
}

function drawChecks(checks) {
  byId("checks-panel").hidden = checks.length === 0;
  follow(
    byId("checks"),
    checks,
    (check) => check.name,
    (check) => {
      const symbol = make("span", "symbol");
      symbol.setAttribute("aria-hidden", "true");
      return make("li", "check", symbol, make("span", "unseen"), make("span", "name", check.name), make("span", "quiet detail"));
    },
    (element, check) => {
      element.dataset.state = check.ok ? "good" : "bad";
      say(element.querySelector(".unseen"), check.ok ? "passed: " : "failed: ");
      say(element.querySelector(".detail"), check.detail);
    },
  );
}

function drawCluster(state) {
  const { cluster } = state;
  say(byId("cluster-name"), cluster.name);
  document.title = `Weft · ${cluster.name}`;
  const server = byId("cluster-server");
  const trouble = cluster.reachable ? "" : ` does not answer, for ${ago(cluster.since)}`;
  say(server, `${cluster.server}${trouble}`);
  server.classList.toggle("trouble", !cluster.reachable);
}
