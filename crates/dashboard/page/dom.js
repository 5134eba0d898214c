// Helpers for DOM elements. Values from the cluster are only ever written as text.

export const byId = (id) => document.getElementById(id);

/** Makes an element with a class and children; a text becomes a text node. */
export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

/** Sets a text, and leaves an element alone that has it already. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, or removes it for null. */
export function attribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

const children = new WeakMap();

/**
 * Makes the children of an element follow a list: one for each item, in order. An item that stays
 * keeps its element, and with it focus, selection and scroll position.
 */
export function follow(parent, items, keyOf, create, update) {
  const before = children.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!after.has(key)) after.set(key, { item, element: before.get(key) ?? create(item) });
  }
  for (const [key, element] of before) {
    if (!after.has(key)) element.remove();
  }
  let place = parent.firstElementChild;
  const kept = new Map();
  for (const [key, { item, element }] of after) {
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
    kept.set(key, element);
  }
  children.set(parent, kept);
}
