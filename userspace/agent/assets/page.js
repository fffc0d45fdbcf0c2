// The page of `--web-page`: queries the agent every two seconds, and shows the answers. Texts of the
// node are inserted as text only, never as markup.
"use strict";

const INTERVAL = 2000;
const MOST_LINES = 12;
const MOST_ROWS = 40;
let last = null;
let talks = [];

// Returns an element with attributes and children; texts become text nodes.
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Returns a number with three digits and an SI prefix.
function scaled(number, unit) {
  const prefixes = ["", "k", "M", "G", "T", "P"];
  let step = 0;
  while (number >= 1000 && step + 1 < prefixes.length) {
    number /= 1000;
    step += 1;
  }
  const text = step === 0 ? Math.round(number) : number.toPrecision(3);
  return `${text} ${prefixes[step]}${unit}`.trim();
}

const rate = (bytes) => scaled(bytes * 8, "bit/s");

function duration(seconds) {
  const days = Math.floor(seconds / 86400);
  const hours = Math.floor((seconds % 86400) / 3600);
  const minutes = Math.floor((seconds % 3600) / 60);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

const podName = (pod, id) => (pod ? `${pod.namespace}/${pod.name}` : (id || "node").slice(0, 12));

// Splits `192.0.2.1:80` and `[2001:db8::1]:80`.
function split(end) {
  const found = /^\[?(.*?)\]?:(\d+)$/.exec(end);
  return found ? { host: found[1], port: found[2] } : { host: end.replace(/[[\]]/g, ""), port: "" };
}

// Fills a table: columns are [title, is a number], rows are lists of texts or elements.
function table(id, columns, rows, none) {
  const heads = columns.map(([title, isNumber]) =>
    element("th", { scope: "col", class: isNumber ? "number" : "" }, title));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, at) =>
    element("td", { "data-label": columns[at][0], class: columns[at][1] ? "number" : "" },
      element("span", {}, cell)))));
  if (!body.length) {
    body.push(element("tr", {}, element("td", { class: "none", colspan: columns.length }, none)));
  }
  document.getElementById(id).replaceChildren(
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
}

// Returns bytes per second since the last answer.
function speed(now, before, seconds) {
  return before === undefined || now < before ? 0 : (now - before) / seconds;
}

// Merges flows to conversations of a pod, a peer and a service, the busiest first.
function conversations(data, seconds) {
  const names = new Map();
  const own = new Map();
  for (const view of data.attachments) {
    for (const { address } of view.addresses) {
      const host = address.split("/")[0];
      names.set(host, podName(view.pod, view.containerID));
      own.set(`${view.containerID} ${host}`, true);
    }
  }
  const before = new Map(((last && last.flows.flows) || []).map((flow) => [flowKey(flow), flow]));
  const merged = new Map();
  for (const flow of data.flows.flows) {
    const [source, destination] = [split(flow.seen.source), split(flow.seen.destination)];
    const opens = !flow.containerID || own.has(`${flow.containerID} ${source.host}`);
    const peer = opens ? destination.host : source.host;
    const pod = podName(flow.pod, flow.containerID);
    const behind = opens && names.get(split(flow.translated.destination).host);
    const port = destination.port ? `${flow.protocol} ${destination.port}` : flow.protocol;
    const key = [pod, peer, port, opens].join(" ");
    const entry = merged.get(key)
      || { pod, peer: behind || names.get(peer) || peer, port, opens, kind: flow.kind, flows: 0, from: 0, to: 0 };
    const old = before.get(flowKey(flow)) || {};
    const sent = speed(flow.sent_bytes, old.sent_bytes, seconds);
    const answered = speed(flow.answered_bytes, old.answered_bytes, seconds);
    entry.flows += 1;
    entry.from += opens ? sent : answered;
    entry.to += opens ? answered : sent;
    merged.set(key, entry);
  }
  return [...merged.values()].sort((a, b) => b.from + b.to - a.from - a.to || b.flows - a.flows);
}

const flowKey = (flow) => `${flow.protocol} ${flow.seen.source} ${flow.seen.destination}`;

// Draws pods on the left and peers on the right.
function map() {
  const drawn = talks.slice(0, MOST_LINES);
  const svg = document.getElementById("map");
  const width = Math.max(svg.clientWidth, 320);
  const [lefts, rights] = [[...new Set(drawn.map((it) => it.pod))], [...new Set(drawn.map((it) => it.peer))]];
  const rows = Math.max(lefts.length, rights.length);
  const height = rows * 26 + 8;
  const place = (list, name) => (list.indexOf(name) + 0.5) * (height / list.length);
  const room = Math.min(260, width * 0.34);
  const shorten = (text) => (text.length * 7.6 > room ? `${text.slice(0, Math.floor(room / 7.6) - 1)}…` : text);
  const most = Math.max(1, ...drawn.map((it) => it.from + it.to));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("height", height);
  svg.toggleAttribute("hidden", !drawn.length);
  const lines = drawn.map((it) => {
    const [y1, y2] = [place(lefts, it.pod), place(rights, it.peer)];
    const [x1, x2] = [room + 12, width - room - 12];
    const middle = (x1 + x2) / 2;
    return shape("path", {
      d: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
      "stroke-width": 2 + 12 * Math.sqrt((it.from + it.to) / most),
    });
  });
  const ends = [[lefts, room + 6, "end", room + 12], [rights, width - room - 6, "start", width - room - 12]];
  const labels = ends.flatMap(([list, x, anchor, dot]) => list.flatMap((name) => {
    const y = place(list, name);
    return [
      shape("circle", { cx: dot, cy: y, r: 4 }),
      shape("text", { x: anchor === "end" ? x - 6 : x + 6, y: y + 4, "text-anchor": anchor }, shorten(name)),
    ];
  }));
  svg.replaceChildren(...lines, ...labels);
}

// Returns the current rate of a limit with a bar, or the measured rate without a limit.
function limit(view, bytes) {
  if (!view) return rate(bytes);
  const now = view.current_rate;
  const cell = element("span", {}, `${scaled(now, "bit/s")} of ${scaled(view.rate, "bit/s")}`);
  cell.append(element("meter", { min: 0, max: view.rate, value: Math.min(now, view.rate) }));
  return cell;
}

function showState(status) {
  const state = document.getElementById("state");
  const count = status.degraded.length;
  state.textContent = count ? `degraded: ${count}` : "healthy";
  state.className = count ? "pill bad" : "pill good";
  const version = status.version;
  document.getElementById("version").textContent =
    `viaductd ${version.agent}, up ${duration(status.uptime_seconds)}`;
  document.getElementById("updated").textContent = `updated ${new Date().toLocaleTimeString()}`;
  const list = document.getElementById("degraded");
  list.hidden = !count;
  list.replaceChildren(...status.degraded.map((it) => element("li", {},
    element("strong", {}, it.reason), ` ${it.message}`,
    element("p", { class: "quiet" }, it.advice.replaceAll("`", "")))));
}

function showTiles(data, seconds) {
  const before = (last && last.counters) || {};
  const [status, counters, usage] = [data.status, data.counters, data.flows.room];
  const per = (key) => speed(counters[key], before[key], seconds);
  const dropped = per("rx_dropped") + per("tx_dropped");
  const offload = status.bypass.offload.active ? "established flows" : "off";
  const tiles = [
    ["Pods", status.attachments, `${status.networks.length} ${status.networks.length === 1 ? "network" : "networks"}`],
    ["Flows", data.flows.matching, `${usage.used_entries} of ${usage.entries} entries`],
    ["To pods", rate(per("rx_bytes")), `${scaled(per("rx_packets"), "packets/s")}`],
    ["From pods", rate(per("tx_bytes")), `${scaled(per("tx_packets"), "packets/s")}`],
    ["Dropped", `${scaled(dropped, "/s")}`, `${counters.rx_dropped + counters.tx_dropped} packets of pods`],
    ["Fast path", status.bypass.active ? "all packets" : offload, `mode ${status.bypass.mode}`],
  ];
  document.getElementById("tiles").replaceChildren(...tiles.map(([title, value, more]) =>
    element("div", {}, element("dt", {}, title), element("dd", {}, String(value), element("small", {}, more)))));
}

function showTalk(data, seconds) {
  talks = conversations(data, seconds);
  map();
  const rows = talks.slice(0, MOST_ROWS).map((it) => [
    it.pod, `${it.opens ? "→" : "←"} ${it.peer}`, it.port, it.kind, String(it.flows), rate(it.from), rate(it.to)]);
  const columns = [["Pod"], ["Peer"], ["Service"], ["Kind"], ["Flows", true], ["From the pod", true], ["To the pod", true]];
  table("talk", columns, rows, "No flow crosses the uplinks.");
}

function showPods(data, seconds) {
  const before = new Map(((last && last.attachments) || []).map((it) => [`${it.containerID} ${it.ifname}`, it]));
  const rows = data.attachments.map((view) => {
    const old = (before.get(`${view.containerID} ${view.ifname}`) || {}).counters || {};
    const now = view.counters || {};
    const per = (key) => speed(now[key] || 0, old[key], seconds);
    return [
      podName(view.pod, view.containerID), view.addresses.map((it) => it.address.split("/")[0]).join(", "), view.state,
      limit(view.bandwidth.ingress, per("rx_bytes")), limit(view.bandwidth.egress, per("tx_bytes")),
      String((now.rx_dropped || 0) + (now.tx_dropped || 0))];
  });
  const columns = [["Pod"], ["Addresses"], ["State"], ["To the pod"], ["From the pod"], ["Dropped", true]];
  table("pods", columns, rows, "No pod is attached.");
}

function showPorts(data) {
  const rows = data.hostports.map((port) => [
    `${port.host_address ? `${port.host_address} ` : ""}${port.protocol} ${port.host_port}`,
    `${podName(port.pod, port.containerID)} ${port.container_port}`,
    [...new Set(port.claims.map((it) => it.held_by))].join(", "),
    port.flows === null ? "?" : String(port.flows)]);
  table("ports", [["Port"], ["Pod"], ["Reserved by"], ["Flows", true]], rows, "No port is published.");
}

function showDrops(data, seconds) {
  const before = (last && last.counters.drops) || {};
  const rows = Object.entries(data.counters.drops)
    .filter(([, packets]) => packets > 0)
    .sort((a, b) => b[1] - a[1])
    .map(([reason, packets]) =>
      [reason, String(packets), scaled(speed(packets, last ? before[reason] || 0 : undefined, seconds), "/s")]);
  table("drops", [["Reason"], ["Packets", true], ["Now", true]], rows, "No packet was dropped.");
}

async function query(path) {
  const response = await fetch(path, { cache: "no-store" });
  if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
  return response.json();
}

async function update() {
  const paths = ["/v1/status", "/v1/attachments", "/v1/hostports", "/v1/flows?limit=2000", "/v1/counters"];
  const [status, attachments, hostports, flows, counters] = await Promise.all(paths.map(query));
  const data = { status, attachments, hostports, flows, counters, at: performance.now() };
  const seconds = last ? (data.at - last.at) / 1000 : 1;
  showState(status);
  showTiles(data, seconds);
  showTalk(data, seconds);
  showPods(data, seconds);
  showPorts(data);
  showDrops(data, seconds);
  last = data;
}

async function run() {
  if (document.visibilityState === "visible") {
    try {
      await update();
    } catch (error) {
      const state = document.getElementById("state");
      state.textContent = "no answer";
      state.className = "pill bad";
      document.getElementById("updated").textContent = String(error.message || error);
      last = null;
    }
  }
  setTimeout(run, INTERVAL);
}

window.addEventListener("resize", map);
document.addEventListener("DOMContentLoaded", run);
