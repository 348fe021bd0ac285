"use strict";
/* The engine of a page that lies on a disk; what an engine is stands in ups_apps/page/page.js. `held` is {card, examples: {task: [start…]},
runtime, wasm, models: {name: …}, worker}; arrays and files in it are gzipped and written in base64, but for the text of the worker. */
function localEngine(held) {
  const LEFT = 0.5; // widths of the range of training, beyond which a rollout has left it; as ups.models.limits says
  const bytes = async (text) => {
    const packed = atob(text), out = new Uint8Array(packed.length);
    for (let i = 0; i < out.length; i++) out[i] = packed.charCodeAt(i);
    return new Uint8Array(await new Response(new Blob([out]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
  };
  const floats = async (text) => (text ? new Float32Array((await bytes(text)).buffer) : null);
  const product = (list) => list.reduce((a, b) => a * b, 1);
  const tasks = Object.fromEntries(held.card.tasks.map((task) => [task.name, task])), waiting = new Map();
  let worker = null, count = 0;
  const started = async () => {
    const place = URL.createObjectURL(new Blob([held.worker], { type: "text/javascript" })), made = new Worker(place);
    made.onmessage = ({ data }) => waiting.get(data.id)?.(data);
    made.onerror = (event) => { for (const tell of waiting.values()) tell({ problem: event.message || "the browser runs no workers from this file." }); };
    const models = Object.fromEntries(await Promise.all(Object.entries(held.models).map(async ([name, text]) => [name, await bytes(text)])));
    const [runtime, wasm] = await Promise.all([bytes(held.runtime), bytes(held.wasm)]);
    made.postMessage({ kind: "begin", runtime: new TextDecoder().decode(runtime), wasm, models });
    return made;
  };
  const numbers = (task, params) => Float32Array.from(task.params, (p) => (p.choices.length ? p.choices.indexOf(params[p.name]) : +params[p.name]));
  const context = (task, state, frames) => {
    const one = state.length / frames, out = new Float32Array(task.context * one);
    for (let k = 0; k < task.context; k++) out.set(state.subarray(Math.max(0, frames - task.context + k) * one).subarray(0, one), k * one);
    return out; // where there are fewer frames, the first stands for those before it
  };
  const span = (task, state) => task.fields.map(({ range }, c) => {
    let [lo, hi] = range;
    for (let i = c; i < state.length; i += task.fields.length) if (Number.isFinite(state[i])) { lo = Math.min(lo, state[i]); hi = Math.max(hi, state[i]); }
    return [lo - LEFT * (hi - lo), hi + LEFT * (hi - lo)];
  });
  const outside = (task, frame, ends) => {
    const c = task.fields.length;
    for (let i = 0; i < frame.length; i++) if (frame[i] < ends[i % c][0] || frame[i] > ends[i % c][1]) return task.fields[i % c].name;
    return null;
  };
  const given = (task, { state, frames, inputs, shape, params, dt }) => {
    if (shape.join() !== task.shape.join()) throw new Error(`this page holds the simulator on ${task.shape.join(" x ")} cells, not ${shape.join(" x ")}; resample the state.`);
    const out = {};
    if (!task.steady) { out.state = [context(task, state, frames), [1, task.context, ...shape, task.fields.length]]; out.dt = [Float32Array.of(dt), [1]]; }
    if (task.inputs.length) {
      if (!inputs || inputs.length !== product(shape) * task.inputs.length) throw new Error(`${task.name} is driven by ${task.inputs.map((f) => f.name).join(", ")}, and this start has none.`);
      out.inputs = [inputs, [1, ...shape, task.inputs.length]];
    }
    if (task.params.length) out.params = [numbers(task, params), [1, task.params.length]];
    for (const [name, [values]] of Object.entries(out)) if (name !== "inputs" && !values.every(Number.isFinite)) throw new Error(`${name} has values that are not finite.`);
    return out;
  };
  return {
    describe: async () => { worker = worker || started(); return held.card; },
    example: async (name, i) => {
      const start = held.examples[name][i];
      if (!start) throw new Error(`there is no example ${i} of ${name}.`);
      return { ...start, state: await floats(start.state), inputs: await floats(start.inputs) };
    },
    rollout: async (question, onFrame, signal) => {
      const task = tasks[question.task], asked = given(task, question), id = ++count, made = await (worker = worker || started());
      const ends = task.steady ? null : span(task, asked.state[0]);
      let left = null;
      const remarks = [];
      return new Promise((done, fail) => {
        const end = (act, value) => { waiting.delete(id); act(value); };
        signal?.addEventListener("abort", () => { if (waiting.has(id)) { made.postMessage({ kind: "stop", id }); end(fail, new Error("stopped")); } });
        if (signal?.aborted) return fail(new Error("stopped"));
        waiting.set(id, ({ step, frame, done: last, problem }) => {
          if (problem) return end(fail, new Error(problem));
          if (last) return end(done, { remarks, left });
          const name = ends && left === null && outside(task, frame, ends);
          if (name) { left = step; remarks.push(`${task.name}: the rollout leaves what training has seen at step ${step}, in ${name}; frames from there on are a guess.`); }
          onFrame(step, frame, name ? { remarks } : {});
        });
        made.postMessage({ kind: "rollout", id, task: task.name, given: asked, steps: task.steady ? 1 : question.steps });
      });
    },
  };
}
