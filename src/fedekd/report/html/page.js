"use strict";
// Draws the charts, and draws them anew when the reader's choice, the theme or the width changes.
(() => {
  const root = document.documentElement;
  // a difference as Python writes it: zero has no sign, and what is not zero never reads as zero
  const written = (format, shape, v) => {
    const text = format(shape)(v);
    if (!shape.startsWith("+") || !/^[+−]0(\.0+)?$/.test(text)) return text;
    return Math.abs(v) < 1e-10 ? text.slice(1) : format("+.1g")(v);
  };
  const spaced = (text) => text.replaceAll("\u00a0", " "); // as a reader types it, and other programs read it
  const unsigned = (text) => String(text).replace(/^[+−](0(\.0+)?)$/, "$1");
  const { choices, charts } = JSON.parse(document.getElementById("page-data").textContent);
  const state = Object.fromEntries(Object.values(choices).map((choice) => [choice.name, choice.first]));

  const key = (follows) => follows.map((name) => state[name] ?? 0).join("|");
  const rowsOf = (chart) =>
    (chart.rows[key(chart.follows)] ?? []).map((row) => Object.fromEntries(chart.fields.map((f, i) => [f, row[i]])));

  // --- colours ---------------------------------------------------------------------------------------------

  const colour = (role) => getComputedStyle(root).getPropertyValue(`--${role}`).trim();
  let narrow = false; // where a chart has no room for a legend beside itself
  const paint = (part) => {
    if (typeof part === "string") return part.startsWith("$") ? colour(part.slice(1)) : part;
    if (Array.isArray(part)) return part.map(paint);
    if (part && typeof part === "object") {
      const painted = Object.fromEntries(Object.entries(part).map(([k, v]) => [k, paint(v)]));
      if (!narrow) return painted;
      if (painted.columns) painted.columns = 1; // a legend on a phone
      if (painted.labelLimit) painted.labelLimit = Math.min(painted.labelLimit, 150);
      return painted;
    }
    return part;
  };
  const config = () => {
    const font = getComputedStyle(document.body).fontFamily;
    const words = { labelColor: colour("soft"), titleColor: colour("soft"), labelFontSize: 12, titleFontSize: 12 };
    return {
      background: null, font, view: { stroke: null },
      axis: { ...words, gridColor: colour("grid"), domainColor: colour("line"), tickColor: colour("line"),
        titleFontWeight: 400, titlePadding: 8, labelPadding: 5, labelFlush: false },
      legend: { ...words, titleFontWeight: 400, symbolSize: 90, offset: 8, ...(narrow ? { columns: 1 } : {}) },
      text: { color: colour("ink"), fontSize: 12 },
    };
  };

  // --- tooltips --------------------------------------------------------------------------------------------

  const tip = document.getElementById("tip");
  const tell = (_, event, item, value) => {
    tip.hidden = value === null || value === undefined || value === "";
    if (tip.hidden) return;
    const entries = typeof value === "object" ? Object.entries(value) : [["", value]];
    tip.replaceChildren(...entries.filter(([, text]) => text !== null && text !== "null").map(([name, text]) => {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("span"), { textContent: name }));
      line.append(Object.assign(document.createElement("b"), { textContent: unsigned(text) }));
      return line;
    }));
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  };
  addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

  // --- charts ----------------------------------------------------------------------------------------------

  // ast: expressions are interpreted, so that the page's policy can forbid eval
  const options = { mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, ast: true, tooltip: tell,
    logLevel: 1, formatLocale: { decimal: ".", thousands: ",", grouping: [3], currency: ["", ""], percent: "\u00a0%" } };

  const draw = async (id) => {
    const chart = charts[id], figure = document.getElementById(id), canvas = figure.querySelector(".canvas");
    const rows = rowsOf(chart), note = figure.querySelector(".note");
    note.textContent = chart.notes[key(chart.follows)] ?? "";
    note.hidden = !note.textContent;
    figure.querySelector(".empty").hidden = rows.length > 0;
    figure.querySelector(".data").hidden = figure.querySelector(".save").hidden = !rows.length;
    chart.drawing = (chart.drawing ?? 0) + 1;
    chart.drawn?.finalize();
    chart.drawn = null;
    canvas.replaceChildren();
    if (!rows.length) return fillTable(id);
    const params = Object.values(choices).map((choice) => ({ name: choice.name, value: choice.options[state[choice.name]] }));
    const { step, rows: by, least } = chart.spec.usermeta ?? {};
    narrow = innerWidth < 600 || canvas.clientWidth < 420;
    const lines = typeof by === "number" ? by : new Set(rows.map((row) => row[by])).size;
    const spec = {
      autosize: { type: "fit-x", contains: "padding" }, ...paint(chart.spec), params,
      width: Math.max(Math.floor(canvas.clientWidth), least ?? 0), ...(step ? { height: step * lines * (lines > 20 ? 0.7 : 1) } : {}), data: { values: rows }, config: config(),
    };
    const turn = chart.drawing;
    const drawn = await vegaEmbed(canvas, spec, options);
    if (turn !== chart.drawing) return drawn.finalize(); // overtaken by a later choice
    chart.drawn = drawn;
    if (canvas.scrollWidth > canvas.clientWidth) canvas.tabIndex = 0; // so that the keyboard can scroll it
    else canvas.removeAttribute("tabindex");
    fillTable(id);
  };

  // on a phone every row is a list, each figure with its heading: the roles keep it a table for who hears it
  const headed = (table) => {
    const columns = [...(table.tHead?.querySelectorAll("th[scope=col]") ?? [])]; // in order, also below headings of groups
    const heads = columns.map((cell) => cell.dataset.full ?? cell.textContent.trim());
    columns.forEach((cell, i) => table.tBodies[0]?.rows[0]?.cells[i]?.matches(".words") && cell.classList.add("words"));
    table.setAttribute("role", "table");
    for (const part of [table.tHead, ...table.tBodies]) part?.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, i) => {
        cell.setAttribute("role", cell.tagName === "TD" ? "cell" : cell.scope.startsWith("col") ? "columnheader" : "rowheader");
        if (!table.tHead?.contains(row)) cell.dataset.head = heads[i] ?? "";
        cell.toggleAttribute("data-none", cell.textContent.trim() === "–");
      });
    }
  };

  // --- sorting and filtering tables --------------------------------------------------------------------------

  const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, s: 1, min: 60, h: 3600 };
  const sortable = (text) => {
    const found = text.replaceAll("−", "-").replaceAll(",", "").match(/^[^\d+-]{0,2}([+-]?\d[\d.]*(?:e[+-]?\d+)?)\s*(\w+)?/);
    return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : null;
  };
  const sortBy = (table, column, down) => {
    const body = table.tBodies[0], lines = [...body.rows].map((row) => [row.cells[column]?.textContent.trim() ?? "", row]);
    const known = lines.filter(([text]) => text && text !== "–");
    const numbers = known.every(([text]) => sortable(text) !== null);
    const order = ([a], [b]) => (numbers ? sortable(a) - sortable(b) : a.localeCompare(b, "en", { numeric: true }));
    known.sort((a, b) => (down ? order(b, a) : order(a, b)));
    body.append(...known.map(([, row]) => row), ...lines.filter(([text]) => !text || text === "–").map(([, row]) => row));
  };
  const SORTED = 3, FILTERED = 8; // rows from which a table can be sorted, or filtered
  const equip = (table) => {
    headed(table);
    const rows = table.tBodies[0]?.rows.length ?? 0, columns = [...(table.tHead?.querySelectorAll("th[scope=col]") ?? [])];
    if (rows >= SORTED) columns.forEach((cell, i) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "sort" });
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const down = cell.getAttribute("aria-sort") === "ascending";
        columns.forEach((one) => one.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", down ? "descending" : "ascending");
        sortBy(table, i, down);
      });
    });
    const region = table.closest(".scroll");
    if (rows < FILTERED || !region) return;
    const words = region.previousElementSibling?.matches(".filter")
      ? region.previousElementSibling
      : Object.assign(document.createElement("input"), { type: "search", className: "filter", placeholder: "Filter rows" });
    words.setAttribute("aria-label", `Filter rows of ${(region.getAttribute("aria-label") ?? "").replace(/^Table: /, "")}`);
    region.before(words);
    const filter = () => {
      const wanted = words.value.trim().toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !spaced(row.textContent).toLowerCase().includes(wanted);
    };
    words.oninput = filter;
    filter();
  };

  // --- what can be taken away ----------------------------------------------------------------------------------

  const save = (name, kind, text) => {
    const link = Object.assign(document.createElement("a"), { download: name, href: URL.createObjectURL(new Blob([text], { type: kind })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const quoted = (value) => {
    const text = value === null || value === undefined ? "" : spaced(String(value));
    const plain = /^[=+@-]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text; // a spreadsheet runs no name
    return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  const taken = {
    csv: async (id, chart) => {
      const lines = rowsOf(chart).map((row) => chart.columns.map((column) => valueOf(row, column)));
      const known = lines.filter((values) => values.slice(1).some((v) => v !== null));
      const text = [chart.columns.map((column) => column.title), ...known].map((line) => line.map(quoted).join(","));
      save(`${id}.csv`, "text/csv", `${text.join("\n")}\n`);
    },
    svg: async (id, chart) => {
      const text = await chart.drawn.view.toSVG();
      save(`${id}.svg`, "image/svg+xml", text.replace("<svg ", `<svg style="background:${colour("surface")}" `));
    },
  };

  const valueOf = (row, column) => (column.index === null ? row[column.field] : row[column.field]?.[column.index]) ?? null;
  const fillTable = (id) => {
    const chart = charts[id], details = document.getElementById(id).querySelector(".data");
    const holder = details.querySelector(".scroll");
    holder.replaceChildren();
    if (!details.open || !chart.drawn) return;
    const { format } = chart.drawn.view.locale();
    const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    const words = (column, v) => !column.format && typeof v === "string";
    for (const column of chart.columns) {
      const className = words(column, valueOf(rowsOf(chart)[0], column)) ? "words" : "";
      head.append(Object.assign(document.createElement("th"), { scope: "col", textContent: column.title, className }));
    }
    for (const row of rowsOf(chart)) {
      const values = chart.columns.map((column) => valueOf(row, column));
      if (values.slice(1).every((v) => v === null)) continue;
      const line = body.insertRow();
      values.forEach((v, i) => {
        const cell = document.createElement(i ? "td" : "th"), shape = chart.columns[i].format;
        if (!i) cell.scope = "row";
        if (words(chart.columns[i], v)) cell.className = "words";
        cell.textContent = v === null ? "–" : shape && typeof v === "number" ? written(format, shape, v) : String(v);
        line.append(cell);
      });
    }
    holder.replaceChildren(table);
    equip(table);
  };

  const uses = (chart, name) => !name || chart.follows.includes(name) || chart.marks.includes(name);
  const drawAll = (name) => Promise.all(Object.keys(charts).filter((id) => uses(charts[id], name)).map(draw));
  const showBlocks = () => {
    for (const block of document.querySelectorAll("[data-follows]")) {
      const now = key(block.dataset.follows.split(" "));
      const { variant, except } = block.dataset;
      block.hidden = variant !== undefined ? variant !== now && variant !== "" : except.split(" ").includes(now);
    }
  };

  // --- what the reader does ----------------------------------------------------------------------------------

  // the address holds what was chosen, by name, so that a link shows the same
  const asked = new URLSearchParams(location.search);
  const remember = (name) => {
    asked.set(name, choices[name].options[state[name]]);
    history.replaceState(null, "", `?${asked}${location.hash}`);
  };
  for (const select of document.querySelectorAll("[data-choice]")) {
    const name = select.dataset.choice, wanted = choices[name].options.indexOf(asked.get(name));
    if (wanted >= 0) select.value = wanted;
    state[name] = Number(select.value); // a reloaded page keeps what was chosen
    select.addEventListener("change", () => {
      state[name] = Number(select.value);
      remember(name);
      showBlocks();
      drawAll(name);
    });
  }
  for (const id of Object.keys(charts)) {
    const figure = document.getElementById(id); // no selector: a method's name may hold a colon
    figure.querySelector(".data").addEventListener("toggle", () => fillTable(id));
    for (const button of figure.querySelectorAll("[data-save]")) {
      button.addEventListener("click", () => taken[button.dataset.save](id, charts[id]));
    }
  }

  const prefers = matchMedia("(prefers-color-scheme: dark)"), button = document.getElementById("theme");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefers.matches);
  const themed = () => {
    button.setAttribute("aria-pressed", String(dark()));
    drawAll();
  };
  button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; themed(); });
  prefers.addEventListener("change", themed);

  const PAGE = 50; // rows, about as many as a sheet of paper holds
  const long = (one) => (one.matches(".data") ? rowsOf(charts[one.closest("figure").id]) : [...one.querySelectorAll("tbody tr")]).length > PAGE;
  let before, closed = [];
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    closed = [...document.querySelectorAll("details:not([open])")].filter((one) => !long(one));
    closed.forEach((one) => { one.open = true; }); // paper shows every table that fits a page
    drawAll();
  });
  addEventListener("afterprint", () => {
    before ? (root.dataset.theme = before) : delete root.dataset.theme;
    closed.forEach((one) => { one.open = false; });
    drawAll();
  });

  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar changes the height alone
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(() => drawAll(), 120);
  });

  document.querySelectorAll("main table").forEach(equip);
  showBlocks();
  button.setAttribute("aria-pressed", String(dark()));
  const start = async () => {
    for (const id of Object.keys(charts)) {
      await draw(id);
      await new Promise((resume) => setTimeout(resume)); // the page answers between two charts
    }
    document.getElementById(location.hash.slice(1))?.scrollIntoView(); // charts have moved it since the browser went there
    root.dataset.drawn = "yes";
  };
  start();
})();
