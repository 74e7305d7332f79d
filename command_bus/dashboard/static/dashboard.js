// Keyboard, and pages that stay true while they are open. Without it all pages can be read, and all forms be sent.
"use strict";

const root = document.body.dataset.root || "";
const away = document.getElementById("away");

// Keyboard: / search, j and k rows, Enter opens, Escape leaves a field.
let chosen = -1;
const rows = () => [...document.querySelectorAll(".rows tbody tr, .troubles > li")].filter((row) => row.offsetParent !== null);

function choose(index) {
  const all = rows();
  if (!all.length) return;
  chosen = Math.max(0, Math.min(index, all.length - 1));
  all.forEach((row, at) => row.classList.toggle("chosen", at === chosen));
  const link = all[chosen].querySelector("summary, [data-open], a");
  if (link) link.focus({ preventScroll: true });
  all[chosen].scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  const inField = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && inField) inField.blur();
  if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const field = document.getElementById("search");
    if (field) { event.preventDefault(); field.focus(); field.select(); }
  } else if (event.key === "j") choose(chosen + 1);
  else if (event.key === "k") choose(chosen - 1);
});

// Without a choice the theme is the system's: the button offers the other one.
const theme = document.getElementById("theme");
if (theme && !document.documentElement.dataset.theme && window.matchMedia("(prefers-color-scheme: dark)").matches) {
  theme.value = "light";
  theme.textContent = "Light";
  theme.title = "Use the light theme";
}

// An act begins with its first field; on a phone the marked page is in sight, and filters are folded.
const first = document.querySelector("form.act .field :is(input, textarea, select)");
if (first) first.focus();
const marked = document.querySelector(".side [aria-current]");
const center = () => { if (marked) marked.parentElement.scrollLeft = marked.offsetLeft - (marked.parentElement.clientWidth - marked.offsetWidth) / 2; };
center();
for (const each of document.querySelectorAll(".fold")) each.open = !window.matchMedia("(max-width: 640px)").matches || Boolean(document.querySelector("[data-wrong]"));

// An act on many things goes on by itself, until somebody stops it.
const goesOn = document.querySelector("[data-goes-on]");
if (goesOn) {
  const timer = setTimeout(() => goesOn.requestSubmit(), 700);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") clearTimeout(timer); });
}

// The box in a table's head picks all rows.
document.addEventListener("change", (event) => {
  if (!event.target.matches("[data-all]")) return;
  for (const box of event.target.closest("table").querySelectorAll("[name=picked]")) box.checked = event.target.checked;
});

// Times in this place's own words, where somebody points at them.
for (const each of document.querySelectorAll("time[datetime]")) {
  const at = new Date(each.dateTime);
  if (!Number.isNaN(at.valueOf())) each.title = `${each.title} · ${at.toLocaleString()} here`;
}

// Plots: the values at a time, which the pointer or the arrow keys choose, as the table below has them. The newest row is the first.
const times = () => [...document.querySelectorAll("#values tbody tr")];
const msOf = (row) => Date.parse(row.querySelector("time").dateTime);

function point(svg, at) {
  const all = times();
  if (!all.length) return;
  const row = all[Math.max(0, Math.min(at, all.length - 1))];
  const [first, last, box] = [msOf(all[all.length - 1]), msOf(all[0]), svg.viewBox.baseVal];
  const x = String(66 + (box.width - 74) * (msOf(row) - first) / Math.max(last - first, 1));
  const guide = svg.querySelector(".guide") || svg.appendChild(document.createElementNS(svg.namespaceURI, "line"));
  for (const [name, value] of Object.entries({ class: "guide", x1: x, x2: x, y1: 18, y2: box.height - 24 })) guide.setAttribute(name, value);
  svg.dataset.at = all.indexOf(row);
  const figure = svg.closest("figure");
  figure.querySelector(".at").textContent = `${row.cells[0].textContent.trim().slice(5)}`;
  figure.querySelectorAll(".legend b").forEach((each, index) => { each.textContent = row.cells[Number(svg.dataset.column) + index].textContent; });
}

for (const name of ["pointermove", "pointerdown"]) {
  document.addEventListener(name, (event) => {
    const svg = event.target.closest && event.target.closest("svg[data-column]");
    if (!svg) return;
    const [all, box] = [times().map(msOf), svg.getBoundingClientRect()];
    const share = ((event.clientX - box.left) / box.width * 560 - 66) / 486;
    const wanted = all[all.length - 1] + share * (all[0] - all[all.length - 1]);
    point(svg, all.reduce((best, at, index) => Math.abs(at - wanted) < Math.abs(all[best] - wanted) ? index : best, 0));
  });
}

document.addEventListener("keydown", (event) => {
  const svg = event.target.closest("svg[data-column]");
  const step = { ArrowLeft: 1, ArrowRight: -1, Home: 1e6, End: -1e6 }[event.key];
  if (!svg || !step) return;
  event.preventDefault();
  point(svg, Number(svg.dataset.at || 0) + step);
});

// Live: the server says that something has changed; the page asks for itself, and takes over its live parts.
const parts = () => [...document.querySelectorAll("[data-live][id]")];
let version = null;
let asking = false;
let lastAsked = 0;

function busy() {
  const focused = document.activeElement;
  const selection = window.getSelection();
  return Boolean(focused && focused.closest("[data-live] input, [data-live] textarea, [data-live] select, [data-live] svg")) ||
    Boolean(document.querySelector("[data-live] [name=picked]:checked, [data-live] svg:hover")) ||
    Boolean(selection && !selection.isCollapsed);
}

async function refresh() {
  if (asking || document.hidden || busy() || Date.now() - lastAsked < 2500) return false;
  asking = true;
  lastAsked = Date.now();
  try {
    const answer = await fetch(window.location.href, { headers: { "X-Live": "1" }, credentials: "same-origin", redirect: "manual" });
    if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) { window.location.reload(); return false; }
    if (!answer.ok) return false;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    for (const part of parts()) {
      const other = fresh.getElementById(part.id);
      if (!other) continue;
      const open = new Set([...part.querySelectorAll("details[open]")].map((each) => each.dataset.key));
      other.querySelectorAll("details").forEach((each) => { each.open = open.has(each.dataset.key); });
      if (other.innerHTML !== part.innerHTML) part.replaceChildren(...other.childNodes);
    }
    if (chosen >= 0) rows().forEach((row, at) => row.classList.toggle("chosen", at === chosen));
    if (focused && document.activeElement === document.body) {
      const again = [...document.querySelectorAll("a[href]")].find((link) => link.getAttribute("href") === focused);
      if (again) again.focus({ preventScroll: true });
    }
    return true;
  } catch { return false; } finally { asking = false; }
}

function show(facts) {
  for (const each of document.querySelectorAll("[data-figure]")) {
    const value = facts[each.dataset.figure];
    each.textContent = value ? Number(value).toLocaleString("en") : "";
  }
}

function listen() {
  const source = new EventSource(`${root}/live`);
  source.onmessage = async (event) => {
    const facts = JSON.parse(event.data);
    away.hidden = !facts.away;
    if (facts.away) return;
    show(facts);
    if (version === null) center(); // the figures have moved it
    // Also behind the first: what the page shows may be older than that.
    if (facts.version !== version && await refresh()) version = facts.version;
  };
  source.addEventListener("ended", () => { source.close(); window.location.reload(); });
  source.onerror = () => {
    away.hidden = false;
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

if (away && window.EventSource) {
  listen();
  // What only time changes (ages, next ticks) is read again now and then.
  if (parts().length) setInterval(refresh, 15000);
}
