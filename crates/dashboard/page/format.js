// Formatting of numbers and times.

/** Keeps a number and its unit on one line. */
const SPACE = "\u00a0";

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** 812 B, 48 kB, 1.2 MB. */
export function bytes(count) {
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const text = unit > 0 && value < 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(0);
  return `${text}${SPACE}${UNITS[unit]}`;
}

/** 0.4 ms, 14 ms, 1.2 s. */
export function duration(milliseconds) {
  if (milliseconds < 1) return `${milliseconds.toFixed(1)}${SPACE}ms`;
  if (milliseconds < 1000) return `${Math.round(milliseconds)}${SPACE}ms`;
  return `${(milliseconds / 1000).toFixed(1)}${SPACE}s`;
}

/** 1 pod, 2 pods. */
export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** The time of day. */
export function clock(text) {
  const time = new Date(text);
  return Number.isNaN(time.valueOf()) ? "" : time.toLocaleTimeString("en-GB");
}

/** Rounded time since: now, 40 s, 3 min, 2 h, 5 d. */
export function ago(text, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - new Date(text).valueOf()) / 1000));
  if (Number.isNaN(seconds)) return "";
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** Natural sort order: web-2 before web-10. */
export const natural = new Intl.Collator("en", { numeric: true }).compare;

/** Reduction from whole to part: 99.7 %, and never 100 % while something is left. */
export function less(part, whole) {
  if (whole <= 0) return null;
  const percent = Math.max(0, (1 - part / whole) * 100);
  if (part > 0 && percent > 99.9) return "99.9 %";
  return `${percent >= 96 && part > 0 ? percent.toFixed(1) : Math.round(percent)} %`;
}
