// Nodes as boxes with their pool, pods and state.

import { attribute, byId, follow, make, say } from "./dom.js";
import { plural } from "./format.js";
import * as pods from "./pods.js";

/** More nodes than this are drawn smaller. */
const MANY = 8;

export function draw(state) {
  const list = byId("nodes");
  const picture = byId("picture");
  const most = Math.max(0, ...state.nodes.map((node) => node.pods.length));
  const many = state.nodes.length > MANY;
  picture.classList.toggle("many", many);
  picture.dataset.tiles = most > 24 || many ? "small" : most > 6 ? "medium" : "large";
  follow(list, state.nodes, (node) => node.name, create, (element, node) => update(element, node, state.nodes));
  say(byId("network-note"), note(state.nodes, many));
}

function note(nodes, many) {
  if (nodes.length === 0) return "no node has joined yet";
  if (nodes.every((node) => node.routes.length === 0)) return "";
  if (many) return "point at a node to see where its routes lead";
  return "each thread is one node’s routes to the others; a knot is a route";
}

function create(node) {
  const symbol = make("span", "symbol");
  symbol.setAttribute("aria-hidden", "true");
  const head = make(
    "div",
    "head",
    make("h3", "", node.name),
    make("p", "state", symbol, make("span", "text")),
  );
  const facts = make("p", "facts mono");
  facts.append(make("span", "address"), make("span", "ranges"));
  const card = make("article", "node", head, facts, createPool(), make("ul", "pods"), make("p", "reach quiet"));
  card.dataset.node = node.name;
  card.tabIndex = 0;
  return make("li", "", card);
}

function createPool() {
  const bar = make("div", "bar");
  bar.setAttribute("role", "img");
  for (const part of PARTS) bar.append(make("span", part));
  bar.append(make("span", "demand"));
  return make("div", "pool", bar, make("p", "figures quiet"));
}

const PARTS = ["assigned", "free", "pending", "cooling"];

function update(element, node, nodes) {
  const card = element.firstElementChild;
  const state = standing(node);
  card.dataset.state = state.level;
  say(card.querySelector(".state .text"), state.text);
  say(card.querySelector(".address"), node.addresses.join("  "));
  say(card.querySelector(".ranges"), node.pod_ranges.length > 0 ? node.pod_ranges.join("  ") : "no pod range");
  updatePool(card.querySelector(".pool"), node.pool);
  pods.draw(card.querySelector(".pods"), node);
  say(card.querySelector(".reach"), reach(node, nodes));
  card.querySelector(".reach").classList.toggle("trouble", missing(node, nodes).length > 0);
  attribute(card, "aria-label", `${node.name}, ${state.text}, ${plural(node.pods.length, "pod")}`);
}

function standing(node) {
  if (!node.ready) return { level: "bad", text: "not ready" };
  if (node.network_unavailable) return { level: "bad", text: "network unavailable" };
  return { level: "good", text: "ready" };
}

/** The nodes that this one reaches. */
export const reached = (node) => new Set(node.routes.map((route) => route.node).filter((name) => name !== null));

/** The nodes with pods to reach to which this one has no route, if routes are known at all. */
function missing(node, nodes) {
  if (nodes.every((other) => other.routes.length === 0)) return [];
  const known = reached(node);
  return nodes.filter((other) => other.name !== node.name && other.pod_ranges.length > 0 && !known.has(other.name));
}

function reach(node, nodes) {
  const lost = missing(node, nodes).map((other) => other.name);
  if (lost.length > 3) return `no route to ${lost.length} nodes`;
  if (lost.length > 0) return `no route to ${lost.join(", ")}`;
  const count = reached(node).size;
  return count === 0 ? "" : `${plural(node.pods.length, "pod")} · routes to ${plural(count, "node")}`;
}

function updatePool(element, pool) {
  element.hidden = pool === null;
  if (pool === null) return;
  const known = PARTS.filter((part) => pool[part] !== null);
  const held = known.reduce((sum, part) => sum + pool[part], 0);
  const whole = Math.max(held, pool.requested ?? 0, pool.demand ?? 0, 1);
  const bar = element.querySelector(".bar");
  for (const part of PARTS) {
    bar.querySelector(`.${part}`).style.width = `${((pool[part] ?? 0) / whole) * 100}%`;
  }
  const mark = bar.querySelector(".demand");
  mark.hidden = pool.demand === null;
  mark.style.left = `${((pool.demand ?? 0) / whole) * 100}%`;
  const words = known.filter((part) => part === "assigned" || pool[part] > 0).map((part) => `${pool[part]} ${part}`);
  const rest = [];
  if (pool.demand !== null) rest.push(`demand ${pool.demand}`);
  if (pool.requested !== null) rest.push(`requested ${pool.requested}`);
  say(element.querySelector(".figures"), words.map((word) => word.replace(" ", "\u00a0")).join(" · "));
  attribute(bar, "aria-label", `Pool of addresses: ${[...words, ...rest].join(", ")}`);
  attribute(bar, "data-tip", [...words, ...rest].join("\n"));
}
