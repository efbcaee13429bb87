// What the page of `keras-attn serve` and the explorer of attention share.

/** An element with these properties and children; strings among the children become text, never markup. */
export function element(name, properties = {}, ...children) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
}

/** A share from 0 to 1 as a person reads it. */
export function percent(share) {
  if (share >= 0.1) return `${Math.round(share * 100)} %`;
  if (share >= 0.001) return `${(share * 100).toFixed(1)} %`;
  return share > 0 ? "< 0.1 %" : "0 %";
}

/**
 * The element that an arrow key, Home or End leads to from the one with the focus, or undefined.
 * `columns` is how many elements stand beside each other: where lines of text wrap, up and down are the one before and after.
 */
export function elementAtKey(elements, event, columns = 1) {
  const here = elements.indexOf(document.activeElement);
  if (here < 0) return undefined;
  const right = getComputedStyle(elements[here]).direction === "rtl" ? -1 : 1;
  const places = {
    ArrowRight: here + right,
    ArrowLeft: here - right,
    ArrowDown: here + columns,
    ArrowUp: here - columns,
    Home: 0,
    End: elements.length - 1,
  };
  return elements[places[event.key]];
}

/** Moves the focus and, with it, the one stop of the Tab key in a row of elements. */
export function moveFocus(here, next) {
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
