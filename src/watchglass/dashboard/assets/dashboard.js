// @ts-check
// Keeps a page as new as its run: events say what has changed, and the page is fetched again and takes over what differs.

const body = document.body;
const pulse = /** @type {HTMLElement} */ (document.querySelector(".pulse"));
const main = /** @type {HTMLElement} */ (document.querySelector("main"));
const shown = (body.dataset.parts || "").split(" ").filter(Boolean);
/** Least milliseconds between two fetches, and how many times as long as a fetch took. */
const [LEAST, TIMES] = [250, 3];

/** @type {EventSource | null} */
let source = null;
/** The state that the page has, as the server calls it. */
let after = new URL(body.dataset.events || "/", location.href).searchParams.get("after") || "";
let busy = false;
let stale = false;

/**
 * What tells a node from its neighbours; "" where only its place does.
 * @param {Node} node
 */
function key(node) {
  if (!(node instanceof Element)) return "";
  const named = node.id || node.getAttribute("data-key");
  if (named) return named;
  const title = node.matches("article, figure, section, details") && node.querySelector("h2, h3, summary");
  return title ? `${node.nodeName} ${title.textContent}` : "";
}

/**
 * Make a node equal to another one, and keep what is equal as it is: with its focus, its selection, its open details.
 * @param {Node} node
 * @param {Node} model
 */
function become(node, model) {
  if (node.isEqualNode(model) || node.nodeName === "OUTPUT") return; // what a request was answered is of this page
  if (!(node instanceof Element && model instanceof Element)) {
    node.nodeValue = model.nodeValue;
    return;
  }
  const kept = node.nodeName === "DETAILS" ? "open" : "tabindex"; // a person opens it; keys reach pictures
  for (const { name } of [...node.attributes]) {
    if (name !== kept && !model.hasAttribute(name)) node.removeAttribute(name);
  }
  for (const { name, value } of model.attributes) {
    if (name !== kept && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  const keyed = new Map([...node.childNodes].filter(key).reverse().map((child) => [key(child), child]));
  const wanted = new Set([...model.childNodes].map(key).filter(Boolean));
  const done = new Set();
  let next = node.firstChild;
  for (const child of model.childNodes) {
    while (next && done.has(next)) next = next.nextSibling;
    let own = keyed.get(key(child));
    // An element without a name, or with a name that the new page has not, becomes the one at its place.
    if (!own && next?.nodeName === child.nodeName && !wanted.has(key(next))) own = next;
    if (own && !done.has(own)) become(own, child);
    else own = document.importNode(child, true);
    done.add(own);
    if (own === next) next = next.nextSibling;
    else node.insertBefore(own, next);
  }
  for (const child of [...node.childNodes]) {
    if (!done.has(child)) child.remove();
  }
}

/** Fetch the page again, and take over what differs. */
async function fetchAgain() {
  if (busy) {
    stale = true;
    return;
  }
  busy = true;
  stale = false;
  const begun = performance.now();
  try {
    const answer = await fetch(location.href, { cache: "no-store" });
    if (answer.ok) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const model = page.querySelector("main");
      if (model) become(main, model);
      document.dispatchEvent(new Event("fresh"));
      document.title = page.title;
      // Of a busy server it may be older than the event that it was fetched for.
      const has = new URL(page.body.dataset.events || "/", location.href).searchParams.get("after");
      if (has && older(has, after)) stale = true;
      say(page.querySelector(".pulse")?.textContent || "");
    } else {
      say((await answer.text()).trim());
    }
  } catch {
    say("the dashboard does not answer");
  }
  setTimeout(() => {
    busy = false;
    if (stale) fetchAgain();
  }, Math.max(LEAST, TIMES * (performance.now() - begun)));
}

/**
 * Whether a state of this start of the server came before another one.
 * @param {string} one
 * @param {string} other
 */
function older(one, other) {
  const [[epoch, number], [same, later]] = [one.split("-"), other.split("-")];
  return epoch === same && Number(number) < Number(later);
}

/** @param {string} text */
function say(text) {
  if (pulse.textContent !== text) pulse.textContent = text;
}

function open() {
  if (source || document.hidden || !body.dataset.events) return;
  const address = new URL(body.dataset.events, location.href);
  address.searchParams.set("after", after);
  source = new EventSource(address);
  source.addEventListener("changed", (event) => {
    after = event.lastEventId;
    const { changed } = JSON.parse(event.data);
    if (!changed || !shown.length || changed.some((/** @type {string} */ part) => shown.includes(part))) fetchAgain();
  });
  source.addEventListener("pulse", (event) => say(JSON.parse(event.data)));
  source.addEventListener("error", () => say("the dashboard does not answer"));
}

/** A browser has six connections to a server: a hidden tab must not hold one. */
function close() {
  source?.close();
  source = null;
}

document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
addEventListener("pagehide", close);
addEventListener("pageshow", open);
addEventListener("submit", async (event) => {
  const form = /** @type {HTMLFormElement} */ (event.target);
  if (!form.matches(".action")) return;
  event.preventDefault();
  const sent = new URLSearchParams(/** @type {any} */ (new FormData(form)));
  const output = /** @type {HTMLOutputElement} */ (form.querySelector("output"));
  output.textContent = "waiting for the answer"; // a replay of a long run takes a while
  try {
    const answer = await fetch(form.action, { method: "POST", body: sent, headers: { "X-Watchglass": "1" } });
    output.textContent = (await answer.text()).trim();
  } catch {
    output.textContent = "the dashboard does not answer";
  }
});
addEventListener("keydown", (event) => {
  const search = /** @type {HTMLInputElement | null} */ (document.querySelector("input[type=search]"));
  const typing = /** @type {Element} */ (event.target).matches("input, textarea");
  if (event.key !== "/" || !search || typing || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  search.focus();
});
open();
