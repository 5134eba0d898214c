// Routes as threads. A node hangs a warp into the band below its row; each node's routes are a
// thread through all bands, with a knot wherever it reaches the node of a warp.

import { byId } from "./dom.js";
import { reached } from "./nodes.js";

/** With more nodes there is one thread for all, and pointing at a node shows its own routes. */
const THREADS = 8;
const GAP = 9;
const MARGIN = 13;
const SVG = "http://www.w3.org/2000/svg";

let nodes = [];
let pointed = null;
let drawn = "";

export function draw(state) {
  nodes = state.nodes;
  if (!nodes.some((node) => node.name === pointed)) pointed = null;
  lay();
}

/** Installs handlers for the size of the drawing and for the pointer. */
export function listen() {
  const picture = byId("picture");
  new ResizeObserver(lay).observe(picture);
  const point = (event) => {
    const name = event.target.closest?.("[data-node]")?.dataset.node ?? null;
    if (name === pointed) return;
    pointed = name;
    lay();
  };
  for (const type of ["mouseover", "mouseleave", "focusin"]) picture.addEventListener(type, point);
  picture.addEventListener("focusout", (event) => event.relatedTarget === null && point({ target: picture }));
}

function lay() {
  const picture = byId("picture");
  const routed = nodes.some((node) => node.routes.length > 0);
  const lanes = routed ? (nodes.length > THREADS ? 1 : nodes.length) : 0;
  const band = lanes === 0 ? 0 : MARGIN * 2 + (lanes - 1) * GAP;
  picture.style.setProperty("--band", `${Math.max(band, 14)}px`);
  picture.classList.toggle("woven", lanes > 0);
  mark(picture);
  const cards = new Map([...picture.querySelectorAll(".node")].map((card) => [card.dataset.node, place(card)]));
  const rows = [...new Set([...cards.values()].map((card) => card.bottom))].sort((left, right) => left - right);
  picture.classList.toggle("stacked", rows.length > 1);
  // Redraw only on a change: most states change no route and no size.
  const ways = nodes.map((node) => [node.name, [...reached(node)]]);
  const sketch = JSON.stringify([ways, [...cards], pointed, picture.clientWidth]);
  if (sketch === drawn) return;
  drawn = sketch;
  const svg = byId("threads");
  svg.replaceChildren(...(lanes === 0 ? [] : weave(cards, rows, lanes)));
}

function place(card) {
  const item = card.parentElement;
  return { x: item.offsetLeft + item.offsetWidth / 2, bottom: item.offsetTop + item.offsetHeight };
}

/** Highlights the nodes that the node under the pointer has routes to. */
function mark(picture) {
  const node = nodes.find((known) => known.name === pointed);
  const known = node ? reached(node) : new Set();
  for (const card of picture.querySelectorAll(".node")) {
    card.classList.toggle("reached", known.has(card.dataset.node));
    card.classList.toggle("pointed", card.dataset.node === pointed);
  }
}

function weave(cards, rows, lanes) {
  const shapes = [];
  const height = (row, lane) => row + MARGIN + lane * GAP;
  for (const [name, card] of cards) {
    shapes.push(line(card.x, card.bottom, card.x, height(card.bottom, lanes - 1), name === pointed ? "warp pointed" : "warp"));
  }
  if (lanes === 1 && nodes.length > 1) {
    shapes.push(...thread(nodes.map((node) => cards.get(node.name)), rows, 0, height, "thread"));
  } else {
    nodes.forEach((node, lane) => {
      if (node.name !== pointed) shapes.push(...routesOf(node, cards, rows, lane, height, "thread"));
    });
  }
  const lane = nodes.findIndex((node) => node.name === pointed);
  if (lane >= 0) shapes.push(...routesOf(nodes[lane], cards, rows, lanes === 1 ? 0 : lane, height, "thread pointed"));
  return shapes;
}

function routesOf(node, cards, rows, lane, height, className) {
  const own = cards.get(node.name);
  const ends = [...reached(node)].map((name) => cards.get(name)).filter(Boolean);
  if (!own || ends.length === 0) return [];
  const knots = ends.map((card) => circle(card.x, height(card.bottom, lane), 3.5, `knot ${className}`));
  const start = circle(own.x, height(own.bottom, lane), 4, `start ${className}`);
  return [...thread([own, ...ends], rows, lane, height, className), ...knots, start];
}

/** A thread through the bands of all rows in which it starts or has a knot, joined at the left. */
function thread(cards, rows, lane, height, className) {
  const used = rows.filter((row) => cards.some((card) => card.bottom === row));
  const trunk = 5 + lane * 4;
  const shapes = used.map((row) => {
    const xs = cards.filter((card) => card.bottom === row).map((card) => card.x);
    const from = used.length > 1 ? trunk : Math.min(...xs);
    return line(from, height(row, lane), Math.max(...xs), height(row, lane), className);
  });
  if (used.length > 1) {
    shapes.push(line(trunk, height(used[0], lane), trunk, height(used.at(-1), lane), className));
  }
  return shapes;
}

function shape(tag, className, attributes) {
  const element = document.createElementNS(SVG, tag);
  element.setAttribute("class", className);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const line = (x1, y1, x2, y2, className) => shape("line", className, { x1, y1, x2, y2 });
const circle = (cx, cy, r, className) => shape("circle", className, { cx, cy, r });
