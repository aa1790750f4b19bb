// Functions that write the document: text only, never markup, and only if something has changed.

export const find = (id) => document.getElementById(id);

/** Make an element with properties and children; a child that is a string becomes text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an attribute; null removes it. */
export function setAttribute(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/**
 * Make the children of a node those of a list, one for each key: those that stay are the same elements, so that focus and
 * selection survive.
 */
export function setChildren(parent, items, keyOf, make, update) {
  const keys = items.map(keyOf);
  const wanted = new Set(keys);
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const present = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) present.set(child.dataset.key, child);
    else child.remove();
  }
  let next = parent.firstElementChild;
  items.forEach((item, index) => {
    let child = present.get(keys[index]);
    if (child === undefined) {
      child = make(item);
      child.dataset.key = keys[index];
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
    update(child, item);
  });
  // An element that is moved loses the focus.
  if (focused !== null && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

/** Write a list of terms and descriptions; a description is a string. */
export function setDescriptions(list, pairs) {
  setChildren(
    list,
    pairs,
    ([term]) => term,
    ([term]) => element("div", {}, element("dt", { textContent: term }), element("dd")),
    (child, [, text]) => setText(child.lastElementChild, text),
  );
}

/** Preferences that the browser stores, if it stores any. */
export const preferences = {
  get(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`accelmetrics.${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`accelmetrics.${name}`, JSON.stringify(value));
    } catch {
      // The browser stores nothing: the preference ends with the page.
    }
  },
};

/** Choices in the page's address, so that a link shows the same view. */
export const address = {
  get(name) {
    return new URLSearchParams(location.search).get(name);
  },
  /** Set a choice; an empty text or null removes it. */
  set(name, value) {
    const chosen = new URLSearchParams(location.search);
    if (value === null || value === "") chosen.delete(name);
    else chosen.set(name, value);
    const words = chosen.toString().replaceAll("%2C", ",");
    window.history.replaceState(null, "", `${location.pathname}${words && "?"}${words}${location.hash}`);
  },
};
