"use strict";
/* Runs the models of a simulator by onnxruntime-web, aside from the page. Messages in: {kind: "begin", runtime, wasm, models},
{kind: "rollout", id, task, given: {name: [values, dims]}, steps}, {kind: "stop", id}. Out: {id, step, frame}, {id, done}, {id, problem}. */
let runtime, models;
const sessions = new Map(), stopped = new Set(), channel = new MessageChannel();
const turn = () => new Promise((done) => { channel.port1.onmessage = done; channel.port2.postMessage(0); });
const session = (name) => {
  if (!sessions.has(name)) sessions.set(name, runtime.InferenceSession.create(models[name], { executionProviders: ["wasm"] }));
  return sessions.get(name);
};
const answer = async (model, given) => model.run(Object.fromEntries(model.inputNames.map((name) => [name, given[name]])));
const begin = async ({ runtime: text, wasm, models: bytes }) => {
  const place = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  runtime = await import(place);
  URL.revokeObjectURL(place);
  Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary: wasm });
  runtime.env.logLevel = "error";
  models = bytes;
};
const rollout = async ({ id, task, given, steps }) => {
  const tensors = Object.fromEntries(Object.entries(given).map(([name, [values, dims]]) => [name, new runtime.Tensor("float32", values, dims)]));
  const give = (step, tensor) => { const frame = Float32Array.from(tensor.data); postMessage({ id, step, frame }, [frame.buffer]); };
  if (models[`${task}/solve`]) give(1, (await answer(await session(`${task}/solve`), tensors)).frames);
  else {
    const start = (await answer(await session(`${task}/begin`), tensors)).tokens, model = await session(`${task}/step`);
    for (let step = 1, tokens = start; step <= steps; step++) {
      const { after, frame } = await answer(model, { ...tensors, start, tokens });
      tokens = after;
      await turn();
      if (stopped.delete(id)) return;
      give(step, frame);
    }
  }
  postMessage({ id, done: true });
};
let ready, queue = Promise.resolve();
onmessage = ({ data }) => {
  if (data.kind === "begin") ready = begin(data);
  else if (data.kind === "stop") stopped.add(data.id);
  else queue = queue.then(() => ready).then(() => stopped.delete(data.id) || rollout(data)).catch((error) => postMessage({ id: data.id, problem: error.message || String(error) }));
};
