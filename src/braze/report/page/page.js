"use strict";
(() => {
  const $ = (s) => document.querySelector(s);
  const root = document.documentElement;
  const rows = JSON.parse($("#rows").textContent);
  $("#theme").addEventListener("click", () => {
    const dark = root.classList.contains("dark") ||
      (!root.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    root.classList.remove("dark", "light");
    root.classList.add(dark ? "light" : "dark");
  });

  // graphs: one stage's text at a time
  const levels = [...document.querySelectorAll("script.level")];
  const text = $("#text"), viewer = $("#viewer"), mark = $("#mark"), find = $("#find"), found = $("#found");
  const HEIGHT = 18;
  let lines = [], hits = [], at = -1;
  function show(index) {
    lines = levels[index].textContent.split("\n");
    text.textContent = lines.join("\n");
    mark.style.display = "none";
    viewer.scrollTop = 0;
    search();
  }
  function go(line) {
    mark.style.display = "block";
    mark.style.top = line * HEIGHT + "px";
    mark.style.width = text.scrollWidth + "px";
    viewer.scrollTop = Math.max(0, line * HEIGHT - viewer.clientHeight / 3);
  }
  function search() {
    const want = find.value.toLowerCase();
    hits = want ? lines.flatMap((l, i) => (l.toLowerCase().includes(want) ? [i] : [])) : [];
    at = -1;
    if (hits.length) step(); else { found.textContent = want ? "not found" : ""; mark.style.display = "none"; }
  }
  function step() {
    if (!hits.length) return;
    at = (at + 1) % hits.length;
    found.textContent = `${at + 1} of ${hits.length}`;
    go(hits[at]);
  }
  if (levels.length) {
    $("#level").addEventListener("change", (e) => show(+e.target.value));
    find.addEventListener("input", search);
    find.addEventListener("keydown", (e) => { if (e.key === "Enter") step(); });
    $("#next").addEventListener("click", step);
    show(0);
  }
  function openCode(row) {
    const name = `${row.graph}, ${row.side}: ${row.kind === "kernel" ? "kernels" : "host"}`;
    const index = levels.findIndex((l) => l.dataset.name === name);
    if (index < 0) return;
    $("#level").value = index;
    find.value = row.kind === "kernel" ? `${row.name}(` : row.name.split(".").slice(1, 2)[0] || row.name;
    show(index);
    $("#graphs").scrollIntoView();
  }

  // kernels
  const body = $("#steps tbody"), filter = $("#filter");
  let key = rows.some((r) => r.ms) ? "ms" : "mb";
  function cell(tr, value, cls) {
    const td = tr.insertCell();
    if (cls) td.className = cls;
    if (value instanceof Node) td.append(value); else td.textContent = value;
    return td;
  }
  function link(label, act) {
    const a = document.createElement("a");
    a.textContent = label;
    a.tabIndex = 0;
    a.addEventListener("click", act);
    a.addEventListener("keydown", (e) => { if (e.key === "Enter") act(); });
    return a;
  }
  function toLine(where) {
    const el = document.querySelector(`[data-at="${CSS.escape(where)}"]`);
    if (!el) return;
    el.closest("details").open = true;
    el.scrollIntoView({ block: "center" });
    el.classList.add("flash");
    setTimeout(() => el.classList.remove("flash"), 1600);
  }
  function draw() {
    const want = filter.value.toLowerCase();
    const shown = rows.filter((r) => !want || `${r.name} ${r.ops} ${r.side} ${r.lines.join(" ")}`.toLowerCase().includes(want));
    shown.sort((a, b) => (typeof a[key] === "string" ? a[key].localeCompare(b[key]) : b[key] - a[key]) || a.order - b.order);
    body.replaceChildren();
    for (const r of shown.slice(0, 400)) {
      const tr = body.insertRow();
      const name = cell(tr, link(r.name, () => openCode(r)));
      const ops = document.createElement("span");
      ops.className = "ops";
      ops.textContent = (r.ops === r.name ? "" : r.ops) + (r.copies > 1 ? ` (one of ${r.copies} alike)` : "");
      name.append(ops);
      cell(tr, r.side);
      cell(tr, r.ms ? r.ms.toFixed(3) : "–", "n");
      cell(tr, r.mb.toFixed(2), "n");
      cell(tr, r.gflop.toFixed(3), "n");
      const share = cell(tr, r.share ? `${(100 * r.share).toFixed(0)}%` : "–", "n");
      if (r.share) {
        const meter = document.createElement("span"), fill = document.createElement("i");
        meter.className = "meter";
        fill.style.width = Math.min(100, 100 * r.share) + "%";
        meter.append(fill);
        share.append(meter);
      }
      const from = cell(tr, "");
      r.lines.slice(0, 3).forEach((l, i) => { if (i) from.append(" "); from.append(link(l.split("/").pop(), () => toLine(l))); });
      if (r.lines.length > 3) from.append(` +${r.lines.length - 3}`);
    }
    const more = shown.length > 400 ? ", the first 400 shown" : "";
    $("#count").textContent = `${shown.length} of ${rows.length} steps${more}`;
    document.querySelectorAll("#steps th").forEach((th) => th.classList.toggle("sorted", th.dataset.key === key));
  }
  if (body) {
    filter.addEventListener("input", draw);
    document.querySelectorAll("#steps th[data-key]").forEach((th) => th.addEventListener("click", () => { key = th.dataset.key; draw(); }));
    draw();
  }
  document.querySelectorAll(".line.link").forEach((el) => {
    const act = () => { filter.value = el.dataset.at; draw(); $("#kernels").scrollIntoView(); };
    el.addEventListener("click", act);
    el.addEventListener("keydown", (e) => { if (e.key === "Enter") act(); });
  });
})();
