// @ts-check
// One cursor over all pictures of a page with exact numbers, a range of steps by dragging, and keys.

/** @typedef {{ picture: number, plot: SVGSVGElement, low: number, high: number, log: boolean, axis: string }} Place */
/** @typedef {{ x: number, text: string, values: [string, string][][] }} Answer */

/** Pixels that a pointer moves at least while it chooses a range. */
const DRAGGED = 8;
/** Addresses of pages by the key that follows `g`. */
const PAGES = { r: "", l: "layers", t: "tensor", m: "modules", u: "rules", s: "scalars", c: "time", h: "machine", w: "workers", e: "settings" };
const HELP = "/ search · j k choose a run, Enter opens it · g then r l t m u s c h w e: run, layers, tensors, modules, rules, " +
  "scalars, time (clock), machine (host), workers, settings · in a picture: ← → move the cursor, ↑ ↓ choose a row, Enter opens its tensor, " +
  "drag chooses steps, Esc shows all again";

const panel = document.body.appendChild(document.createElement("output"));
panel.className = "cursor";
panel.hidden = true;
const lines = document.body.appendChild(document.createElement("div"));
lines.className = "cursor-lines";
lines.setAttribute("aria-hidden", "true");

/** @type {Place | null} */
let chosen = null;
/** @type {Answer | null} */
let answer = null;
let row = 0;
let busy = false;
/**
 * The place that is asked for when the answer that is waited for has come, and how many places keys have moved since.
 * @type {number | null}
 */
let next = null;
let moved = 0;
/** @type {{ place: Place, from: number } | null} */
let dragging = null;
let before = "";

/** @returns {SVGSVGElement[]} */
function plots() {
  return [...document.querySelectorAll("main svg.axes")].map((axes) => /** @type {SVGSVGElement} */ (axes.querySelector("svg.plot") || axes));
}

/**
 * @param {Element | null} element
 * @returns {Place | null}
 */
function placeOf(element) {
  const axes = element?.closest(".picture")?.querySelector("svg.axes");
  const plot = /** @type {SVGSVGElement | null} */ (axes?.querySelector("svg.plot") || null);
  if (!plot) return null;
  const [low, high] = (plot.dataset.across || "0 1").split(" ").map(Number);
  return { picture: plots().indexOf(plot), plot, low, high, log: "log" in plot.dataset, axis: plot.dataset.axis || "" };
}

/**
 * The rectangle of the numbers: what is drawn beyond them does not count.
 * @param {SVGSVGElement} plot
 */
function box(plot) {
  const axes = /** @type {Element} */ (plot.ownerSVGElement || plot);
  return axes.getBoundingClientRect();
}

/**
 * @param {Place} place
 * @param {number} left
 */
function valueAt(place, left) {
  const { left: begin, width } = box(place.plot);
  const share = Math.min(1, Math.max(0, (left - begin) / width));
  if (!place.log) return place.low + share * (place.high - place.low);
  return place.low * (place.high / place.low) ** share;
}

/**
 * @param {Place} place
 * @param {number} value
 */
function shareOf(place, value) {
  if (!place.log) return (value - place.low) / (place.high - place.low);
  return Math.log(value / place.low) / Math.log(place.high / place.low);
}

/**
 * @param {number} at
 * @param {number} [move]
 */
async function ask(at, move = 0) {
  if (!chosen || !document.body.dataset.at) return;
  if (busy) {
    if (move) moved += move;
    else [next, moved] = [at, 0];
    return;
  }
  busy = true;
  try {
    const address = new URL(document.body.dataset.at, location.href);
    address.search = location.search;
    for (const [name, value] of Object.entries({ x: at, picture: chosen.picture, move })) address.searchParams.set(name, String(value));
    const found = await fetch(address);
    answer = found.ok ? await found.json() : null;
    show();
  } catch {
    hide();
  }
  busy = false;
  const [place, further] = [next ?? answer?.x, moved];
  const more = next !== null || further !== 0;
  [next, moved] = [null, 0];
  if (more && place !== undefined) ask(place, further);
}

/** Draw the line of the cursor over all pictures with its axis, and say their numbers. */
function show() {
  lines.replaceChildren();
  if (!answer || !chosen) return hide();
  const parts = [`${chosen.axis} ${answer.text}`];
  plots().forEach((plot, number) => {
    const place = placeOf(plot);
    const found = answer?.values[number];
    if (!place || !found || !chosen || !answer || place.axis !== chosen.axis) return;
    const { left, top, width, height, bottom } = box(plot);
    const share = shareOf(place, answer.x);
    if (!height || share < 0 || share > 1) return;
    const line = lines.appendChild(document.createElement("i"));
    line.style.left = `${left + scrollX + share * width}px`;
    line.style.top = `${top + scrollY}px`;
    line.style.height = `${height}px`;
    if (bottom < 0 || top > innerHeight) return;
    const grid = plot.closest(".grid");
    const rows = grid && number === chosen.picture ? found.slice(row, row + 1) : grid ? [] : found;
    if (rows.length) parts.push(`${titleOf(plot)}: ${rows.map(([name, value]) => `${name} ${value || "nothing"}`).join(", ")}`);
  });
  panel.replaceChildren(...parts.map((text) => Object.assign(document.createElement("span"), { textContent: text })));
  panel.hidden = false;
}

function hide() {
  answer = null;
  panel.hidden = true;
  lines.replaceChildren();
}

/** @param {Element} plot */
function titleOf(plot) {
  const lane = plot.closest(".lane")?.querySelector(".lane-title");
  return (lane || plot.closest("figure")?.querySelector("h3"))?.textContent || "";
}

/**
 * @param {Place} place
 * @param {number} top
 */
function rowAt(place, top) {
  const { top: begin, height } = box(place.plot);
  const rows = place.plot.ownerSVGElement?.querySelectorAll("text.row").length || 1;
  return Math.min(rows - 1, Math.max(0, Math.floor(((top - begin) / height) * rows)));
}

/** Open the tensor of the chosen row of a grid at the step of the cursor, or what the module of the row is made of. */
function openRow() {
  const links = document.querySelectorAll("main details li a:first-of-type:is([href*='/tensor?'], [href*='within='])");
  const link = /** @type {HTMLAnchorElement | undefined} */ (links[row]);
  if (!link || !answer || !chosen?.plot.closest(".grid")) return;
  const address = new URL(link.href);
  if (address.pathname.endsWith("/tensor")) address.searchParams.set("step", String(Math.round(answer.x)));
  location.assign(address);
}

/** @param {[number, number] | null} range */
function zoom(range) {
  const address = new URL(location.href);
  if (range) address.searchParams.set("steps", `${Math.max(0, Math.floor(range[0]))}:${Math.ceil(range[1]) + 1}`);
  else if (address.searchParams.has("steps")) address.searchParams.delete("steps");
  else return;
  location.assign(address);
}

/** Pictures can be reached by keys, and so can tables that scroll. */
function prepare() {
  for (const table of document.querySelectorAll("main .wide")) {
    if (table.scrollWidth > table.clientWidth) table.setAttribute("tabindex", "0");
  }
  for (const picture of document.querySelectorAll("main .picture:has(svg.plot)")) picture.setAttribute("tabindex", "0");
  if (answer) ask(answer.x);
}

addEventListener("pointermove", (event) => {
  const place = placeOf(/** @type {Element} */ (event.target));
  if (!place || (event.pointerType === "touch" && !dragging)) return;
  chosen = place;
  row = rowAt(place, event.clientY);
  ask(valueAt(place, event.clientX));
});
addEventListener("pointerdown", (event) => {
  const place = event.button === 0 ? placeOf(/** @type {Element} */ (event.target)) : null;
  if (!place) return;
  dragging = { place, from: event.clientX };
  chosen = place;
  row = rowAt(place, event.clientY);
  ask(valueAt(place, event.clientX));
});
addEventListener("pointerup", (event) => {
  if (dragging && dragging.place.axis === "training step" && Math.abs(event.clientX - dragging.from) > DRAGGED) {
    const { place, from } = dragging;
    const ends = [from, event.clientX].map((left) => valueAt(place, left)).sort((one, other) => one - other);
    zoom([ends[0], ends[1]]);
  } else if (dragging && event.detail === 2) {
    openRow();
  }
  dragging = null;
});
addEventListener("pointercancel", () => (dragging = null));
addEventListener("focusin", (event) => {
  const place = placeOf(/** @type {Element} */ (event.target));
  if (!place || !(/** @type {Element} */ (event.target).matches(".picture")) || dragging) return;
  chosen = place;
  row = Math.max(0, row);
  ask(answer ? answer.x : place.high);
});
for (const name of ["scroll", "resize"]) addEventListener(name, () => answer && show(), { passive: true });
document.addEventListener("fresh", prepare);

/** @param {KeyboardEvent} event */
function inPicture(event) {
  const place = placeOf(/** @type {Element} */ (event.target));
  if (!place || !(/** @type {Element} */ (event.target).matches(".picture"))) return false;
  chosen = place;
  const at = answer ? answer.x : place.high;
  const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
  if (event.key in moves) ask(at, moves[/** @type {keyof typeof moves} */ (event.key)]);
  else if (event.key === "Home") ask(place.low);
  else if (event.key === "End") ask(place.high);
  else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
    const rows = place.plot.ownerSVGElement?.querySelectorAll("text.row").length || 0;
    if (!rows) return false;
    row = Math.min(rows - 1, Math.max(0, row + (event.key === "ArrowUp" ? -1 : 1)));
    show();
  } else if (event.key === "Enter") openRow();
  else return false;
  return true;
}

/** @param {number} move */
function chooseRun(move) {
  const links = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".runs tbody tr td a")]);
  const here = links.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  links[Math.min(links.length - 1, Math.max(0, here + move))]?.focus();
}

addEventListener("keydown", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, textarea, select")) return;
  if (inPicture(event)) {
    event.preventDefault();
    return;
  }
  const bar = document.querySelector(".bar a[aria-current]") || document.querySelector(".bar .home + .name + a");
  if (before === "g" && event.key in PAGES && bar) {
    const page = PAGES[/** @type {keyof typeof PAGES} */ (event.key)];
    const links = /** @type {HTMLAnchorElement[]} */ ([...document.querySelectorAll(".bar a")]);
    links.find((link) => new URL(link.href).pathname.endsWith(page ? `/${page}` : location.pathname.split("/r/")[1]?.split("/")[0] || "?"))?.click();
  } else if (event.key === "j" || event.key === "k") chooseRun(event.key === "j" ? 1 : -1);
  else if (event.key === "?") {
    panel.textContent = HELP;
    panel.hidden = !panel.hidden;
  } else if (event.key === "Escape") {
    if (panel.hidden) zoom(null);
    hide();
  }
  before = event.key;
});
prepare();
