// The tokens of the design as colours for a canvas, which knows no variables.

const probe = document.createElement('i');
probe.hidden = true;

/** A token's colour in the page's present tone. */
export function tone(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

/** The same, partly seen through. */
export const faded = (name, share) => tone(name).replace(/rgba?\(([^)]+)\)/, (_, parts) => `rgba(${parts.split(',').slice(0, 3).join(',')}, ${share})`);
