// Pods as tiles, the tooltip of the one under the pointer, and the highlight of those of a Service.

import { appOf, colourOf } from "./apps.js";
import { attribute, byId, follow, make, say } from "./dom.js";
import { natural } from "./format.js";

const keyOf = (pod) => `${pod.namespace}/${pod.name}`;

/** Draws the pods of a node. One of them takes part in the tab order; arrows lead to the others. */
export function draw(list, node) {
  attribute(list, "aria-label", `Pods on ${node.name}`);
  const pods = [...node.pods].sort((left, right) => natural(appOf(left), appOf(right)) || natural(keyOf(left), keyOf(right)));
  follow(list, pods, keyOf, create, update);
  const tiles = [...list.children];
  if (tiles.length > 0 && !tiles.some((tile) => tile.tabIndex === 0)) tiles[0].tabIndex = 0;
}

function create(pod) {
  const tile = make(
    "li",
    "pod",
    make("span", "name", pod.name),
    make("span", "short mono"),
    make("span", "unseen"),
  );
  tile.querySelector(".short").setAttribute("aria-hidden", "true");
  tile.dataset.pod = keyOf(pod);
  tile.tabIndex = -1;
  return tile;
}

function update(tile, pod) {
  const colour = colourOf(appOf(pod));
  if (!tile.classList.contains(colour)) tile.className = `pod ${colour}`;
  const addresses = pod.addresses.join(", ");
  const state = pod.ready ? pod.phase : `${pod.phase}, not ready`;
  tile.dataset.state = pod.ready ? "ready" : "waiting";
  tile.dataset.addresses = pod.addresses.join(" ");
  say(tile.querySelector(".short"), short(pod.addresses[0]));
  say(tile.querySelector(".unseen"), ` ${addresses || "without address"}, ${appOf(pod)}, ${state}`);
  attribute(tile, "data-tip", [keyOf(pod), addresses || "no address yet", `${appOf(pod)} · ${state}`].join("\n"));
}

/** The end of an address, which distinguishes the pods of a node. */
function short(address) {
  if (!address) return "–";
  return address.includes(":") ? address.slice(address.lastIndexOf(":")) : address.slice(address.lastIndexOf("."));
}

/** Highlights the pods of a Service and dims the others; null clears the highlight. */
export function light(service) {
  const picture = byId("picture");
  picture.classList.toggle("lighting", service !== null);
  const names = new Set();
  const addresses = new Set();
  for (const endpoint of service?.endpoints ?? []) {
    if (endpoint.pod !== null) names.add(`${service.namespace}/${endpoint.pod}`);
    else addresses.add(endpoint.address);
  }
  for (const tile of picture.querySelectorAll(".pod")) {
    const own = tile.dataset.addresses.split(" ");
    tile.classList.toggle("lit", names.has(tile.dataset.pod) || own.some((address) => addresses.has(address)));
  }
}

// The tooltip.

function showTip(target) {
  const tip = byId("tip");
  const lines = (target.dataset.tip ?? "").split("\n").map((line) => make("span", "", line));
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const box = target.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 8 ? box.bottom + 8 : above}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** Installs the mouse and keyboard handlers. */
export function listen() {
  const picture = byId("picture");
  const tipped = (event) => event.target.closest("[data-tip]");
  for (const type of ["mouseover", "focusin"]) {
    picture.addEventListener(type, (event) => (tipped(event) ? showTip(tipped(event)) : hideTip()));
  }
  for (const type of ["mouseleave", "focusout"]) picture.addEventListener(type, hideTip);
  addEventListener("scroll", hideTip, { passive: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
  picture.addEventListener("keydown", walk);
}

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

function walk(event) {
  const tile = event.target.closest(".pod");
  const tiles = tile ? [...tile.parentElement.children] : [];
  const ends = { Home: 0, End: tiles.length - 1 };
  const next = tiles[ends[event.key] ?? tiles.indexOf(tile) + (STEPS[event.key] ?? NaN)];
  if (!next) return;
  event.preventDefault();
  tile.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
