// Keeps pages up to date. Without it they can be read all the same, and forms work.
"use strict";

const sign = document.getElementById("live");
let stream = null;
// Who asks for parts of a page takes nothing from it that is said once.
const PARTLY = { accept: "text/html", "x-ringfence-live": "1" };

// What is marked as live is taken from the same page, made anew. What somebody is just using is left alone.
let busy = null;
function refresh() {
  if (!document.querySelector("[data-live][id]")) return Promise.resolve();
  // One at a time, and one more after it if something happened meanwhile.
  if (busy) return busy.again ??= busy.then(() => refresh());
  return busy = renew().finally(() => { busy = null; });
}

async function renew() {
  const answer = await fetch(location.href, { headers: PARTLY });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live][id]")) {
    const fresh = page.getElementById(part.id);
    if (!fresh || part.contains(document.activeElement) && document.activeElement !== document.body) continue;
    if (fresh.innerHTML !== part.innerHTML) part.replaceChildren(...fresh.childNodes);
  }
}

function listen() {
  if (stream || !sign || document.hidden) return;
  stream = new EventSource("/ui/live?after=" + sign.dataset.after);
  stream.onopen = () => { sign.textContent = "● live"; sign.className = "live on"; };
  stream.onerror = () => { sign.textContent = "○"; sign.className = "live"; };
  stream.addEventListener("changed", (event) => { sign.dataset.after = event.data; refresh().catch(() => {}); });
  stream.addEventListener("work", (event) => show(JSON.parse(event.data)));
}

// How far long work has come.
function show(works) {
  for (const part of document.querySelectorAll("[data-work]")) {
    const work = works.find((one) => one.name === part.dataset.work);
    const bar = part.querySelector("progress");
    part.hidden = !work;
    if (!work) continue;
    if (work.of) { bar.max = work.of; bar.value = work.done; } else { bar.removeAttribute("value"); }
    part.querySelector("span").textContent = work.of ? `${work.done} of ${work.of} · ${work.what}` : work.what;
  }
}

// A browser has few connections for a site: who does not look needs none.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stream?.close(); stream = null; } else { listen(); }
});
listen();

// Parts that take a while to find out.
for (const part of document.querySelectorAll("[data-load]")) {
  part.querySelector(".waiting")?.classList.add("on");
  fetch(part.dataset.load, { headers: PARTLY })
    .then(async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html"))
    .then((page) => part.replaceChildren(...(page.getElementById(part.id) ?? page.querySelector(".card") ?? page.body).childNodes))
    .catch(() => part.querySelector(".waiting")?.classList.remove("on"));
}

// The log of a run that goes on.
const log = document.getElementById("log");
if (log?.dataset.stream) {
  const MOST = 5000;
  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.scrollTop = log.scrollHeight;
  const lines = new EventSource(log.dataset.stream);
  lines.onmessage = (event) => {
    const follow = atEnd();
    const page = new DOMParser().parseFromString(event.data, "text/html");
    log.append(...page.body.childNodes);
    while (log.childElementCount > MOST) log.firstElementChild.remove();
    if (follow) log.scrollTop = log.scrollHeight;
  };
  lines.addEventListener("end", () => { lines.close(); refresh().catch(() => {}); });
}

// Forms: asked before what cannot be undone, and seen to be at work.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) { event.preventDefault(); return; }
  const button = event.submitter;
  if (form.method === "post" && button) {
    button.classList.add("busy");
    if (form.dataset.busy) button.textContent = form.dataset.busy;
    setTimeout(() => { button.disabled = true; }, 0);
  }
});
if (location.hash === "#add") document.getElementById("add")?.setAttribute("open", "");
