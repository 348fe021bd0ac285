"use strict";
/*
The page on which people play with a simulator. It draws and asks; an ENGINE answers. `startPage(engine)` begins it.

An engine is an object with these functions. All arrays are Float32Array, C order, channels last; S is the shape of the grid.

  async describe() -> card
      {name, about: [[word, text]…], tasks: [task…]}, each task:
      {name, title, simulator, shape: [n…], box: [[lo, hi]…], periodic: [bool…], axes: ["x"…], steady: bool,
       context: frames of state that it looks back on, steps: usual number of steps, most: largest number of steps,
       dt: usual time of a step, dt_range: [lo, hi] of training,
       fields: [{name, range: [lo, hi]}…], inputs: [{name, range}…] (what drives it; the last axis of `inputs`),
       params: [{name, help, lo, hi, value, above, at_least, choices: [word…]}…] (lo … hi: of training; numbers only, unless choices),
       examples: how many there are, random: bool, truth: bool, draws: bool (ensembles), estimates: bool (of its error)}
  async example(task, i) -> start
      {state: (K, *S, C) or null where steady, inputs: (*S, C_in) or null, shape: S, frames: K, params: {name: value} (may be {}), dt or null}
      In the place of a start a plain Float32Array of context frames will do.
  async rollout(question, onFrame(step, frame, facts), signal) -> {remarks: [sentence…], left: step or null}
      question: {simulator, task: name, state, frames: K, inputs, shape, params: {name: value}, dt, steps, ensemble: members or 0, seed,
      estimate: whether to estimate the error}
      onFrame is called for step = 1 … steps with the frame (*S, C), in order (of a steady task once, with its solution).
      facts (all optional): {error: estimated relative error, laws: {name: residual before repair}, low, high, spread: (*S, C) of the members,
      remarks: [sentence…]}. A frame of null adds facts to a step that was given. Rejects with an Error whose message is a sentence.
Optional:
  async random(task, seed) -> start              a random draw of the equation's initial states
  async truth(question, onFrame, signal) -> {}   the same by the equation's own solver
*/
(() => {
const $ = (id) => document.getElementById(id);
const clamp = (x, lo, hi) => Math.min(hi, Math.max(lo, x));
const product = (list) => list.reduce((a, b) => a * b, 1);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const words = (x) => {
  if (!Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? x.toExponential(2).replace(/\.?0+e/, "e") : String(+x.toPrecision(4));
};
const seconds = (s) => (s < 1 ? `${Math.max(1, Math.round(s * 1000))} ms` : `${s.toPrecision(3)} s`);
const element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) name in made && typeof value !== "string" ? (made[name] = value) : made.setAttribute(name, value);
  made.append(...children);
  return made;
};

/* ---- colours ---- */
const table = (anchors) => {
  const rgb = anchors.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const out = new Uint8Array(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (rgb.length - 1), k = Math.min(rgb.length - 2, Math.floor(at)), f = at - k;
    for (let c = 0; c < 3; c++) out[3 * i + c] = Math.round(rgb[k][c] * (1 - f) + rgb[k + 1][c] * f);
  }
  return out;
};
const SEQUENTIAL = table(["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"]);
const DIVERGING = table(["#11386e", "#2166ac", "#5ea3cf", "#bcd9ea", "#f4f3f1", "#f6c9ae", "#e0805f", "#b2182b", "#6a0a1e"]);
const HEAT = table(["#fcfbf8", "#fde3b8", "#fbb667", "#ee7a3a", "#c8402d", "#841f35", "#3f1035"]);
const scaleOf = (range, kind = "") => {
  let [lo, hi] = range;
  if (kind === "heat") return { lo: 0, hi: hi > 0 ? hi : 1, map: HEAT };
  if (!(hi > lo)) [lo, hi] = [lo - 0.5 * (Math.abs(lo) || 1), hi + 0.5 * (Math.abs(hi) || 1)];
  const both = lo < 0 && hi > 0 && Math.min(-lo, hi) > 0.2 * Math.max(-lo, hi);
  if (!both && kind !== "difference") return { lo, hi, map: SEQUENTIAL };
  const most = Math.max(-lo, hi);
  return { lo: -most, hi: most, map: DIVERGING };
};
const extent = (...arrays) => {
  let lo = Infinity, hi = -Infinity;
  for (const array of arrays) for (const x of array || []) if (Number.isFinite(x)) { if (x < lo) lo = x; if (x > hi) hi = x; }
  return lo <= hi ? [lo, hi] : [0, 1];
};

/* ---- drawing ---- */
const prepared = (canvas, height) => {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth || 300, ratio = Math.min(3, window.devicePixelRatio || 1);
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; canvas.style.height = `${height}px`; }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = css("--card");
  pen.fillRect(0, 0, width, height);
  pen.font = "11.5px system-ui, sans-serif";
  return [pen, width, height];
};
const ticksOf = (lo, hi, most = 5) => {
  const rough = (hi - lo) / most, unit = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * unit).find((s) => s >= rough * 0.999);
  const out = [];
  for (let x = Math.ceil(lo / step - 1e-9) * step; x <= hi + 1e-9 * (hi - lo); x += step) out.push(Math.abs(x) < 1e-12 * step ? 0 : x);
  return out;
};
const axis = (pen, frame, range, label, upright) => {
  const [x, y, w, h] = frame, [lo, hi] = range;
  pen.fillStyle = css("--faint"); pen.strokeStyle = css("--line"); pen.lineWidth = 1;
  for (const t of ticksOf(lo, hi, upright ? Math.max(2, h / 45) : Math.max(2, w / 70))) {
    const at = (t - lo) / (hi - lo);
    pen.beginPath();
    if (upright) {
      const py = y + h - at * h;
      pen.moveTo(x - 4, py); pen.lineTo(x, py); pen.stroke();
      pen.textAlign = "right"; pen.textBaseline = "middle"; pen.fillText(words(t), x - 6, clamp(py, y + 5, y + h - 5));
    } else {
      const px = x + at * w;
      pen.moveTo(px, y + h); pen.lineTo(px, y + h + 4); pen.stroke();
      pen.textAlign = "center"; pen.textBaseline = "top"; pen.fillText(words(t), clamp(px, x + 8, x + w - 8), y + h + 5);
    }
  }
  if (label && !upright) { pen.textAlign = "right"; pen.textBaseline = "top"; pen.fillText(label, x + w, y + h + 17); }
  if (label && upright) { pen.textAlign = "left"; pen.textBaseline = "top"; pen.fillText(label, 4, y); }
};
const offscreen = document.createElement("canvas");
/** A map of `at(i, j)`, i along the horizontal axis and j along the upright one, j = 0 below. */
const drawMap = (canvas, { at, shape, box, labels, scale, aspect, mark }) => {
  const left = 44, right = 62, top = 6, bottom = 32, space = (canvas.clientWidth || 300) - left - right;
  const ratio = aspect || (box[1][1] - box[1][0]) / (box[0][1] - box[0][0]);
  const most = Math.max(180, Math.min(520, window.innerHeight * 0.62));
  const w = Math.min(space, most / ratio), h = Math.max(60, w * ratio);
  const [pen] = prepared(canvas, h + top + bottom), [nx, ny] = shape;
  offscreen.width = nx; offscreen.height = ny;
  const brush = offscreen.getContext("2d"), image = brush.createImageData(nx, ny), data = image.data, span = scale.hi - scale.lo || 1;
  const empty = css("--track"), hole = [1, 3, 5].map((i) => parseInt(empty.slice(i, i + 2), 16));
  for (let j = 0, p = 0; j < ny; j++) for (let i = 0; i < nx; i++, p += 4) {
    const value = at(i, ny - 1 - j), k = 3 * clamp(Math.round((255 * (value - scale.lo)) / span), 0, 255);
    if (Number.isFinite(value)) { data[p] = scale.map[k]; data[p + 1] = scale.map[k + 1]; data[p + 2] = scale.map[k + 2]; }
    else [data[p], data[p + 1], data[p + 2]] = hole;
    data[p + 3] = 255;
  }
  brush.putImageData(image, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(offscreen, left, top, w, h);
  axis(pen, [left, top, w, h], box[0], labels[0], false);
  axis(pen, [left, top, w, h], box[1], labels[1], true);
  for (let k = 0; k < h; k++) { const c = 3 * Math.round(255 * (1 - k / h)); pen.fillStyle = `rgb(${scale.map[c]},${scale.map[c + 1]},${scale.map[c + 2]})`; pen.fillRect(left + w + 10, top + k, 10, 1.5); }
  pen.fillStyle = css("--faint"); pen.textAlign = "left"; pen.textBaseline = "middle";
  for (const t of ticksOf(scale.lo, scale.hi, Math.max(2, h / 45))) pen.fillText(words(t), left + w + 24, clamp(top + h - ((t - scale.lo) / span) * h, top + 5, top + h - 5));
  if (mark !== undefined) { const py = top + h - mark * h; pen.strokeStyle = css("--ink"); pen.setLineDash([5, 4]); pen.lineWidth = 1.2; pen.beginPath(); pen.moveTo(left, py); pen.lineTo(left + w, py); pen.stroke(); pen.setLineDash([]); }
  return [left, top, w, h];
};
/** Lines over x: each {y, colour, dash, width, faint}; `fan` is {low, high}. */
const drawLines = (canvas, { x, lines, fan, box, range, labels, height, log, mark }) => {
  const [pen, width, tall] = prepared(canvas, height), left = 50, right = 12, top = 8, bottom = labels[0] ? 32 : 20;
  const frame = [left, top, width - left - right, tall - top - bottom], [px, py, w, h] = frame, f = log ? Math.log10 : (v) => v;
  let [lo, hi] = range.map(f);
  if (!(hi > lo)) [lo, hi] = [lo - 1, hi + 1];
  const atX = (v) => px + ((v - box[0]) / (box[1] - box[0] || 1)) * w, atY = (v) => py + h - ((f(v) - lo) / (hi - lo)) * h;
  axis(pen, frame, box, labels[0], false);
  pen.fillStyle = css("--faint"); pen.strokeStyle = css("--line"); pen.textAlign = "right"; pen.textBaseline = "middle"; pen.lineWidth = 1;
  for (const t of log ? ticksOf(lo, hi, 4).filter((v) => Number.isInteger(v)) : ticksOf(lo, hi, Math.max(2, h / 40))) {
    const y = py + h - ((t - lo) / (hi - lo)) * h;
    pen.beginPath(); pen.moveTo(px, y); pen.lineTo(px + w, y); pen.stroke();
    pen.fillText(log ? words(10 ** t) : words(t), px - 6, y);
  }
  pen.save(); pen.beginPath(); pen.rect(px, py - 2, w, h + 4); pen.clip();
  if (fan) {
    pen.fillStyle = css("--fan"); pen.beginPath();
    for (let i = 0; i < x.length; i++) pen[i ? "lineTo" : "moveTo"](atX(x[i]), atY(fan.high[i]));
    for (let i = x.length - 1; i >= 0; i--) pen.lineTo(atX(x[i]), atY(fan.low[i]));
    pen.closePath(); pen.fill();
  }
  for (const line of lines) {
    pen.strokeStyle = css(line.colour); pen.globalAlpha = line.faint ? 0.45 : 1; pen.lineWidth = line.width || 2; pen.setLineDash(line.dash || []); pen.lineJoin = "round";
    pen.beginPath();
    let down = false;
    line.y.forEach((v, i) => { const good = Number.isFinite(v) && (!log || v > 0); if (good) pen[down ? "lineTo" : "moveTo"](atX((line.x || x)[i]), atY(v)); down = good; });
    pen.stroke();
  }
  pen.globalAlpha = 1; pen.setLineDash([]);
  if (mark !== undefined) { pen.strokeStyle = css("--faint"); pen.setLineDash([4, 4]); pen.lineWidth = 1; pen.beginPath(); pen.moveTo(atX(mark), py); pen.lineTo(atX(mark), py + h); pen.stroke(); pen.setLineDash([]); }
  pen.restore();
  return frame;
};

/* ---- files ---- */
const CRC = Uint32Array.from({ length: 256 }, (_, n) => { for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1; return n >>> 0; });
const crc32 = (bytes) => { let c = 0xffffffff; for (const b of bytes) c = CRC[(c ^ b) & 255] ^ (c >>> 8); return (c ^ 0xffffffff) >>> 0; };
const npy = (array, shape) => {
  const type = array instanceof Float64Array ? "<f8" : "<f4";
  let head = `{'descr': '${type}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  head += " ".repeat(63 - ((10 + head.length) % 64)) + "\n";
  const out = new Uint8Array(10 + head.length + array.byteLength);
  out.set([0x93, 78, 85, 77, 80, 89, 1, 0, head.length & 255, head.length >> 8]);
  out.set(new TextEncoder().encode(head), 10);
  out.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), 10 + head.length);
  return out;
};
const zip = (files) => {
  const parts = [], index = [];
  let offset = 0, size = 0;
  for (const [name, bytes] of files) {
    const title = new TextEncoder().encode(name), head = new DataView(new ArrayBuffer(30)), row = new DataView(new ArrayBuffer(46)), sum = crc32(bytes);
    head.setUint32(0, 0x04034b50, true); head.setUint16(4, 20, true); head.setUint32(14, sum, true); head.setUint32(18, bytes.length, true); head.setUint32(22, bytes.length, true); head.setUint16(26, title.length, true);
    row.setUint32(0, 0x02014b50, true); row.setUint16(4, 20, true); row.setUint16(6, 20, true); row.setUint32(16, sum, true); row.setUint32(20, bytes.length, true); row.setUint32(24, bytes.length, true); row.setUint16(28, title.length, true); row.setUint32(42, offset, true);
    parts.push(head, title, bytes); index.push(row, title);
    offset += 30 + title.length + bytes.length; size += 46 + title.length;
  }
  const end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true); end.setUint16(8, files.length, true); end.setUint16(10, files.length, true); end.setUint32(12, size, true); end.setUint32(16, offset, true);
  return new Blob([...parts, ...index, end], { type: "application/zip" });
};
const through = async (bytes, stream) => new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
const unzipped = async (bytes) => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), files = {};
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new Error("the file is no whole .npz; save it again with numpy.savez.");
  for (let row = view.getUint32(end + 16, true), left = view.getUint16(end + 10, true); left > 0; left--) {
    const method = view.getUint16(row + 10, true), packed = view.getUint32(row + 20, true), length = view.getUint16(row + 28, true), at = view.getUint32(row + 42, true);
    const name = new TextDecoder().decode(bytes.subarray(row + 46, row + 46 + length)), begin = at + 30 + view.getUint16(at + 26, true) + view.getUint16(at + 28, true);
    const body = bytes.subarray(begin, begin + packed);
    files[name] = method === 0 ? body : await through(body, new DecompressionStream("deflate-raw"));
    row += 46 + length + view.getUint16(row + 30, true) + view.getUint16(row + 32, true);
  }
  return files;
};
const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, i2: Int16Array, u1: Uint8Array, i1: Int8Array, b1: Uint8Array, u2: Uint16Array, u4: Uint32Array };
const fromNpy = (bytes) => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes[0] !== 0x93 || bytes[1] !== 78) throw new Error("the file is no .npy array; save it with numpy.save.");
  const long = bytes[6] > 1, length = long ? view.getUint32(8, true) : view.getUint16(8, true), begin = (long ? 12 : 10) + length;
  const head = new TextDecoder().decode(bytes.subarray(long ? 12 : 10, begin)), type = /'descr':\s*'[<|=]?([fiub]\d)'/.exec(head), dims = /'shape':\s*\(([^)]*)\)/.exec(head);
  if (!type || !dims || /'fortran_order':\s*True/.test(head) || !KINDS[type[1]]) throw new Error("the array is of a kind that this page does not read; save it as float32 in C order.");
  const body = bytes.slice(begin);
  return { values: Float32Array.from(new KINDS[type[1]](body.buffer, 0, Math.floor(body.length / KINDS[type[1]].BYTES_PER_ELEMENT))), dims: dims[1].split(",").map((n) => parseInt(n, 10)).filter((n) => n >= 0) };
};
const fromText = (text) => {
  const rows = text.split(/\r?\n/).map((line) => line.split(/[,;\s]+/).filter(Boolean).map(Number)).filter((row) => row.length);
  if (rows.length && rows[0].some(Number.isNaN)) rows.shift();
  if (!rows.length || rows.some((row) => row.length !== rows[0].length || row.some(Number.isNaN))) throw new Error("the file is no table of numbers with rows of one length.");
  return { values: Float32Array.from(rows.flat()), dims: rows[0].length === 1 ? [rows.length] : [rows.length, rows[0].length] };
};
const arraysIn = async (file) => {
  const bytes = new Uint8Array(await file.arrayBuffer());
  if (/\.npz$/i.test(file.name)) return Object.fromEntries(await Promise.all(Object.entries(await unzipped(bytes)).map(async ([name, body]) => [name.replace(/\.npy$/, ""), fromNpy(body)])));
  return { values: /\.npy$/i.test(file.name) ? fromNpy(bytes) : fromText(new TextDecoder().decode(bytes)) };
};
const download = (blob, name) => { const link = element("a", { href: URL.createObjectURL(blob), download: name }); document.body.append(link); link.click(); link.remove(); setTimeout(() => URL.revokeObjectURL(link.href), 10000); };
const text64 = (bytes) => { let out = ""; for (let i = 0; i < bytes.length; i += 8192) out += String.fromCharCode(...bytes.subarray(i, i + 8192)); return btoa(out).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, ""); };
const bytes64 = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));

/* ---- GIF: one palette for all frames, by cutting the box of colours in halves ---- */
const paletteOf = (images) => {
  const counts = new Uint32Array(32768);
  for (const image of images) for (let p = 0; p < image.length; p += 4) counts[((image[p] >> 3) << 10) | ((image[p + 1] >> 3) << 5) | (image[p + 2] >> 3)]++;
  let boxes = [[]];
  counts.forEach((count, key) => { if (count) boxes[0].push([key >> 10, (key >> 5) & 31, key & 31, count]); });
  while (boxes.length < 255) {
    let best = -1, side = 0, most = 0;
    boxes.forEach((box, i) => { for (let c = 0; c < 3; c++) { let lo = 32, hi = -1; for (const v of box) { lo = Math.min(lo, v[c]); hi = Math.max(hi, v[c]); } if (hi - lo > most) { most = hi - lo; best = i; side = c; } } });
    if (best < 0) break;
    const box = boxes[best].sort((a, b) => a[side] - b[side]), middle = (box[0][side] + box[box.length - 1][side]) / 2, cut = Math.max(1, box.findIndex((v) => v[side] > middle));
    boxes.splice(best, 1, box.slice(0, cut), box.slice(cut));
  }
  const colours = new Uint8Array(768), index = new Uint8Array(32768);
  boxes.forEach((box, i) => {
    let total = 0; const sum = [0, 0, 0];
    for (const v of box) { total += v[3]; for (let c = 0; c < 3; c++) sum[c] += v[3] * (v[c] * 8 + (v[c] >> 2)); index[(v[0] << 10) | (v[1] << 5) | v[2]] = i; }
    for (let c = 0; c < 3; c++) colours[3 * i + c] = total ? sum[c] / total : 0;
  });
  return [colours, index];
};
const lzw = (pixels, out) => {
  let codes = new Map(), size = 9, next = 258, prefix = -1, held = 0, bits = 0, block = [];
  const put = (code) => { held |= code << bits; bits += size; while (bits >= 8) { block.push(held & 255); held >>>= 8; bits -= 8; if (block.length === 255) { out.push(255, ...block); block = []; } } };
  put(256);
  for (const pixel of pixels) {
    const key = (prefix << 8) | pixel;
    if (prefix < 0) { prefix = pixel; continue; }
    const code = codes.get(key);
    if (code !== undefined) { prefix = code; continue; }
    put(prefix); codes.set(key, next++); prefix = pixel;
    if (next > 1 << size && size < 12) size++;
    if (next >= 4095) { put(256); codes = new Map(); size = 9; next = 258; }
  }
  if (prefix >= 0) put(prefix);
  put(257);
  if (bits) block.push(held & 255);
  if (block.length) out.push(block.length, ...block);
  out.push(0);
};
const gif = (images, width, height, rate) => {
  const [colours, index] = paletteOf(images), out = [71, 73, 70, 56, 57, 97, width & 255, width >> 8, height & 255, height >> 8, 0xf7, 0, 0, ...colours];
  out.push(0x21, 0xff, 11, ...new TextEncoder().encode("NETSCAPE2.0"), 3, 1, 0, 0, 0);
  const delay = Math.max(2, Math.round(100 / rate));
  for (const image of images) {
    const pixels = new Uint8Array(width * height);
    for (let p = 0, i = 0; p < image.length; p += 4, i++) pixels[i] = index[((image[p] >> 3) << 10) | ((image[p + 1] >> 3) << 5) | (image[p + 2] >> 3)];
    out.push(0x21, 0xf9, 4, 0, delay & 255, delay >> 8, 0, 0, 0x2c, 0, 0, 0, 0, width & 255, width >> 8, height & 255, height >> 8, 0, 8);
    lzw(pixels, out);
  }
  out.push(0x3b);
  return new Blob([Uint8Array.from(out)], { type: "image/gif" });
};

/* ---- the page ---- */
function startPage(engine) {
  const play = {
    card: null, task: null, field: 0, kind: "sample", index: 0, drawSeed: 0, start: null, params: {}, dt: 0, steps: 1, members: 0, seed: 0,
    frames: [], facts: [], truth: [], cursor: 0, playing: false, loop: true, axis: 2, slice: 0, runs: 0, abort: null, solving: null, remarks: [], firstFrame: 0, whole: 0, solver: 0, running: false,
  };
  window.upsPage = play; // for whoever looks at the page from outside

  const C = () => play.task.fields.length, S = () => play.start.shape, cells = () => product(S());
  const fieldName = () => play.task.fields[play.field].name;
  const say = (id, text) => { $(id).textContent = text; $(id).hidden = !text; };
  const channel = (frame, c = play.field, count = C()) => { const out = new Float32Array(frame.length / count); for (let i = 0; i < out.length; i++) out[i] = frame[i * count + c]; return out; };
  const last = () => play.frames.length - 1;
  const timeOf = (step) => step * play.dt;

  /* -- what is asked -- */
  const question = () => ({
    simulator: play.task.simulator, task: play.task.name, state: play.start.state, frames: play.start.frames, inputs: play.start.inputs, shape: S(), params: { ...play.params },
    dt: play.dt, steps: play.steps, ensemble: play.members, seed: play.seed, estimate: play.task.estimates && (!play.task.draws || play.members > 0), // of what draws, it takes a small ensemble
  });
  const contextFrame = () => play.start.state && play.start.state.slice((play.start.frames - 1) * cells() * C());

  async function run() {
    play.abort?.abort(); play.solving?.abort();
    const signal = (play.abort = new AbortController()).signal, began = performance.now(), asked = question(), task = play.task;
    play.runs++; play.running = true; play.truth = []; play.solver = 0; play.remarks = []; play.firstFrame = play.whole = 0;
    let fresh = false;
    say("trouble", ""); $("clocks").textContent = ""; $("stage").setAttribute("aria-busy", "true");
    const remark = (sentences) => { play.remarks = [...new Set([...play.remarks, ...(sentences || [])])]; showRemarks(); };
    const begin = () => { fresh = true; play.frames = task.steady ? [] : [contextFrame()]; play.facts = [{}]; if (play.cursor > 0 || play.playing) play.cursor = 0; };
    try {
      const end = await engine.rollout(asked, (step, frame, facts = {}) => {
        if (signal.aborted) return;
        if (!fresh) { begin(); play.firstFrame = (performance.now() - began) / 1000; if (!task.steady && !play.held) play.playing = true; }
        const place = task.steady ? 0 : step;
        if (frame) { play.frames[place] = frame; play.whole = (performance.now() - began) / 1000; }
        play.facts[place] = { ...play.facts[place], ...facts };
        if (facts.remarks) remark(facts.remarks);
        if (facts.low) play.wide = extent(channel(facts.low), channel(facts.high));
        ask("all");
      }, signal);
      if (signal.aborted) return;
      remark(end?.remarks);
      play.left = end?.left ?? null;
    } catch (error) {
      if (!signal.aborted) { if (!fresh) begin(); say("trouble", error.message || String(error)); }
    } finally {
      if (!signal.aborted) { play.running = false; $("stage").removeAttribute("aria-busy"); ask("all"); }
    }
  }
  let waiting = 0;
  const rerun = () => { clearTimeout(waiting); waiting = setTimeout(run, 40); };

  async function solve() {
    if (!engine.truth || !play.start) return;
    play.solving?.abort();
    const signal = (play.solving = new AbortController()).signal, began = performance.now();
    play.truth = []; play.solver = 0; say("trouble", ""); $("truth").disabled = true; $("clocks").textContent = "solving…";
    try {
      await engine.truth(question(), (step, frame) => {
        if (signal.aborted) return;
        play.truth[play.task.steady ? 0 : step] = frame;
        if (!play.task.steady) play.truth[0] = play.frames[0];
        play.solver = (performance.now() - began) / 1000;
        ask("all");
      }, signal);
    } catch (error) {
      if (!signal.aborted) say("trouble", error.message || String(error));
    }
    $("truth").disabled = false;
    clocks();
  }
  const clocks = () => {
    const both = play.solver && play.whole, ratio = play.solver / play.whole;
    $("clocks").textContent = both ? `simulator ${seconds(play.whole)}, solver ${seconds(play.solver)}` + (ratio > 1 ? `: ${+ratio.toPrecision(2)} times as long` : "") : play.solver ? `solver ${seconds(play.solver)}` : "";
  };

  /* -- starts -- */
  const normal = (start) => (start instanceof Float32Array ? { state: start, inputs: null, shape: play.task.shape, frames: start.length / (product(play.task.shape) * C()), params: {}, dt: null } : start);
  async function begin(kind = play.kind) {
    play.kind = kind;
    try {
      if (kind === "sample") take(normal(await engine.example(play.task.name, play.index, play.task.simulator)));
      else if (kind === "random") take(normal(await engine.random(play.task.name, play.drawSeed, play.task.simulator)));
      else if (kind === "drawn") { if (!play.start) take(blank()); else take({ ...play.start, ...copied() }); }
      else if (kind === "file" && !play.start) take(blank());
    } catch (error) { say("trouble", error.message || String(error)); }
    showStart();
  }
  const middle = ({ range }) => (range[0] > 0 ? range[0] : clamp(0, ...range));
  const filled = (fields) => Float32Array.from({ length: product(play.task.shape) * fields.length }, (_, i) => middle(fields[i % fields.length]));
  const blank = () => ({ state: play.task.steady ? null : filled(play.task.fields), inputs: play.task.inputs.length ? filled(play.task.inputs) : null, shape: play.task.shape, frames: 1, params: {}, dt: null });
  const copied = () => ({ state: play.task.steady ? null : contextFrame(), frames: 1, inputs: play.start.inputs && play.start.inputs.slice(), params: {}, dt: null });
  function take(start, again = true) {
    play.start = start;
    for (const [name, value] of Object.entries(start.params || {})) if (play.task.params.some((p) => p.name === name)) setParam(name, value);
    if (start.dt) setSlider("dt", start.dt);
    if (!play.frames.length || !play.task.steady) { play.frames = play.task.steady ? [] : [contextFrame()]; play.facts = [{}]; play.cursor = 0; }
    showSlices(); drawPad(); ask("all");
    if (again) rerun();
  }
  function showStart() {
    for (const radio of document.getElementsByName("kind")) {
      radio.checked = radio.value === play.kind;
      radio.disabled = (radio.value === "sample" && !play.task.examples) || (radio.value === "random" && !(play.task.random && engine.random)) || (radio.value === "drawn" && play.task.shape.length > 2);
    }
    $("sample-controls").hidden = play.kind !== "sample" && play.kind !== "random";
    $("drawn-controls").hidden = play.kind !== "drawn";
    $("file-controls").hidden = play.kind !== "file";
    $("start-words").textContent = play.kind === "sample" ? `unseen sample ${play.index + 1} of ${play.task.examples}` : `random draw ${play.drawSeed}`;
    drawPad();
  }
  const next = () => { if (play.kind === "random") play.drawSeed++; else { play.kind = "sample"; play.index = (play.index + 1) % Math.max(1, play.task.examples); } begin(); };

  async function readFile(file) {
    try {
      const arrays = await arraysIn(file), n = play.task.shape.length, want = play.task.steady ? play.task.inputs : play.task.fields, c = want.length;
      const order = ["u0", "state", "frames", "inputs", ...Object.keys(arrays)].filter((name) => arrays[name]);
      for (const name of order) {
        const { values, dims } = arrays[name], end = dims.length - 1;
        const shape = dims.length === n && c === 1 ? dims : dims.length === n + 1 && dims[end] === c ? dims.slice(0, n) : dims.length === n + 2 && dims[end] === c ? dims.slice(1, n + 1) : null;
        if (!shape || values.length !== product(dims)) continue;
        const frame = product(shape) * c, frames = play.task.steady ? 1 : Math.min(values.length / frame, play.task.context), given = values.slice(0, frames * frame);
        const driven = arrays.inputs && !play.task.steady ? arrays.inputs.values : null;
        if (play.task.inputs.length && !play.task.steady && !driven && product(shape) !== cells()) throw new Error("the file has no `inputs` on its grid, and the system is driven by some.");
        play.kind = "file";
        $("file-words").textContent = `${file.name}: ${name} (${dims.join(" × ")})`;
        take(play.task.steady ? { state: null, inputs: given, shape, frames: 1, params: {}, dt: null } : { state: given, inputs: driven || play.start?.inputs || null, shape, frames, params: {}, dt: null });
        return showStart();
      }
      throw new Error(`${file.name} has no array of ${n} axes and the fields ${want.map((f) => f.name).join(", ")}: (${"x, y, z".split(", ").slice(0, n).join(", ")}${c > 1 ? `, ${c}` : ""}).`);
    } catch (error) { say("trouble", error.message || String(error)); }
  }

  /* -- the pad -- */
  const cross = { x: 0.5, y: 0.5, shown: false };
  const padTarget = () => (play.task.steady ? { array: play.start.inputs, of: play.task.inputs, c: Math.min(play.field, play.task.inputs.length - 1) } : { array: play.start.state, of: play.task.fields, c: play.field });
  const padValue = () => { const t = padTarget().of[padTarget().c], [lo, hi] = t.range, s = +$("strength").value, base = middle(t); return s >= 0 ? base + s * (hi - base) : base - s * (lo - base); };
  function drawPad() {
    if (!play.start || play.kind !== "drawn" || S().length > 2) return;
    const { array, of, c } = padTarget(), pad = $("pad"), frame = array.slice(-cells() * of.length), values = channel(frame, c, of.length), scale = scaleOf(extent(values, of[c].range)), ink = css("--ink");
    if (S().length === 1) {
      const [pen, w, h] = prepared(pad, 130);
      pen.strokeStyle = css("--accent"); pen.lineWidth = 2; pen.beginPath();
      values.forEach((v, i) => pen[i ? "lineTo" : "moveTo"](((i + 0.5) / values.length) * w, h - 6 - ((v - scale.lo) / (scale.hi - scale.lo)) * (h - 12)));
      pen.stroke();
    } else {
      const [lx, ly] = play.task.box.map(([a, b]) => b - a), [pen, w, h] = prepared(pad, clamp((pad.clientWidth || 280) * (ly / lx), 80, 320)), [nx, ny] = S();
      offscreen.width = nx; offscreen.height = ny;
      const brush = offscreen.getContext("2d"), image = brush.createImageData(nx, ny);
      for (let j = 0; j < ny; j++) for (let i = 0; i < nx; i++) { const p = 4 * ((ny - 1 - j) * nx + i), k = 3 * clamp(Math.round((255 * (values[i * ny + j] - scale.lo)) / (scale.hi - scale.lo)), 0, 255); image.data.set([scale.map[k], scale.map[k + 1], scale.map[k + 2], 255], p); }
      brush.putImageData(image, 0, 0);
      pen.imageSmoothingEnabled = false; pen.drawImage(offscreen, 0, 0, w, h);
    }
    if (cross.shown && document.activeElement === pad) { const pen = pad.getContext("2d"), w = pad.clientWidth, h = pad.clientHeight, x = cross.x * w, y = (1 - cross.y) * h; pen.strokeStyle = ink; pen.lineWidth = 1.5; pen.beginPath(); pen.moveTo(x - 8, y); pen.lineTo(x + 8, y); pen.moveTo(x, y - 8); pen.lineTo(x, y + 8); pen.stroke(); }
  }
  function stroke(x, y) {
    const { array, of, c } = padTarget(), count = of.length, base = array.length - cells() * count, tool = document.querySelector("[name=tool]:checked").value, size = +$("size").value, value = padValue(), level = middle(of[c]);
    const [nx, ny = 1] = S(), line = S().length === 1, goal = line && tool === "brush" ? of[c].range[0] + y * (of[c].range[1] - of[c].range[0]) : value;
    const lengths = play.task.box.map(([a, b]) => (b - a) / (play.task.box[0][1] - play.task.box[0][0])), waves = Math.max(1, Math.round(0.3 / size));
    const away = (d, k) => { d = Math.abs(d); return (play.task.periodic[k] ? Math.min(d, 1 - d) : d) * lengths[k]; };
    for (let i = 0; i < nx; i++) for (let j = 0; j < ny; j++) {
      const px = (i + 0.5) / nx, py = (j + 0.5) / ny, at = base + (i * ny + j) * count + c;
      if (tool === "wave") { array[at] = level + (value - level) * Math.sin(2 * Math.PI * waves * px) * (line ? 1 : Math.sin(2 * Math.PI * waves * py)); continue; }
      const d2 = away(px - x, 0) ** 2 + (line ? 0 : away(py - y, 1) ** 2), weight = tool === "brush" ? Math.exp(-((d2 / (0.5 * size * size)) ** 2)) : Math.exp(-d2 / (0.5 * size * size));
      array[at] = tool === "brush" ? array[at] + weight * (goal - array[at]) : array[at] + weight * (value - level);
    }
  }
  const touched = () => { drawPad(); if (!play.task.steady) { play.abort?.abort(); play.playing = false; play.frames = [contextFrame()]; play.facts = [{}]; play.truth = []; play.cursor = 0; } ask("all"); };
  const padAt = (event) => { const box = $("pad").getBoundingClientRect(); return [clamp((event.clientX - box.left) / box.width, 0, 1), clamp(1 - (event.clientY - box.top) / box.height, 0, 1)]; };
  let painting = false;
  $("pad").addEventListener("pointerdown", (event) => { painting = true; cross.shown = false; $("pad").setPointerCapture(event.pointerId); stroke(...padAt(event)); touched(); });
  $("pad").addEventListener("pointermove", (event) => { if (painting && document.querySelector("[name=tool]:checked").value === "brush") { stroke(...padAt(event)); touched(); } });
  for (const name of ["pointerup", "pointercancel"]) $("pad").addEventListener(name, () => { if (painting) { painting = false; rerun(); } });
  $("pad").addEventListener("focus", () => { cross.shown = $("pad").matches(":focus-visible"); drawPad(); });
  $("pad").addEventListener("blur", drawPad);
  $("pad").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-0.04, 0], ArrowRight: [0.04, 0], ArrowUp: [0, 0.04], ArrowDown: [0, -0.04] }[event.key];
    if (move) { cross.shown = true; cross.x = clamp(cross.x + move[0], 0, 1); cross.y = clamp(cross.y + move[1], 0, 1); drawPad(); }
    else if (event.key === "Enter" || event.key === " ") { stroke(cross.x, cross.y); touched(); rerun(); }
    else return;
    event.preventDefault(); event.stopPropagation();
  });
  $("clear").onclick = () => { take(blank()); };
  $("take").onclick = () => { if (play.frames[play.cursor] && !play.task.steady) take({ ...play.start, state: play.frames[play.cursor].slice(), frames: 1, params: {}, dt: null }); };

  /* -- what is seen -- */
  const figures = {};
  function figure(name, title, note = "") {
    const there = figures[name] || (figures[name] = (() => { const canvas = element("canvas", { role: "img" }), caption = element("figcaption"), box = element("figure", { id: `figure-${name}` }, caption, canvas); return { box, canvas, caption }; })());
    there.caption.replaceChildren(element("b", {}, title), element("span", {}, note));
    there.canvas.setAttribute("aria-label", `${title} ${note}`);
    return there;
  }
  function place(parent, names, wide = "") {
    for (const name of names) figures[name].box.classList.toggle("wide", name === wide);
    const boxes = names.map((name) => figures[name].box);
    if (boxes.length !== parent.children.length || boxes.some((box, i) => parent.children[i] !== box)) parent.replaceChildren(...boxes);
    parent.classList.toggle("single", boxes.length === 1);
    parent.dataset.count = String(boxes.length - (wide ? 1 : 0));
  }
  const flat = (values) => { // what of a frame is drawn: of three axes a slice
    const [nx, ny, nz] = S();
    if (S().length < 3) return [(i, j) => values[i * ny + j], [nx, ny], [0, 1]];
    const axes = [0, 1, 2].filter((k) => k !== play.axis), strides = [ny * nz, nz, 1], offset = play.slice * strides[play.axis];
    return [(i, j) => values[offset + i * strides[axes[0]] + j * strides[axes[1]]], [S()[axes[0]], S()[axes[1]]], axes];
  };
  let spans = {}, spansOf = -1;
  const spanOf = (name, arrays, base) => { if (spansOf !== play.runs) { spans = {}; spansOf = play.runs; } if (!arrays.some((array) => array?.length)) return spans[name] || base || [0, 1]; const here = extent(...arrays), known = spans[name] || base || here; return (spans[name] = [Math.min(known[0], here[0]), Math.max(known[1], here[1])]); };
  const mapIn = (there, values, scale) => { const [at, shape, axes] = flat(values); return drawMap(there.canvas, { at, shape, box: axes.map((k) => play.task.box[k]), labels: axes.map((k) => play.task.axes[k]), scale }); };

  function drawFrames() {
    if (!play.start) return;
    const ndim = S().length, frame = play.frames[play.cursor], facts = play.facts[play.cursor] || {}, truth = play.truth[play.cursor], name = fieldName(), when = play.task.steady ? "" : `t = ${words(timeOf(play.cursor))}`, names = [];
    const add = (key, title, note) => { names.push(key); return figure(key, title, note); };
    const jobs = [];
    const values = frame && channel(frame), real = truth && channel(truth);
    if (play.task.steady && play.start.inputs) { const k = Math.min(play.field, play.task.inputs.length - 1), given = channel(play.start.inputs, k, play.task.inputs.length), there = add("given", play.task.inputs[k].name, "given"); jobs.push(() => (ndim === 1 ? curve(there, [{ y: given, colour: "--accent" }], extent(given)) : mapIn(there, given, scaleOf(extent(given))))); }
    const difference = values && real && values.map((v, i) => v - real[i]);
    if (ndim === 1) {
      const lines = [], range = spanOf("curve", [values, real, facts.low && channel(facts.low), facts.high && channel(facts.high)], extent(play.frames[0] && channel(play.frames[0])));
      if (play.frames[0] && play.cursor) lines.push({ y: channel(play.frames[0]), colour: "--faint", faint: true, width: 1.2 });
      if (values) lines.push({ y: values, colour: "--accent" });
      if (real) lines.push({ y: real, colour: "--second", dash: [6, 4] });
      const there = add("prediction", name, [when, real ? "dashed: truth" : "", facts.low ? "band: 90 % of the members" : ""].filter(Boolean).join(" · "));
      jobs.push(() => curve(there, lines, range, facts.low && { low: channel(facts.low), high: channel(facts.high) }));
      if (!play.task.steady && last() > 0) { const map = add("history", `${name} in space and time`, ""); jobs.push(() => history(map, play.frames, spanOf("history", [values, ...play.frames.slice(-1).map((f) => channel(f))], extent(channel(play.frames[0]))))); }
      if (!play.task.steady && play.truth.length > 1) { const map = add("truth-history", "truth in space and time", ""); jobs.push(() => history(map, play.truth, spanOf("history", real ? [real] : [], extent(channel(play.frames[0]))))); }
    } else if (values) {
      const scale = scaleOf(!play.cursor && play.frames.length > 1 && spans.map ? spans.map : spanOf(play.cursor || play.task.steady ? "map" : "first", [values, real])), there = add("prediction", name, when);
      jobs.push(() => mapIn(there, values, scale));
      if (real) { const map = add("truth", `${name}, truth`, "by the solver"); jobs.push(() => mapIn(map, real, scale)); const apart = add("difference", "difference", "prediction − truth"); jobs.push(() => mapIn(apart, difference, scaleOf(spanOf("difference", [difference]), "difference"))); }
      if (facts.spread) { const wide = channel(facts.spread), map = add("spread", "spread of the members", ""); jobs.push(() => mapIn(map, wide, scaleOf(spanOf("spread", [wide]), "heat"))); }
    }
    place($("views"), names, ndim === 1 && names.length > 1 ? "prediction" : "");
    jobs.forEach((job) => job());
  }
  const centres = (n, [lo, hi]) => Float64Array.from({ length: n }, (_, i) => lo + ((i + 0.5) * (hi - lo)) / n);
  function curve(there, lines, [lo, hi], fan) {
    const more = 0.06 * (hi - lo || 1);
    drawLines(there.canvas, { x: centres(S()[0], play.task.box[0]), lines: lines.map((l) => ({ ...l, y: Array.from(l.y) })), fan, box: play.task.box[0], range: [lo - more, hi + more], labels: [play.task.axes[0]], height: clamp(window.innerHeight * 0.34, 180, 300) });
  }
  function history(there, frames, range) {
    const rows = frames.map((f) => f && channel(f)), count = Math.max(2, frames.length), total = timeOf(count - 1);
    drawMap(there.canvas, { at: (i, j) => (rows[j] ? rows[j][i] : NaN), shape: [S()[0], count], box: [play.task.box[0], [0, total]], labels: [play.task.axes[0], "t"], scale: scaleOf(range), aspect: clamp(220 / Math.max(150, there.canvas.clientWidth - 106), 0.35, 0.9), mark: play.cursor / (count - 1) });
  }
  const distance = (a, b) => { let sum = 0; for (let c = 0; c < C(); c++) { let top = 0, size = 0; for (let i = c; i < a.length; i += C()) { top += (a[i] - b[i]) ** 2; size += b[i] ** 2; } sum += Math.sqrt(top / (size || 1)); } return sum / C(); };
  function drawTraces() {
    const names = [], jobs = [];
    const trace = (key, title, series) => {
      const with_ = series.filter((s) => s.y.some((v) => Number.isFinite(v) && v > 0));
      if (!with_.length || play.task.steady) return;
      const positive = with_.flatMap((s) => s.y.filter((v) => Number.isFinite(v) && v > 0)), lo = Math.min(...positive), hi = Math.max(...positive), log = hi / lo > 30, at = play.cursor;
      names.push(key);
      const there = figure(key, title, "");
      there.caption.replaceChildren(element("b", {}, title), ...with_.map((s) => { const mark = element("span", {}, `${s.name} ${words(s.y[at])}`); mark.style.color = css(s.colour); return mark; }));
      jobs.push(() => drawLines(there.canvas, { x: with_[0].y.map((_, i) => timeOf(i)), lines: with_, box: [0, timeOf(Math.max(1, play.steps))], range: log ? [lo, hi * 1.3] : [0, hi * 1.1], labels: [""], height: 120, log, mark: timeOf(at) }));
    };
    const series = (f) => Array.from({ length: play.frames.length }, (_, i) => f(play.facts[i] || {}, i));
    const apart = play.truth.length > 1 ? series((_, i) => (i && play.truth[i] && play.frames[i] ? distance(play.frames[i], play.truth[i]) : NaN)) : [];
    trace("error", "Relative error", [{ name: "estimated", colour: "--accent", y: series((f) => f.error ?? NaN) }, { name: "true", colour: "--second", y: apart, dash: [6, 4] }]);
    const laws = [...new Set(play.facts.flatMap((f) => Object.keys((f && f.laws) || {})))];
    trace("laws", "Laws broken before repair", laws.map((law, i) => ({ name: law, colour: ["--accent", "--second", "--third", "--faint"][i % 4], y: series((f) => f.laws?.[law] ?? NaN) })));
    trace("wideness", "Spread of the members", [{ name: "spread", colour: "--third", y: series((f) => f.wide ?? NaN) }]);
    place($("traces"), names);
    jobs.forEach((job) => job());
  }
  function showRemarks() {
    $("remarks").replaceChildren(...play.remarks.map((sentence) => element("li", {}, sentence)));
    const far = play.remarks.filter((s) => /outside the trained range|leaves what training|deviations away|was .* everywhere in training/.test(s)), out = outsideNames();
    say("outside", out.length ? `Outside what it was trained on: ${out.join(", ")}. The answer is a guess.` : far.length ? "Outside what it was trained on: the answer is a guess. See the remarks below." : "");
  }
  const outsideNames = () => [...document.querySelectorAll(".slider.outside")].map((s) => s.dataset.name);
  let dirty = "", asked = false;
  function ask(what) { dirty = dirty === "all" || what === "all" ? "all" : what; if (!asked) { asked = true; requestAnimationFrame(show); } }
  function show() {
    asked = false;
    if (!play.task) return;
    play.cursor = clamp(play.cursor, 0, Math.max(0, last()));
    const steady = play.task.steady;
    $("transport").hidden = steady;
    $("scrub").max = String(Math.max(last(), play.running ? play.steps : last(), 0)); $("scrub").value = String(play.cursor);
    $("now").textContent = `${play.cursor} / ${Math.max(0, last())} · t = ${words(timeOf(play.cursor))}`;
    $("play").textContent = play.playing ? "❚❚" : "▶"; $("play").setAttribute("aria-label", play.playing ? "Pause" : "Play");
    $("subtitle").textContent = play.task.title + (play.firstFrame ? ` · first frame after ${seconds(play.firstFrame)}` + (steady ? "" : `, ${last()} in ${seconds(play.whole)}`) : "");
    if (play.solver && play.running === false) clocks();
    drawFrames(); drawTraces();
  }
  let before = 0;
  function tick(now) {
    const gap = 1000 / +$("speed").value;
    if (play.playing && now - before >= gap - 2) {
      before = now;
      if (play.cursor < last()) play.cursor++;
      else if (!play.running && play.loop && last() > 0) play.cursor = 0;
      else if (!play.running) play.playing = false;
      ask("frame");
    }
    requestAnimationFrame(tick);
  }
  const go = (step) => { play.playing = false; play.held = true; play.cursor = clamp(step, 0, Math.max(0, last())); ask("frame"); };
  const toggle = () => { play.playing = !play.playing; play.held = !play.playing; if (play.playing && play.cursor >= last() && !play.running) play.cursor = 0; ask("frame"); };
  $("play").onclick = toggle; $("back").onclick = () => go(play.cursor - 1); $("forth").onclick = () => go(play.cursor + 1);
  $("scrub").oninput = () => go(+$("scrub").value);
  $("loop").onclick = () => { play.loop = !play.loop; $("loop").setAttribute("aria-pressed", String(play.loop)); };
  $("next").onclick = next; $("run").onclick = run; $("truth").onclick = solve;
  $("reseed").onclick = () => { play.seed++; $("seed").textContent = play.seed; rerun(); };
  $("help-button").onclick = () => { $("help").hidden = !$("help").hidden; $("help-button").setAttribute("aria-expanded", String(!$("help").hidden)); };
  for (const radio of document.getElementsByName("kind")) radio.onchange = () => begin(radio.value);
  $("file").onchange = () => { if ($("file").files[0]) readFile($("file").files[0]); $("file").value = ""; };
  for (const name of ["dragover", "dragleave", "drop"]) document.addEventListener(name, (event) => { event.preventDefault(); document.body.classList.toggle("dropping", name === "dragover"); if (name === "drop" && event.dataTransfer.files[0]) readFile(event.dataTransfer.files[0]); });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|TEXTAREA)$/.test(event.target.tagName) || (event.target.tagName === "INPUT" && event.target.type !== "radio" && event.target.id !== "scrub")) return;
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    const act = { " ": toggle, ArrowLeft: () => go(play.cursor - 1), ArrowRight: () => go(play.cursor + 1), Home: () => go(0), End: () => go(last()), l: () => $("loop").click(), r: run, n: next, f: () => { $("field").selectedIndex = (play.field + 1) % C(); $("field").onchange(); } }[event.key];
    if (!act || (event.target.type === "radio" && event.key.startsWith("Arrow"))) return;
    event.preventDefault(); act();
  });

  /* -- sliders -- */
  const sliders = {};
  function slider(parent, { name, label, help = "", lo, hi, value, least, most, whole = false, trained = true, set }) {
    const log = !whole && least > 0 && most / least > 12, f = log ? Math.log : (x) => x, g = log ? Math.exp : (x) => x, id = `slider-${name}`;
    const number = element("input", { type: "number", step: whole ? "1" : "any", "aria-label": `${label}, as a number`, id: `${id}-number` }), range = element("input", { type: "range", id, min: String(f(least)), max: String(f(most)), step: whole ? "1" : "any" });
    const note = element("div", { class: "note" }), head = element("div", { class: "head" }, element("label", { for: id }, label, help ? element("small", {}, help) : ""), number), box = element("div", { class: trained ? "slider marked" : "slider", "data-name": label }, head, range, note);
    const part = (x) => `${clamp((100 * (f(x) - f(least))) / (f(most) - f(least) || 1), 0, 100)}%`;
    if (trained) { const same = f(hi) - f(lo) < 0.012 * (f(most) - f(least)); range.style.setProperty("--a", same ? `calc(${part(lo)} - 4px)` : part(lo)); range.style.setProperty("--b", same ? `calc(${part(hi)} + 4px)` : part(hi)); }
    const put = (x, tell = true) => {
      if (!Number.isFinite(x)) return;
      x = whole ? Math.round(x) : x;
      range.value = String(f(clamp(x, least, most))); number.value = words(x);
      const out = trained && (x < lo - 1e-5 * Math.abs(lo) - 1e-12 || x > hi + 1e-5 * Math.abs(hi) + 1e-12);
      box.classList.toggle("outside", out);
      note.textContent = trained ? (lo === hi ? `trained at ${words(lo)}` : `trained from ${words(lo)} to ${words(hi)}`) + (out ? ": outside" : "") : "";
      range.setAttribute("aria-valuetext", words(x) + (out ? ", outside the trained range" : ""));
      set(x); showRemarks();
      if (tell) rerun();
    };
    range.oninput = () => put(+Number(g(+range.value)).toPrecision(4));
    number.onchange = () => { const x = number.valueAsNumber; put(Number.isFinite(x) && !(least > 0 && x <= 0) ? x : value); };
    sliders[name] = put; parent.append(box); put(value, false);
  }
  const setSlider = (name, value) => sliders[name]?.(value, false);
  const setParam = (name, value) => { const p = play.task.params.find((q) => q.name === name); if (p?.choices?.length) { play.params[name] = value; const select = $(`slider-${name}`); if (select) select.value = value; } else setSlider(name, value); };
  const reachOf = (lo, hi, above, at_least) => {
    let least, most;
    if (lo > 0) { const factor = hi > lo ? Math.max(1.5, (hi / lo) ** 0.35) : 3; least = lo / factor; most = hi * factor; } else { const more = 0.5 * (hi - lo || Math.abs(hi) || 1); least = lo - more; most = hi + more; }
    if (above !== null && above !== undefined) least = Math.max(least, above + 1e-3 * (most - above));
    if (at_least !== null && at_least !== undefined) least = Math.max(least, at_least);
    return { least, most };
  };
  function controls() {
    const task = play.task, clear = (id) => $(id).replaceChildren($(id).querySelector("legend"));
    for (const name of Object.keys(sliders)) delete sliders[name];
    clear("params"); clear("time"); $("member-slider").replaceChildren(); play.params = {};
    for (const p of task.params) {
      if (p.choices?.length) {
        const select = element("select", { id: `slider-${p.name}` }, ...p.choices.map((word) => element("option", { value: word }, word)));
        select.value = play.params[p.name] = p.value; select.onchange = () => { play.params[p.name] = select.value; rerun(); };
        $("params").append(element("label", { class: "row" }, element("span", {}, p.name), select));
      } else slider($("params"), { name: p.name, label: p.name, help: p.help, lo: p.lo, hi: p.hi, value: p.value, ...reachOf(p.lo, p.hi, p.above, p.at_least), set: (x) => (play.params[p.name] = x) });
    }
    $("params").hidden = !task.params.length; $("time").hidden = task.steady; $("ensemble").hidden = !task.draws; $("solver").hidden = !(task.truth && engine.truth);
    play.dt = task.dt; play.steps = task.steady ? 1 : task.steps; play.members = 0;
    if (!task.steady) {
      slider($("time"), { name: "steps", label: "steps", lo: 1, hi: task.most, value: task.steps, least: 1, most: task.most, whole: true, trained: false, set: (x) => (play.steps = clamp(x, 1, task.most)) });
      slider($("time"), { name: "dt", label: "dt", help: "time of a step", lo: task.dt_range[0], hi: task.dt_range[1], value: task.dt, ...reachOf(...task.dt_range, 0), set: (x) => (play.dt = x) });
    }
    if (task.draws) slider($("member-slider"), { name: "members", label: "members", help: "0: the mean alone", lo: 0, hi: 32, value: 0, least: 0, most: 32, whole: true, trained: false, set: (x) => (play.members = clamp(x, 0, 64)) });
    $("seed").textContent = play.seed;
    $("field").replaceChildren(...task.fields.map((f, i) => element("option", { value: String(i) }, f.name)));
    $("field").value = String(play.field); $("field-row").hidden = task.fields.length < 2;
  }
  function showSlices() {
    const three = S().length === 3;
    $("slice-row").hidden = $("slice-axis-row").hidden = !three;
    if (!three) return;
    if (!$("slice-axis").options.length) $("slice-axis").append(...play.task.axes.slice(0, 3).map((name, k) => element("option", { value: String(k) }, name)));
    $("slice-axis").value = String(play.axis); $("slice").max = String(S()[play.axis] - 1);
    if (play.slice >= S()[play.axis] || !play.sliced) { play.slice = S()[play.axis] >> 1; play.sliced = true; }
    $("slice").value = String(play.slice);
  }
  $("slice").oninput = () => { play.slice = +$("slice").value; ask("frame"); };
  $("slice-axis").onchange = () => { play.axis = +$("slice-axis").value; play.sliced = false; showSlices(); ask("frame"); };
  $("field").onchange = () => { play.field = +$("field").value; play.runs += 0.001; drawPad(); ask("all"); };
  const setTask = (i) => { play.abort?.abort(); play.solving?.abort(); Object.assign(play, { task: play.card.tasks[i], field: 0, index: 0, start: null, frames: [], facts: [], truth: [], cursor: 0, remarks: [], sliced: false, firstFrame: 0, held: false }); $("task").value = String(i); $("file-words").textContent = ""; showRemarks(); say("trouble", ""); controls(); };
  const firstKind = () => (play.task.examples ? "sample" : play.task.random && engine.random ? "random" : play.task.shape.length < 3 ? "drawn" : "file");
  $("task").onchange = () => { setTask(+$("task").value); begin(firstKind()); };

  /* -- keeping -- */
  const fileName = (end) => `${play.task.name}-${play.steps}.${end}`;
  const kept = (text) => { $("saved").textContent = text; };
  $("save-npz").onclick = () => {
    const frames = play.frames.filter(Boolean), shape = [...S(), C()], whole = new Float32Array(frames.length * product(shape));
    frames.forEach((f, i) => whole.set(f, i * product(shape)));
    const files = [["frames.npy", npy(whole, play.task.steady ? shape : [frames.length, ...shape])]];
    if (!play.task.steady) files.push(["times.npy", npy(Float64Array.from(frames, (_, i) => timeOf(i)), [frames.length])]);
    if (play.start.inputs) files.push(["inputs.npy", npy(play.start.inputs, [...S(), play.task.inputs.length])]);
    for (const [name, value] of Object.entries(play.params)) if (typeof value === "number") files.push([`param_${name}.npy`, npy(Float64Array.of(value), [])]);
    if (play.truth.filter(Boolean).length === frames.length) { const real = new Float32Array(whole.length); play.truth.forEach((f, i) => real.set(f, i * product(shape))); files.push(["truth.npy", npy(real, play.task.steady ? shape : [frames.length, ...shape])]); }
    download(zip(files), fileName("npz")); kept(`saved ${fileName("npz")}: ${files.map(([name]) => name.replace(".npy", "")).join(", ")}`);
  };
  const picture = (width) => {
    const canvases = [...$("views").querySelectorAll("canvas")], columns = canvases.map((c) => c.height / c.width), total = columns.length > 2 ? Math.ceil(columns.length / 2) : 1;
    const w = width, rows = [];
    for (let i = 0; i < canvases.length; i += total) rows.push(canvases.slice(i, i + total));
    const side = w / total, heights = rows.map((row) => Math.max(...row.map((c) => (c.height / c.width) * side))), h = Math.round(22 + heights.reduce((a, b) => a + b, 0));
    const out = element("canvas"); out.width = w; out.height = h;
    const pen = out.getContext("2d");
    pen.fillStyle = css("--card"); pen.fillRect(0, 0, w, h); pen.fillStyle = css("--ink"); pen.font = "13px system-ui, sans-serif"; pen.textBaseline = "middle";
    pen.fillText(`${play.task.title}: ${fieldName()}${play.task.steady ? "" : `, t = ${words(timeOf(play.cursor))}`}`, 10, 12);
    let y = 22;
    rows.forEach((row, r) => { row.forEach((c, i) => pen.drawImage(c, i * side, y, side, (c.height / c.width) * side)); y += heights[r]; });
    return out;
  };
  $("save-png").onclick = () => picture(1200).toBlob((blob) => { download(blob, fileName("png")); kept(`saved ${fileName("png")}`); });
  $("save-gif").onclick = async () => {
    const was = play.cursor, count = last() + 1, every = Math.max(1, Math.ceil(count / 80)), images = [];
    let size = null;
    play.playing = false; $("save-gif").disabled = true;
    for (play.cursor = 0; play.cursor < count; play.cursor += every) {
      drawFrames();
      const out = picture(480);
      size = size || [out.width, out.height];
      const same = element("canvas"); [same.width, same.height] = size;
      same.getContext("2d").drawImage(out, 0, 0);
      images.push(same.getContext("2d").getImageData(0, 0, ...size).data);
      kept(`drawing frame ${play.cursor} of ${count}`);
      await new Promise((done) => setTimeout(done));
    }
    play.cursor = was; ask("frame");
    download(gif(images, ...size, Math.min(25, +$("speed").value)), fileName("gif")); kept(`saved ${fileName("gif")}: ${images.length} pictures`);
    $("save-gif").disabled = false;
  };
  $("save-link").onclick = async () => {
    const kind = play.kind, at = { task: play.task.name, simulator: play.card.tasks.filter((t) => t.name === play.task.name).length > 1 ? play.task.simulator : "", start: kind, index: kind === "sample" ? play.index : "", draw: kind === "random" ? play.drawSeed : "", steps: play.steps, dt: play.dt, members: play.members || "", seed: play.members ? play.seed : "", field: play.field || "", frame: play.cursor || "" };
    const link = new URLSearchParams(Object.entries(at).filter(([, value]) => value !== ""));
    for (const [name, value] of Object.entries(play.params)) link.set(`p.${name}`, value);
    if (kind === "drawn" || kind === "file") {
      link.set("shape", S().join("x"));
      for (const name of ["state", "inputs"]) if (play.start[name]) link.set(name, text64(await through(new Uint8Array(play.start[name].buffer.slice(play.start[name].byteOffset, play.start[name].byteOffset + play.start[name].byteLength)), new CompressionStream("deflate-raw"))));
    }
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (link.toString().length > 1e6) return kept("this state is too large for a link; save it as npz");
    window.history.replaceState(null, "", `#${link}`);
    if (token) sessionStorage.setItem("token", token);
    try { await navigator.clipboard.writeText(location.href); kept("the link is copied, and stands in the address bar"); } catch { kept("the link stands in the address bar"); }
  };
  async function fromLink() {
    const link = new URLSearchParams(location.hash.slice(1)), number = (name, otherwise) => (link.has(name) && Number.isFinite(+link.get(name)) ? +link.get(name) : otherwise);
    const i = play.card.tasks.findIndex((t) => t.name === link.get("task") && (!link.get("simulator") || t.simulator === link.get("simulator")));
    setTask(Math.max(0, i));
    if (i < 0) return begin(firstKind());
    play.kind = ["sample", "random", "drawn", "file"].includes(link.get("start")) ? link.get("start") : firstKind();
    play.index = clamp(number("index", 0), 0, Math.max(0, play.task.examples - 1)); play.drawSeed = number("draw", 0); play.seed = number("seed", 0); play.field = clamp(number("field", 0), 0, C() - 1);
    $("seed").textContent = play.seed; $("field").value = String(play.field);
    if (link.has("shape")) {
      const shape = link.get("shape").split("x").map(Number), array = async (name) => (link.has(name) ? new Float32Array((await through(bytes64(link.get(name)), new DecompressionStream("deflate-raw"))).buffer) : null);
      try { const state = await array("state"), inputs = await array("inputs"); take({ state, inputs, shape, frames: state ? state.length / (product(shape) * C()) : 1, params: {}, dt: null }); } catch { say("trouble", "the state in this link is damaged; copy the whole link."); }
      showStart();
    } else await begin(play.kind);
    for (const [name, value] of link) if (name.startsWith("p.")) setParam(name.slice(2), Number.isFinite(+value) ? +value : value);
    for (const [name, key] of [["dt", "dt"], ["steps", "steps"], ["members", "members"]]) if (link.has(name)) setSlider(key, number(name, 0));
    clearTimeout(waiting); const wanted = number("frame", 0);
    await run();
    if (wanted) go(wanted);
  }

  new ResizeObserver(() => { drawPad(); ask("all"); }).observe($("stage"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawPad(); ask("all"); });
  (async () => {
    try {
      play.card = await engine.describe();
      $("name").textContent = document.title = play.card.name;
      $("card").replaceChildren(...play.card.about.flatMap(([word, text]) => [element("dt", {}, word), element("dd", {}, text)]));
      $("task").replaceChildren(...play.card.tasks.map((t, i) => element("option", { value: String(i) }, t.title + (play.card.tasks.filter((o) => o.name === t.name).length > 1 ? ` (${t.simulator})` : ""))));
      $("task-row").hidden = play.card.tasks.length < 2;
      requestAnimationFrame(tick);
      await fromLink();
    } catch (error) { say("trouble", error.message || String(error)); $("subtitle").textContent = ""; }
  })();
}

/* ---- the engine of `ups play`: a server on this machine. Packets are described in ups_apps/serve/packets.py. ---- */
function packed(about, arrays) {
  const there = Object.entries(arrays).filter(([, [array]]) => array), head = new TextEncoder().encode(JSON.stringify({ ...about, arrays: there.map(([name, [, shape]]) => [name, shape]) }));
  const begin = 4 + Math.ceil(head.length / 4) * 4, out = new Uint8Array(begin + there.reduce((sum, [, [array]]) => sum + array.byteLength, 0));
  new DataView(out.buffer).setUint32(0, begin - 4, true);
  out.fill(32, 4, begin); out.set(head, 4);
  let at = begin;
  for (const [, [array]] of there) { out.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at); at += array.byteLength; }
  return out;
}
function unpacked(buffer) {
  const length = new DataView(buffer).getUint32(0, true), about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))), arrays = {};
  let at = 4 + length;
  for (const [name, shape] of about.arrays) { const count = product(shape); arrays[name] = new Float32Array(buffer, at, count); at += 4 * count; }
  return [about, arrays];
}
function serverEngine() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token") || sessionStorage.getItem("token"), headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (token) { sessionStorage.setItem("token", token); if (location.hash.startsWith("#token=")) window.history.replaceState(null, "", location.pathname); }
  const get = async (path) => {
    const answer = await fetch(path, { headers });
    if (answer.ok) return answer;
    let sentence = `the server answers ${answer.status}`;
    try { sentence = (await answer.json()).error || sentence; } catch { /* no sentence came with it */ }
    throw new Error(sentence);
  };
  const start = async (path) => { const [about, arrays] = unpacked(await (await get(path)).arrayBuffer()); return { ...about, state: arrays.state || null, inputs: arrays.inputs || null }; };
  const stream = (path) => (question, onFrame, signal) => new Promise((done, fail) => {
    const { state, inputs, shape, frames, ensemble, estimate, params, ...asked } = question, socket = new WebSocket(new URL(path, location.href.replace(/^http/, "ws")), token ? ["ups", `ups.token.${token}`] : ["ups"]);
    socket.binaryType = "arraybuffer";
    let over = false;
    const end = (act, value) => { if (!over) { over = true; socket.close(); act(value); } };
    signal?.addEventListener("abort", () => end(fail, new Error("stopped")));
    if (signal?.aborted) return end(fail, new Error("stopped"));
    const count = (array, more) => array && [...more, ...shape, array.length / product([...more, ...shape])];
    const about = { ...asked, params, ensemble: ensemble || null, error: Boolean(estimate) };
    socket.onopen = () => socket.send(packed(about, { u0: [state, count(state, [1, frames])], inputs: [inputs, count(inputs, [])] }));
    socket.onerror = socket.onclose = () => end(fail, new Error("the server is gone; start it again."));
    socket.onmessage = ({ data }) => {
      const [{ step, done: last, problem, ...facts }, { frame = null, ...more }] = unpacked(data);
      if (problem) return end(fail, new Error(problem));
      if (last) return end(done, facts);
      onFrame(step, frame, { ...facts, ...more });
    };
  });
  const ask = (task, simulator) => `simulator=${encodeURIComponent(simulator)}&task=${encodeURIComponent(task)}`;
  return {
    describe: async () => (await get("card")).json(),
    example: (task, i, simulator) => start(`example?${ask(task, simulator)}&index=${i}`),
    random: (task, seed, simulator) => start(`random?${ask(task, simulator)}&seed=${seed}`),
    rollout: stream("v1/stream"),
    truth: stream("truth"),
  };
}
window.startPage = startPage;
window.serverEngine = serverEngine;
})();
