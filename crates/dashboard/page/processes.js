// Processes with their state, and buttons for the allowed actions.

import { byId, follow, make, say } from "./dom.js";
import { ago } from "./format.js";
import { act, hasToken } from "./stream.js";

const LEVELS = { running: "good", starting: "busy", stopped: "idle", failed: "bad" };

export function draw(state) {
  const { processes } = state;
  const actionable = processes.some((process) => process.actions.length > 0);
  const panel = byId("processes-panel");
  panel.hidden = processes.length === 0;
  panel.classList.toggle("actionable", actionable);
  const note = byId("processes-note");
  if (actionable && !hasToken()) say(note, "open the page by the link in the terminal to use the buttons");
  follow(byId("process-rows"), processes, (process) => process.name, create, update);
}

function create(process) {
  const symbol = make("span", "symbol");
  symbol.setAttribute("aria-hidden", "true");
  const row = make(
    "tr",
    "",
    make("th", "", process.name),
    make("td", "", make("span", "status", symbol, make("span", "text"))),
    make("td", "", make("time", "quiet")),
    make("td", "mono quiet"),
    make("td", "detail quiet"),
    make("td", "acting"),
  );
  row.firstElementChild.scope = "row";
  return row;
}

function update(row, process) {
  const [, , since, pid, detail, acting] = row.children;
  row.querySelector(".status").dataset.state = LEVELS[process.state] ?? "idle";
  say(row.querySelector(".status .text"), process.state);
  since.firstElementChild.dateTime = process.since;
  say(since.firstElementChild, ago(process.since));
  say(pid, process.pid === null ? "" : String(process.pid));
  say(detail, process.detail);
  follow(
    acting,
    process.actions,
    (action) => action,
    (action) => {
      const button = make("button", "", action);
      button.type = "button";
      button.setAttribute("aria-label", `${action} ${process.name}`);
      button.addEventListener("click", () => press(button, process.name, action));
      return button;
    },
    () => {},
  );
}

async function press(button, process, action) {
  if (button.getAttribute("aria-disabled") === "true") return;
  const note = byId("processes-note");
  button.setAttribute("aria-disabled", "true");
  say(note, `${action} ${process} …`);
  const trouble = await act(process, action);
  button.removeAttribute("aria-disabled");
  say(note, trouble ? `${process}: ${trouble}` : "");
}
