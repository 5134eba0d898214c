// Services, and the highlight of their pods.

import { appOf, colourOf } from "./apps.js";
import { attribute, byId, follow, make, say } from "./dom.js";
import { natural } from "./format.js";
import { light } from "./pods.js";

/** More endpoints than this are not drawn one by one. */
const DRAWN = 60;

let services = [];
let kept = null;
let pointed = null;
let apps = new Map();

const keyOf = (service) => `${service.namespace}/${service.name}`;

export function draw(state) {
  services = state.services;
  apps = new Map();
  for (const node of state.nodes) {
    for (const pod of node.pods) apps.set(`${pod.namespace}/${pod.name}`, appOf(pod));
  }
  if (!services.some((service) => keyOf(service) === kept)) kept = null;
  byId("services-empty").hidden = services.length > 0;
  follow(byId("service-rows"), services, keyOf, create, update);
  show();
}

function create(service) {
  const key = keyOf(service);
  const button = make("button", "service", make("span", "quiet", `${service.namespace}/`), service.name);
  button.type = "button";
  const row = make(
    "tr",
    "",
    make("th", "", button),
    make("td"),
    make("td", "mono"),
    make("td", "mono"),
    make("td", "ends", make("span", "count"), make("span", "dots")),
  );
  row.firstElementChild.scope = "row";
  row.querySelector(".dots").setAttribute("aria-hidden", "true");
  row.addEventListener("mouseenter", () => point(key));
  row.addEventListener("mouseleave", () => point(null));
  button.addEventListener("focus", () => point(key));
  button.addEventListener("blur", () => point(null));
  button.addEventListener("click", () => {
    kept = kept === key ? null : key;
    for (const other of byId("service-rows").querySelectorAll("button")) pressed(other);
    show();
  });
  button.dataset.service = key;
  return row;
}

const pressed = (button) => attribute(button, "aria-pressed", button.dataset.service === kept);

function update(row, service) {
  const [, kind, addresses, ports, ends] = row.children;
  pressed(row.querySelector("button"));
  say(kind, service.kind);
  say(addresses, service.addresses.join("\n") || (service.kind === "ExternalName" ? "" : "headless"));
  say(ports, service.ports.map(portText).join("\n"));
  const people = distinct(service);
  const ready = people.filter((endpoint) => endpoint.ready).length;
  say(ends.querySelector(".count"), people.length === 0 ? "none" : `${ready} of ${people.length} ready`);
  ends.dataset.level = people.length === 0 || ready === people.length ? "whole" : ready === 0 ? "none" : "part";
  follow(
    ends.querySelector(".dots"),
    people.slice(0, DRAWN),
    (endpoint) => endpoint.pod ?? endpoint.address,
    () => make("i"),
    (dot, endpoint) => {
      const app = apps.get(`${service.namespace}/${endpoint.pod}`);
      dot.className = `${app === undefined ? "" : colourOf(app)} ${endpoint.ready ? "" : "waiting"}`;
    },
  );
}

function portText(port) {
  const protocol = port.protocol === "TCP" ? "" : `/${port.protocol}`;
  const node = port.node_port === null ? "" : ` → node ${port.node_port}`;
  return `${port.port}${protocol}${node}`;
}

/** A dual-stack pod has two addresses and is one endpoint. */
function distinct(service) {
  const found = new Map();
  for (const endpoint of service.endpoints) {
    const key = endpoint.pod ?? endpoint.address;
    if (!found.has(key)) found.set(key, endpoint);
  }
  return [...found.values()].sort((left, right) => natural(left.pod ?? left.address, right.pod ?? right.address));
}

function point(key) {
  pointed = key;
  show();
}

function show() {
  light(services.find((service) => keyOf(service) === (pointed ?? kept)) ?? null);
}
