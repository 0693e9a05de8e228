"use strict";
// Every text of a file reaches the page through text nodes and attributes, never as markup.
(function () {
  const ROWS = 120; // rows of a table before a button shows the others
  const FOLD = 8; // equal lines of sources that are folded
  const MANY = 2000; // marks from which a canvas is faster than SVG
  const dom = (id) => document.getElementById(id);
  const views = new Map();
  let record, byId, charts, shown, chosen, sorting = { field: null, down: false }, limit = ROWS, ready = false;

  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") node.append(child);
    return node;
  }

  async function unpacked(id) {
    const text = atob(dom(id).textContent), bytes = new Uint8Array(text.length);
    for (let n = 0; n < text.length; n += 1) bytes[n] = text.charCodeAt(n);
    dom(id).textContent = "";
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function run(program) {
    const script = document.createElement("script");
    script.textContent = program;
    document.head.append(script);
    script.remove();
  }

  // ---- numbers as texts
  const known = (value) => value !== null && value !== undefined;
  const formats = [0, 1, 2, 3].map((digits) => new Intl.NumberFormat("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  const grouped = (value, digits) => formats[digits].format(value);
  const us = (value) => (!known(value) ? "-" : grouped(value, value < 10 ? 3 : value < 100 ? 2 : value < 10000 ? 1 : 0));
  const times = (value, digits = 3) => (known(value) ? `${value.toFixed(digits)}x` : "-");
  const percent = (value, digits = 1) => (known(value) ? `${(100 * value).toFixed(digits)} %` : "-");
  const plural = (number, word) => `${grouped(number, 0)} ${word}${number === 1 ? "" : "s"}`;
  const seconds = (s) => (!known(s) ? "-" : s < 60 ? `${s.toFixed(1)} s` : s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(2)} h`);
  const pText = (p) => (!known(p) ? "-" : p < 0.001 ? "< 0.001" : p.toPrecision(2));
  const bytes = (n) => (!known(n) ? "-" : n >= 1024 ? `${grouped(n / 1024, n % 1024 ? 1 : 0)} KiB` : `${n} B`);
  const change = (ratio) => `${ratio < 1 ? "" : "+"}${(100 * (ratio - 1)).toFixed(1)} %`;
  const geomean = (values) => Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
  const median = (values) => {
    const ordered = [...values].sort((a, b) => a - b), middle = ordered.length >> 1;
    return ordered.length % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2;
  };

  function timeText(size) {
    if (!known(size.us)) return "no time";
    const interval = known(size.low_us) ? ` (${us(size.low_us)} to ${us(size.high_us)})` : "";
    return `${us(size.us)} us${size.timed === "measured" ? "" : ` ${size.timed}`}${interval}`;
  }

  function prepare(size) {
    const change_ = size.change;
    Object.assign(size, {
      time_text: timeText(size),
      library_text: known(size.library_us) ? `${us(size.library_us)} us (${size.library})` : "no time",
      speedup_text: known(size.speedup) ? times(size.speedup) + (known(size.speedup_low) ? ` (${size.speedup_low.toFixed(3)} to ${size.speedup_high.toFixed(3)})` : "") : "-",
      roof_text: known(size.roof_share) ? `${percent(size.roof_share)} (${size.bound})` : "-",
      searched_text: percent(size.searched_share), loss_text: percent(size.expected_loss, 2),
      verdict: change_ ? change_.verdict : "", file_name: record.files[size.file],
      haystack: [size.label, size.size, size.format, size.config, size.runner_up, size.kernel, size.library, size.device, record.files[size.file]].join(" ").toLowerCase(),
    });
    if (!change_) return;
    Object.assign(size, {
      old_us: change_.old_us, ratio: change_.ratio, ratio_low: change_.ratio_low, ratio_high: change_.ratio_high,
      old_config: change_.old_config, old_text: `${us(change_.old_us)} us`, new_text: size.time_text,
      change_text: known(change_.ratio) ? change(change_.ratio) : change_.why, p_text: pText(change_.p_adjusted),
    });
  }

  // ---- charts
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function config(width) {
    const ink = css("--ink"), muted = css("--muted"), font = getComputedStyle(document.body).fontFamily;
    const text = { labelColor: muted, titleColor: ink, labelFont: font, titleFont: font, labelFontSize: 11, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: "transparent", font, range: { category: record.palette }, view: { stroke: null },
      axis: { ...text, gridColor: css("--grid"), domainColor: css("--line"), tickColor: css("--line"), labelLimit: 130 },
      legend: { ...text, symbolOpacity: 1, symbolBaseFillColor: muted, symbolBaseStrokeColor: muted, orient: "top", columns: Math.max(2, Math.floor(width / 165)), labelLimit: 170, symbolLimit: 30, titleLimit: 200 },
      text: { color: ink, font }, rule: { color: muted }, point: { color: css("--accent") }, circle: { color: css("--accent") },
    };
  }

  // Charts are drawn when they come near the visible part of the page; printing draws all.
  const waiting = new Map();
  const near = new IntersectionObserver((entries) => entries.forEach((entry) => { if (entry.isIntersecting) drawWaiting(entry.target); }), { rootMargin: "200px" });
  const isNear = (host) => { const box = host.getBoundingClientRect(); return box.top < innerHeight && box.bottom > 0; };

  function drawWaiting(host) {
    near.unobserve(host);
    const task = waiting.get(host.id);
    waiting.delete(host.id);
    return task && document.contains(host) ? task() : null;
  }

  // Colours are the same in all charts; a legend names the families that its chart shows.
  function named(spec, field, rows) {
    const present = new Set(rows.map((row) => row[field]));
    const restricted = copy(spec);
    for (const part of restricted.layer || [restricted]) {
      const color = part.encoding?.color;
      if (color?.scale?.domain) color.legend = { values: color.scale.domain.filter((name) => present.has(name)) };
    }
    return restricted;
  }

  function draw(id, spec, datasets, onSelect) {
    const host = dom(id);
    waiting.set(id, () => drawNow(host, spec, datasets, onSelect));
    if (isNear(host)) return drawWaiting(host);
    near.observe(host);
    return null;
  }

  function drawNow(host, spec, datasets, onSelect) {
    const { id } = host;
    views.get(id)?.finalize();
    host.replaceChildren();
    const whole = { ...spec, datasets, config: config(host.clientWidth) };
    const view = new vega.View(vega.parse(vegaLite.compile(whole, { logger: vega.logger(vega.Error) }).spec), { renderer: Object.values(datasets).some((rows) => rows.length > MANY) ? "canvas" : "svg", hover: true, tooltip: tip, logLevel: vega.Error }).initialize(host);
    if (onSelect) view.addEventListener("click", (event, item) => { if (item?.datum?.id) onSelect(item.datum.id); });
    views.set(id, view);
    return view.runAsync();
  }

  function tip(handler, event, item, value) {
    const box = dom("tip");
    if (!value || typeof value !== "object") { box.hidden = true; return; }
    const rows = Object.entries(value).filter(([, text]) => known(text) && text !== "" && text !== "-");
    box.replaceChildren(make("dl", {}, rows.map(([name, text]) => [make("dt", {}, name), make("dd", {}, String(text))])));
    box.hidden = rows.length === 0;
    const at = event.touches?.[0] || event, width = box.offsetWidth, height = box.offsetHeight;
    box.style.left = `${Math.max(4, Math.min(at.clientX + 14, innerWidth - width - 6))}px`;
    box.style.top = `${at.clientY + 16 + height > innerHeight ? Math.max(4, at.clientY - height - 10) : at.clientY + 16}px`;
  }

  const copy = (spec) => JSON.parse(JSON.stringify(spec));
  const go = (id) => { if (location.hash.slice(1) === id) show(id, true); else location.hash = id; };

  function drawSpeed() {
    const over = dom("over").value, by = dom("by").value;
    const rows = shown.filter((size) => known(size[over]));
    dom("speed_chart").hidden = rows.length === 0;
    dom("speed").hidden = !record.sizes.some((size) => known(size.speedup) || known(size.speedup_torch));
    if (!rows.length) return null;
    const spec = named(charts.speedup, "kernel", rows);
    const axis = { gflop: ["Operations of the size, GFLOP", "~g"], M: ["M", "~s"], us: ["Kernel's time, us", "~g"], intensity: ["FLOP per byte", "~g"] }[by];
    for (const layer of spec.layer) {
      if (!layer.encoding.x) continue;
      Object.assign(layer.encoding.x, { field: by, title: axis[0], axis: { format: axis[1], tickCount: 7 } });
      if (over !== "speedup") layer.encoding.y.title = "PyTorch's time / kernel's time";
    }
    spec.transform = [{ filter: `isValid(datum.${over})` }];
    spec.layer[2].encoding.y.field = over;
    if (over !== "speedup") spec.layer.splice(1, 1);
    return draw("speed_chart", spec, { sizes: rows }, go);
  }

  const deviceCount = () => new Set(record.roofs.map((roof) => roof.device)).size;

  function drawOverview() {
    const drawn = [drawSpeed()];
    const placed = shown.filter((size) => known(size.tflops));
    dom("roofs").textContent = record.roofs.map((roof) => `${deviceCount() > 1 ? `${roof.device}, ` : ""}${roof.dtype} ${grouped(roof.peak_tflops, 0)} TFLOPS and ${roof.memory_tb_per_s} TB/s`).join("; ");
    dom("roofline").hidden = !record.sizes.some((size) => known(size.tflops));
    dom("roofline_chart").hidden = placed.length === 0;
    if (placed.length) {
      const devices = new Set(placed.map((size) => size.device)), several = deviceCount() > 1;
      const here = (row) => !several || [...devices].some((device) => row.roof.startsWith(device));
      drawn.push(draw("roofline_chart", named(charts.roofline, "kernel", placed), { sizes: placed, roofs: record.roof_lines.filter(here), roof_labels: record.roof_labels.filter(here) }, go));
    }
    const compared = shown.filter((size) => known(size.ratio));
    dom("changes_chart").hidden = compared.length === 0;
    if (compared.length) drawn.push(draw("changes_chart", charts.changes, { changes: compared }, go));
    const sure = shown.filter((size) => known(size.expected_loss) && known(size.searched_share));
    dom("certainty_chart").hidden = sure.length === 0;
    if (sure.length) drawn.push(draw("certainty_chart", named(charts.certainty, "kernel", sure), { sizes: sure }, go));
    return Promise.all(drawn);
  }

  // ---- summary
  function tile(value, said, of) {
    return make("div", { class: "tile" }, make("b", {}, value), make("span", {}, said), of ? make("span", {}, of) : null);
  }

  function summary() {
    const sizes = record.sizes, tiles = [tile(grouped(sizes.length, 0), sizes.length === 1 ? "size" : "sizes", [...new Set(sizes.map((size) => size.device))].join(", "))];
    const compared = sizes.filter((size) => known(size.speedup));
    if (compared.length) {
      const counts = { kernel: 0, tie: 0, library: 0 };
      compared.forEach((size) => { counts[size.called] += 1; });
      tiles.push(tile(times(geomean(compared.map((size) => size.speedup))), "library's best time / kernel's time", `geometric mean of ${plural(compared.length, "size")}`));
      tiles.push(tile(`${counts.kernel} · ${counts.tie} · ${counts.library}`, "kernel faster · tie · library faster", "ties and the last are served by the library"));
    }
    const torch = sizes.filter((size) => known(size.speedup_torch));
    if (torch.length) {
      const called = torch.map((size) => (size.called === "kernel" || !known(size.library_us) ? size.speedup_torch : size.torch_us / size.library_us));
      tiles.push(tile(times(geomean(called)), "PyTorch's time / time of what is called", `geometric mean of ${plural(torch.length, "size")}`));
    }
    const measured = sizes.filter((size) => known(size.roof_share) && size.timed !== "predicted");
    if (measured.length) tiles.push(tile(percent(median(measured.map((size) => size.roof_share))), "of the data sheet's roofline", `median of ${plural(measured.length, "size")}`));
    const predicted = sizes.filter((size) => size.timed === "predicted");
    if (predicted.length) tiles.push(tile(grouped(predicted.length, 0), predicted.length === 1 ? "time is predicted" : "times are predicted", "not measured on any GPU"));
    const changed = sizes.filter((size) => size.change && known(size.change.ratio) && !size.change.why);
    if (changed.length) {
      const count = (verdict) => changed.filter((size) => size.verdict === verdict).length;
      tiles.push(tile(change(geomean(changed.map((size) => size.ratio))), "time against the older results", `${count("faster")} faster, ${count("slower")} slower, ${count("no clear change")} unchanged`));
    }
    dom("tiles").replaceChildren(...tiles);
    dom("notes").replaceChildren(...record.notes.map((note) => make("li", {}, note)));
    dom("subtitle").textContent = `genkern report of ${record.files.length > 3 ? plural(record.files.length, "results file") : record.files.join(", ")}${record.old_files.length ? ` against ${record.old_files.length > 3 ? plural(record.old_files.length, "file") : record.old_files.join(", ")}` : ""}, ${record.made}`;
  }

  // ---- filters
  const SELECTS = { format: "format", device: "device", file: "file_name", kernel: "kernel", called: "called", verdict: "verdict" };

  function fillFilters() {
    for (const [id, field] of Object.entries(SELECTS)) {
      const counts = new Map();
      record.sizes.forEach((size) => { if (size[field]) counts.set(size[field], (counts.get(size[field]) || 0) + 1); });
      const values = [...counts].sort((a, b) => (a[0] < b[0] ? -1 : 1));
      if (id === "verdict" && values.length) values.push(["another winner", record.sizes.filter((size) => size.change?.winner_changed).length]);
      dom(id).replaceChildren(make("option", { value: "" }, "all"), ...values.map(([value, count]) => make("option", { value }, `${value.split("/").pop()} (${count})`)));
      dom(id).parentElement.hidden = values.length < 2;
    }
  }

  function filtered() {
    const words = dom("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const from = Number(dom("m_from").value) || 0, to = Number(dom("m_to").value) || Infinity;
    const wanted = Object.entries(SELECTS).map(([id, field]) => [field, dom(id).value]).filter(([, value]) => value);
    return record.sizes.filter((size) => size.M >= from && size.M <= to && words.every((word) => size.haystack.includes(word)) &&
      wanted.every(([field, value]) => (value === "another winner" && field === "verdict" ? size.change?.winner_changed : size[field] === value)));
  }

  function applyFilters() {
    shown = filtered();
    limit = ROWS;
    dom("count").textContent = `${grouped(shown.length, 0)} of ${plural(record.sizes.length, "size")}`;
    fillTable();
    fillChanges();
    return ready ? drawOverview() : null;
  }

  // ---- tables
  const badge = (size) => (size.timed === "measured" || !known(size.us) ? null : [" ", make("span", { class: "badge" }, size.timed)]);
  const link = (size) => [make("a", { href: `#${size.id}` }, size.size), size.label === size.size ? null : make("small", {}, ` ${size.format}`)];
  const judged = (value, text, low, high) => make("span", { class: known(low) && low > 1 ? "good" : known(high) && high < 1 ? "bad" : null }, text);

  function columns() {
    const some = (field) => record.sizes.some((size) => known(size[field]) && size[field] !== "");
    const several = new Set(record.sizes.map((size) => size.device)).size > 1;
    const all = [
      { head: "Size", field: "label", first: true, sort: (size) => size.gflop, cell: link },
      several && { head: "Device", field: "device", cell: (size) => size.device },
      { head: "Time, us", field: "us", number: true, cell: (size) => [us(size.us), badge(size), known(size.low_us) ? make("small", {}, ` ±${(50 * (size.high_us - size.low_us) / size.us).toFixed(1)} %`) : null] },
      { head: "TFLOPS", field: "tflops", number: true, cell: (size) => (known(size.tflops) ? grouped(size.tflops, 1) : "-") },
      some("roof_share") && { head: "Of roofline", field: "roof_share", number: true, cell: (size) => [percent(size.roof_share), make("small", {}, ` ${size.bound}`)] },
      some("library_us") && { head: "Library, us", field: "library_us", number: true, cell: (size) => [us(size.library_us), make("small", {}, ` ${size.library}`)] },
      some("speedup") && { head: "Over library", field: "speedup", number: true, cell: (size) => judged(size.speedup, times(size.speedup), size.speedup_low, size.speedup_high) },
      some("speedup_torch") && { head: "Over PyTorch", field: "speedup_torch", number: true, cell: (size) => times(size.speedup_torch) },
      some("library_us") && { head: "Called", field: "called", cell: (size) => (size.called === "tie" ? "library (tie)" : size.called) },
      some("change") && { head: "Change", field: "ratio", number: true, cell: (size) => (size.change ? make("span", { class: size.verdict === "faster" ? "good" : size.verdict === "slower" ? "bad" : null, title: size.verdict }, known(size.ratio) ? change(size.ratio) : "-") : "new") },
      some("expected_loss") && { head: "Expected loss", field: "expected_loss", number: true, cell: (size) => percent(size.expected_loss, 2) },
      { head: "Winner", field: "config", name: true, cell: (size) => size.config || size.kernel },
    ];
    return all.filter(Boolean);
  }

  const kind = (column) => [column.number && "number", column.name && "name", column.first && "first"].filter(Boolean).join(" ") || null;

  function fillTable() {
    const each = columns(), column = each.find((one) => one.field === sorting.field);
    const value = column?.sort || ((size) => size[sorting.field]);
    const rows = column ? [...shown].sort((a, b) => {
      const x = value(a), y = value(b);
      if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : 0;
      return (x < y ? -1 : x > y ? 1 : 0) * (sorting.down ? -1 : 1);
    }) : shown;
    shown = rows;
    const heads = each.map((one) => make("th", { class: kind(one), "aria-sort": one.field === sorting.field ? (sorting.down ? "descending" : "ascending") : null },
      make("button", { type: "button", onclick: () => { sorting = { field: one.field, down: sorting.field === one.field ? !sorting.down : Boolean(one.number) }; fillTable(); } }, one.head)));
    const body = rows.slice(0, limit).map((size) => make("tr", { "data-id": size.id, class: size.id === chosen ? "chosen" : null },
      each.map((one) => make("td", { class: kind(one), title: one.name ? one.cell(size) : null }, one.cell(size)))));
    dom("table").replaceChildren(make("thead", {}, make("tr", {}, heads)), make("tbody", {}, body));
    dom("more").hidden = rows.length <= limit;
    dom("more").textContent = `Show all ${plural(rows.length, "size")}`;
  }

  function fillChanges() {
    dom("changes").hidden = record.old_files.length === 0;
    if (dom("changes").hidden) return;
    const order = { slower: 0, faster: 1, "no clear change": 2, "not compared": 3 }, far = (size) => Math.abs(Math.log(size.ratio ?? 1));
    const rows = shown.filter((size) => size.change).sort((a, b) => order[a.verdict] - order[b.verdict] || far(b) - far(a));
    const count = (verdict) => rows.filter((size) => size.verdict === verdict).length;
    const others = rows.filter((size) => size.change.winner_changed).length;
    dom("changes_text").textContent = `${count("faster")} faster, ${count("slower")} slower, ${count("no clear change")} without a clear change, ${count("not compared")} not compared; ${others} have another winner.`;
    const told = rows.filter((size) => size.verdict === "faster" || size.verdict === "slower" || size.change.winner_changed);
    const heads = ["Size", "Old, us", "New, us", "Change", "p-value", "Library's change", "Verdict", "Winner"];
    dom("changes_more").hidden = told.length <= limit;
    dom("changes_more").textContent = `Show all ${plural(told.length, "changed size")}`;
    dom("changes_table").replaceChildren(
      make("thead", {}, make("tr", {}, heads.map((head, n) => make("th", { class: n > 0 && n < 6 ? "number" : n ? null : "first" }, head)))),
      make("tbody", {}, told.slice(0, limit).map((size) => make("tr", {},
        make("td", { class: "first" }, link(size)), make("td", { class: "number" }, us(size.old_us)), make("td", { class: "number" }, [us(size.us), badge(size)]),
        make("td", { class: `number ${size.verdict === "faster" ? "good" : size.verdict === "slower" ? "bad" : ""}` }, known(size.ratio) ? change(size.ratio) : "-"),
        make("td", { class: "number" }, pText(size.change.p_adjusted)), make("td", { class: "number" }, known(size.change.library_ratio) ? change(size.change.library_ratio) : "-"),
        make("td", {}, size.change.why || size.verdict), make("td", { class: "name", title: size.config }, size.change.winner_changed ? [size.config, make("br"), make("small", {}, `was ${size.change.old_config}`)] : make("small", {}, "unchanged"))))));
  }

  function fillGroups() {
    const heads = ["Device", "Architecture", "Compute units", "Sizes", "Timer", "Versions"];
    dom("groups").replaceChildren(make("thead", {}, make("tr", {}, heads.map((head) => make("th", {}, head)))),
      make("tbody", {}, record.groups.map((group) => make("tr", {}, [group.device || "not named", group.arch || "-", group.compute_units ?? "-", group.sizes, group.timers.join(", "),
        Object.entries(group.versions).map(([name, version]) => `${name} ${version}`).join(", ") || "not named"].map((text) => make("td", {}, String(text)))))));
    dom("made").textContent = `Made by genkern ${record.genkern} on ${record.made}. Files: ${record.files.join(", ")}.`;
  }

  // ---- one size
  function fact(name, value, long) {
    return known(value) && value !== "" && value !== "-" ? make("div", { class: long ? "long" : null }, make("dt", {}, name), make("dd", {}, value)) : null;
  }

  function show(id, scroll) {
    const size = byId.get(id);
    if (!size) return;
    chosen = id;
    document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
    const row = document.querySelector(`tr[data-id="${CSS.escape(id)}"]`), box = dom("table").parentElement;
    row?.classList.add("chosen");
    if (row && (row.offsetTop < box.scrollTop + 30 || row.offsetTop > box.scrollTop + box.clientHeight - 60)) box.scrollTop = row.offsetTop - box.clientHeight / 2;
    const place = shown.indexOf(size);
    const step = (by) => { const next = shown[place + by]; return make("button", { type: "button", class: "small", disabled: !next, onclick: () => next && go(next.id) }, by < 0 ? "Previous" : "Next"); };
    const parts = [
      make("div", { class: "head" }, make("h2", {}, size.label, badge(size)), make("span", { class: "controls" }, step(-1), step(1))),
      make("dl", { class: "facts" }, facts(size)),
      compared(size),
    ];
    dom("detail").replaceChildren(...parts.filter(Boolean));
    const of = size.candidates === null ? null : record.candidates[size.candidates];
    if (size.needs || size.runner_up_needs) needs(size);
    if (of) candidatesOf(size, of);
    else dom("detail").append(make("p", { class: "muted" }, "This size has no list of candidates: its journal is missing, and no --candidates file has it."));
    sources(size);
    if (scroll) dom("detail").scrollIntoView({ block: "start" });
  }

  function facts(size) {
    const group = record.groups[size.group];
    return [
      fact("Winner", size.config || size.kernel, true),
      fact("Runner-up", size.runner_up, true),
      fact("Time", size.time_text), fact("Samples", known(size.samples) && size.timed !== "predicted" ? `${size.samples}${size.discarded ? `, ${size.discarded} discarded` : ""}` : null),
      fact("Spread (IQR)", known(size.spread_us) && size.timed !== "predicted" ? `${us(size.spread_us)} us` : null), fact("Rate", known(size.tflops) ? `${grouped(size.tflops, 1)} TFLOPS, ${grouped(size.gb_per_s, 0)} GB/s` : null),
      fact("Least time by data sheet", known(size.roof_us) ? `${us(size.roof_us)} us (${size.bound})` : null), fact("Of roofline", percent(size.roof_share)),
      fact("Called", size.called === "tie" ? "library (tie)" : size.called), fact("Check", size.check || "none"),
      fact("Searched", known(size.searched_share) ? `${percent(size.searched_share)} of the binaries` : null), fact("Expected loss", known(size.expected_loss) ? percent(size.expected_loss, 2) : null),
      fact("Batch-invariant", size.batch_invariant ? `yes${known(size.invariant_loss) ? `, costs ${percent(size.invariant_loss)}` : ""}` : null),
      fact("Device", size.device), fact("Timer", group.timers.join(", ")), fact("File", size.file_name),
    ];
  }

  function compared(size) {
    const rows = [];
    const add = (name, time, said) => { if (known(time)) rows.push([name, time, said]); };
    add("Winner", size.us, size.config || size.kernel);
    add("Runner-up", size.runner_up_us, size.runner_up);
    if (size.library && size.library !== "torch") add(`Library's best call (${size.library})`, size.library_us, "");
    add("PyTorch's call", size.torch_us ?? (size.library === "torch" ? size.library_us : null), "");
    if (size.change) add("Older result", size.change.old_us, size.change.old_config);
    if (rows.length < 2) return null;
    return make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ["Who it beat", "Time, us", "Over the winner", "Config"].map((head, n) => make("th", { class: n === 1 || n === 2 ? "number" : null }, head)))),
      make("tbody", {}, rows.map(([name, time, said], n) => make("tr", {}, make("td", {}, name), make("td", { class: "number" }, [us(time), name === "Winner" || name === "Runner-up" ? badge(size) : null]),
        make("td", { class: "number" }, n && known(size.us) ? change(time / size.us) : ""), make("td", { class: "name", title: said }, said))))));
  }

  const NEEDS = [["registers", "Registers per thread"], ["spills", "Spilled registers"], ["shared_bytes", "Shared memory per block"], ["scratch_bytes", "Local memory per thread"], ["blocks_per_unit", "Blocks per compute unit"], ["warps_per_unit", "Warps per compute unit (occupancy)"]];

  function needs(size) {
    const kernels = [["Winner", size.needs], ["Runner-up", size.runner_up_needs]].filter(([, of]) => of);
    const cell = (name, of) => name.endsWith("bytes") ? bytes(of[name]) : !known(of[name]) ? "-" : name === "warps_per_unit" ? `${of[name]} of ${of.warps_most} (${percent(of[name] / of.warps_most, 0)})` : String(of[name]);
    dom("detail").append(make("h3", {}, "Resources of the main kernel"),
      make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, ""), kernels.map(([name]) => make("th", { class: "number" }, name)))),
        make("tbody", {}, NEEDS.filter(([name]) => kernels.some(([, of]) => known(of[name]))).map(([name, said]) => make("tr", {}, make("td", { class: "wrap" }, said), kernels.map(([, of]) => make("td", { class: "number" }, cell(name, of)))))))));
    const rows = kernels.flatMap(([kernel, of]) => Object.entries(of.loop).map(([kind_, count], order) => ({ kernel, kind: kind_, count, order })));
    if (!rows.some((row) => row.count)) { dom("detail").append(make("p", { class: "muted" }, "The journal has no instruction counts of the main loop.")); return; }
    dom("detail").append(make("div", { id: "loop_chart", class: "chart" }));
    draw("loop_chart", charts.loop, { loop: rows.filter((row) => row.count) });
  }

  function candidatesOf(size, of) {
    const total = Object.values(of.outcomes).reduce((sum, n) => sum + n, 0), most = Math.max(...Object.values(of.outcomes));
    const rows = of.config.map((config_, n) => ({
      rank: n + 1, config: config_, family: of.family[n], us: of.us[n], us_text: `${us(of.us[n])} us${of.predicted ? " predicted" : ""}`, final_text: known(of.final_us[n]) ? `${us(of.final_us[n])} us` : "",
      needs_text: [known(of.registers[n]) && `${of.registers[n]} registers`, known(of.shared_bytes[n]) && `${bytes(of.shared_bytes[n])} shared`, of.spills[n] ? `${of.spills[n]} spilled` : ""].filter(Boolean).join(", "),
      // A fixed sequence spreads the points of one value.
      jitter: ((n * 0.618034) % 1) * 1.4 - 0.7,
    }));
    const names = Object.keys(of.parameters);
    const choice = make("select", { id: "parameter" }, names.map((name) => make("option", { value: name }, name)));
    dom("detail").append(
      make("div", { class: "head" }, make("h3", {}, `Candidates: ${grouped(of.timed, 0)} with a time${rows.length < of.timed ? `, the ${grouped(rows.length, 0)} fastest shown` : ""}`), make("button", { type: "button", class: "small", id: "candidates_csv" }, "CSV of the candidates")),
      make("p", { class: "muted" }, `From ${of.origin}. ${of.predicted ? "Times are predicted; none was measured." : "Times are each candidate's first measurement; the finals decided the winner."}${of.whole ? " Every config of the space has an outcome." : ""}`));
    dom("candidates_csv").addEventListener("click", () => save(`candidates_${size.id}.csv`, csv(["rank", "config", "us", "final_us", "registers", "shared_bytes", "spills", ...names],
      of.config.map((config_, n) => [n + 1, config_, of.us[n], of.final_us[n], of.registers[n], of.shared_bytes[n], of.spills[n], ...names.map((name) => of.parameters[name][n])]))));
    if (rows.length) {
      dom("detail").append(make("div", { class: "pair" },
        make("div", {}, make("div", { class: "head" }, make("h3", {}, "By rank")), make("div", { id: "candidates_chart", class: "chart" })),
        make("div", {}, make("div", { class: "head" }, make("h3", {}, "By parameter"), names.length ? choice : null), make("div", { id: "parameter_chart", class: "chart" }))));
      const ranked = named(charts.candidates, "family", rows);
      if (of.predicted) ranked.layer[0].encoding.y.title = "Predicted time, us";
      draw("candidates_chart", ranked, { candidates: rows });
      const drawParameter = () => {
        const name = choice.value;
        if (!name) return;
        const spec = copy(charts.parameter);
        spec.layer.forEach((layer) => { layer.encoding.x.title = name; layer.encoding.y.title = `${of.predicted ? "Predicted time" : "First measurement"}, us`; });
        const best = of.best_by[name].map(([value, best_us, count]) => ({ value, us: best_us, us_text: `${us(best_us)} us`, candidates: count }));
        const order = best.map((row) => row.value);
        spec.layer.forEach((layer) => { layer.encoding.x.sort = order; });
        draw("parameter_chart", spec, { candidates: rows.map((row, n) => ({ ...row, value: of.parameters[name][n] })).filter((row) => known(row.value)), best });
      };
      choice.addEventListener("change", drawParameter);
      drawParameter();
    }
    if (of.tiles.length) {
      const best = Math.min(...of.tiles.map((tile_) => tile_.us));
      dom("detail").append(make("div", { class: "pair" },
        make("div", {}, make("h3", {}, `Tiles: best ${of.predicted ? "predicted " : ""}time of each BLOCK_SIZE_M x BLOCK_SIZE_N`), make("div", { id: "tiles_chart", class: "chart" })),
        make("div", {}, make("h3", {}, `Outcomes of ${plural(total, "candidate")}`), make("div", { class: "outcomes" }, Object.entries(of.outcomes).map(([name, count]) => [make("span", {}, of.predicted && name === "measured" ? "predicted" : name), make("i", { style: `width:${(100 * count / most).toFixed(2)}%` }), make("span", {}, grouped(count, 0))])))));
      const spec = copy(charts.tiles), columns_ = new Set(of.tiles.map((tile_) => tile_.block_n)).size;
      if (dom("tiles_chart").clientWidth / columns_ < 30) spec.layer = spec.layer.filter((layer) => layer.name !== "numbers");
      draw("tiles_chart", spec, { tiles: of.tiles.map((tile_) => ({ ...tile_, slower: tile_.us / best, slower_text: times(tile_.us / best), us_text: `${us(tile_.us)} us${of.predicted ? " predicted" : ""}`, tile: `${tile_.block_m} x ${tile_.block_n}` })) });
    }
  }

  // ---- sources
  const linesOf = (source) => [...source.head, "", ...source.kernels.flatMap((key) => [...record.texts[key].split("\n"), ""])];

  // Pairs of equal lines by longest common subsequence; equal beginnings and ends are taken first.
  function aligned(left, right) {
    let from = 0, ends = 0;
    while (from < left.length && from < right.length && left[from] === right[from]) from += 1;
    while (ends < left.length - from && ends < right.length - from && left[left.length - 1 - ends] === right[right.length - 1 - ends]) ends += 1;
    const a = left.slice(from, left.length - ends), b = right.slice(from, right.length - ends), width = b.length + 1;
    const rows = left.slice(0, from).map((line) => [line, line, true]);
    const table = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1)
      table[i * width + j] = a[i] === b[j] ? table[(i + 1) * width + j + 1] + 1 : Math.max(table[(i + 1) * width + j], table[i * width + j + 1]);
    let i = 0, j = 0, removed = [], added = [];
    const flush = () => { for (let n = 0; n < Math.max(removed.length, added.length); n += 1) rows.push([removed[n] ?? null, added[n] ?? null, false]); removed = []; added = []; };
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && a[i] === b[j]) { flush(); rows.push([a[i], b[j], true]); i += 1; j += 1; }
      else if (j >= b.length || (i < a.length && table[(i + 1) * width + j] >= table[i * width + j + 1])) removed.push(a[i++]);
      else added.push(b[j++]);
    }
    flush();
    return [...rows, ...left.slice(left.length - ends).map((line) => [line, line, true])];
  }

  function sources(size) {
    if (!size.source) { if (size.config) dom("detail").append(make("p", { class: "muted" }, "This genkern cannot generate the winner's source.")); return; }
    const differs = size.source.as_measured === false ? " This genkern generates another program than the one that was measured." : size.source.as_measured === null && size.timed === "measured" ? " The results file does not identify the program that was measured." : "";
    const box = make("div", { class: "source" });
    const fill = (which) => {
      if (which !== "diff") {
        box.replaceChildren(...linesOf(which).map((line) => make("div", { class: "row one" }, make("code", {}, line))));
        return;
      }
      const rows = aligned(linesOf(size.source), linesOf(size.runner_up_source));
      const row = ([one, other, same]) => make("div", { class: "row" }, make("code", { class: same ? "same" : one === null ? null : "removed" }, one ?? ""), make("code", { class: same ? "same right" : other === null ? null : "added" }, other ?? ""));
      const nodes = [make("div", { class: "row names" }, make("code", {}, "Winner"), make("code", {}, "Runner-up"))];
      for (let n = 0; n < rows.length;) {
        let end = n;
        while (end < rows.length && rows[end][2]) end += 1;
        if (end - n > FOLD) {
          const hidden = rows.slice(n + (n ? 3 : 0), end - (end < rows.length ? 3 : 0));
          if (n) nodes.push(...rows.slice(n, n + 3).map(row));
          nodes.push(make("button", { type: "button", class: "fold", onclick: (event) => event.target.replaceWith(...hidden.map(row)) }, `… ${plural(hidden.length, "equal line")}`));
          if (end < rows.length) nodes.push(...rows.slice(end - 3, end).map(row));
          n = end;
        } else { nodes.push(row(rows[n])); n += 1; }
      }
      box.replaceChildren(...nodes);
    };
    const tabs = [["Difference to the runner-up", "diff", size.runner_up_source], ["Winner", size.source, true], ["Runner-up", size.runner_up_source, size.runner_up_source]].filter((tab) => tab[2]);
    const buttons = tabs.map(([said, which]) => make("button", { type: "button", class: "small", onclick: () => { buttons.forEach((button) => button.setAttribute("aria-pressed", button.textContent === said)); fill(which); } }, said));
    dom("detail").append(make("div", { class: "head" }, make("h3", {}, "Generated source"), make("span", { class: "controls" }, buttons)), make("p", { class: "muted" }, `Parameters, compile-time constants and kernel texts.${differs}`), box);
    buttons[0].click();
  }

  // ---- what the run cost
  function cost() {
    dom("cost").hidden = record.runs.length === 0;
    if (dom("cost").hidden) return null;
    const heads = ["Run", "Started", "Sizes", "Devices", "Wall time", "GPU busy", "GPU idle", "Compiles (CPU time)", "Binaries", "From the cache"];
    dom("cost_text").replaceChildren(make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, heads.map((head, n) => make("th", { class: n > 1 ? "number" : null }, head)))),
      make("tbody", {}, record.runs.map((run_) => make("tr", {}, [run_.results.split("/").pop(), run_.started + (run_.starts > 1 ? ` (start ${run_.starts})` : ""), run_.sizes, run_.devices, seconds(run_.wall_s), share(run_.measure_s, run_), share(run_.idle_s, run_), seconds(run_.compile_s), run_.binaries ?? "-", run_.cached ?? "-"].map((text, n) => make("td", { class: n > 1 ? "number" : null, title: n ? null : run_.command }, String(text)))))))));
    dom("cost_text").append(make("p", { class: "muted" }, "A GPU is busy while it screens, re-times, checks and confirms. The time of compiles counts those of earlier runs whose results came from the cache, too."));
    const timed = record.runs.filter((each) => each.stages.length);
    dom("timeline_chart").hidden = !timed.length;
    if (!timed.length) { dom("cost_text").append(make("p", { class: "muted" }, "The journal does not say when sizes ended, so there is no timeline.")); return null; }
    dom("run").replaceChildren(...timed.map((each, n) => make("option", { value: n }, each.results.split("/").pop())));
    dom("run").parentElement.hidden = timed.length < 2;
    dom("run").onchange = () => drawTimeline(timed[Number(dom("run").value)]);
    return drawTimeline(timed[0]);
  }

  // Sizes that overlap on a device have lanes of their own.
  function drawTimeline(run_) {
    const free = [], rows = [], last = Math.max(...run_.stages.map((stage) => stage.end_s)), unit = last > 7200 ? 3600 : last > 180 ? 60 : 1;
    let lane = 0, before = null;
    for (const stage of run_.stages) {
      const key = `${stage.device_index} ${stage.size}`;
      if (key !== before || stage.stage === "compile and screen") {
        lane = free.findIndex((until) => until[0] === stage.device_index && until[1] <= stage.begin_s);
        if (lane < 0) lane = free.push([stage.device_index, 0]) - 1;
      }
      before = key;
      free[lane][1] = stage.end_s;
      rows.push({ lane: `GPU ${stage.device_index}${" ".repeat(lane)}`, size: stage.size, stage: stage.stage, begin: stage.begin_s / unit, end: stage.end_s / unit, seconds: (stage.end_s - stage.begin_s).toFixed(2) });
    }
    const spec = copy(charts.timeline);
    spec.encoding.x.title = `Time since the start, ${unit === 3600 ? "hours" : unit === 60 ? "minutes" : "seconds"}`;
    rows.sort((a, b) => (a.lane < b.lane ? -1 : a.lane > b.lane ? 1 : 0));
    return draw("timeline_chart", spec, { stages: rows });
  }

  const share = (s, run_) => (known(s) && run_.wall_s ? `${seconds(s)} (${percent(s / run_.wall_s / run_.devices, 0)})` : "-");

  function certainty() {
    const sure = record.sizes.filter((size) => known(size.expected_loss));
    dom("certainty").hidden = sure.length === 0;
    if (!sure.length) return;
    const losses = sure.map((size) => size.expected_loss).sort((a, b) => a - b), tried = sure.filter((size) => known(size.searched_share)).map((size) => size.searched_share);
    dom("certainty_text").textContent = `The expected loss says how much longer the winner is expected to take than the best config of the space. Median ${percent(median(losses), 2)}, 90 % of the sizes at most ${percent(losses[Math.ceil(0.9 * losses.length) - 1], 2)}, largest ${percent(losses.at(-1), 2)}${tried.length ? `; ${percent(median(tried))} of the binaries were tried (median)` : ""}.`;
  }

  // The id in the address; a size alone means the first row of that size.
  function linked() {
    let text = location.hash.slice(1);
    try { text = decodeURIComponent(text); } catch { /* not encoded: used as it is */ }
    return byId.has(text) ? text : record.sizes.find((size) => size.size === text)?.id;
  }

  // ---- downloads
  // A name that begins like a formula is not one to a spreadsheet.
  const cell = (value) => (typeof value === "string" && /^[=+@\t\r-]/.test(value) ? `'${value}` : known(value) ? String(value) : "");
  const quoted = (value) => { const text = cell(value); return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text; };
  const csv = (heads, rows) => `${[heads, ...rows].map((row) => row.map(quoted).join(",")).join("\n")}\n`;

  function save(name, text, type = "text/csv") {
    const url = URL.createObjectURL(new Blob([text], { type }));
    make("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
  }

  const FIELDS = ["label", "M", "N", "K", "format", "device", "timed", "us", "low_us", "high_us", "tflops", "gb_per_s", "roof_us", "roof_share", "bound", "library", "library_us", "library_low_us", "library_high_us", "torch_us", "speedup", "speedup_low", "speedup_high", "called", "kernel", "config", "runner_up", "runner_up_us", "searched_share", "expected_loss", "check", "file_name"];
  const CHANGE = ["verdict", "old_us", "old_config", "ratio", "ratio_low", "ratio_high", "p", "p_adjusted", "library_ratio", "winner_changed", "why"];

  // ---- start
  function navigation() {
    const said = { summary: "Summary", speed: "Speed", roofline: "Roofline", changes: "Changes", sizes: "Sizes", detail: "One size", cost: "Cost", certainty: "Certainty", about: "Versions" };
    // Fragments are ids of sizes, so sections are reached by script.
    dom("nav").replaceChildren(...Object.entries(said).filter(([id]) => !dom(id).hidden).map(([id, text]) => make("a", { href: "#", onclick: (event) => { event.preventDefault(); dom(id).scrollIntoView(); } }, text)));
  }

  const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  function themed() { dom("theme").textContent = isDark() ? "Light" : "Dark"; }
  function redraw() { themed(); if (ready) { drawOverview(); cost(); if (chosen) show(chosen, false); } }

  function listen() {
    let timer = 0;
    dom("filters").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(applyFilters, 120); });
    dom("filters").addEventListener("reset", () => setTimeout(applyFilters));
    dom("filters").addEventListener("submit", (event) => event.preventDefault());
    dom("over").addEventListener("change", drawSpeed);
    dom("by").addEventListener("change", drawSpeed);
    dom("more").addEventListener("click", () => { limit = Infinity; fillTable(); });
    dom("changes_more").addEventListener("click", () => { limit = Infinity; fillChanges(); });
    dom("sizes_csv").addEventListener("click", () => save("sizes.csv", csv(FIELDS, shown.map((size) => FIELDS.map((field) => size[field])))));
    dom("changes_csv").addEventListener("click", () => save("changes.csv", csv(["label", "us", ...CHANGE], shown.filter((size) => size.change).map((size) => [size.label, size.us, ...CHANGE.map((field) => size.change[field])]))));
    dom("all_json").addEventListener("click", () => save("report.json", original, "application/json"));
    dom("theme").addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; redraw(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    addEventListener("hashchange", () => show(linked(), true));
    addEventListener("beforeprint", () => [...waiting.keys()].forEach((id) => drawWaiting(dom(id))));
    addEventListener("scroll", () => { dom("tip").hidden = true; }, { passive: true });
    dom("licences").addEventListener("toggle", async () => { const text = dom("licences").querySelector("pre"); if (!text.textContent) text.textContent = await unpacked("licence_text"); });
  }

  let original = "";
  async function start() {
    const [data, vegaText, liteText] = await Promise.all(["data", "vega", "vega_lite"].map(unpacked));
    record = JSON.parse(data);
    ({ charts } = record);
    const { charts: _charts, palette: _palette, roof_lines: _lines, roof_labels: _labels, ...whole } = record;
    original = JSON.stringify(whole, null, 1);
    record.sizes.forEach(prepare);
    byId = new Map(record.sizes.map((size) => [size.id, size]));
    shown = record.sizes;
    summary();
    fillFilters();
    fillGroups();
    certainty();
    applyFilters();
    listen();
    themed();
    navigation();
    run(vegaText);
    run(liteText);
    ready = true;
    await Promise.all([drawOverview(), cost()]);
    const wanted = linked();
    show(wanted ?? record.sizes[0].id, wanted !== undefined);
    navigation();
    document.documentElement.dataset.ready = "true";
  }
  start().catch((error) => { dom("subtitle").textContent = `This page could not be drawn: ${error.message}. It needs Chrome 80, Firefox 113 or Safari 16.4, or later.`; throw error; });
})();
