// Captions two images by the graphs beside this file, with onnxruntime-web.

const RUNTIME = "./node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";
const SIDES = ["before", "after"];
const BITS = 22; // of Pillow's weights

const element = (id) => document.getElementById(id);
const say = (text, confidence = "") => {
  element("caption").textContent = text;
  element("confidence").textContent = confidence;
};

// The weights by which Pillow's bicubic filter makes each of `out` pixels of `count`.
function weights(count, out) {
  const scale = count / out, stretch = Math.max(scale, 1), support = 2 * stretch;
  const cubic = (x) => {
    x = Math.abs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
  };
  return Array.from({ length: out }, (_, place) => {
    const centre = (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(count, Math.trunc(centre + support + 0.5));
    const of = [];
    for (let at = first; at < last; at++) of.push(cubic((at - centre + 0.5) / stretch));
    const sum = of.reduce((a, b) => a + b, 0);
    return { first, of: of.map((w) => Math.round((w / sum) * 2 ** BITS)) };
  });
}

// One pass of the filter: rows of `width` pixels of 3 bytes become rows of `out`; the result is
// turned, so that a second pass does the other side.
function pass(pixels, width, height, out) {
  const result = new Uint8ClampedArray(out * height * 3);
  weights(width, out).forEach(({ first, of }, x) => {
    for (let y = 0; y < height; y++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 2 ** (BITS - 1);
        for (let k = 0; k < of.length; k++) {
          sum += pixels[3 * (y * width + first + k) + channel] * of[k];
        }
        result[3 * (x * height + y) + channel] = Math.floor(sum / 2 ** BITS);
      }
    }
  });
  return result;
}

// RGB of an image in the captioner's size, as Pillow resizes it, which the training data was made
// with. Pillow takes the rows first where these are many, which differs by what is rounded between.
export function resized(rgb, width, height, [rows, columns]) {
  return pass(pass(rgb, width, height, columns), height, columns, rows);
}

async function read(file, canvas) {
  const bitmap = await createImageBitmap(file, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  const { width, height } = bitmap;
  [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  const rgba = context.getImageData(0, 0, width, height).data;
  const rgb = new Uint8Array(width * height * 3);
  for (let at = 0; at < width * height; at++) rgb.set(rgba.subarray(4 * at, 4 * at + 3), 3 * at);
  return { rgb, width, height };
}

// The chance that a sentence is right, by its log-probability; see cc_train/calibration.py.
function confidence({ slope, offset, ood_threshold: limit }, score, strange) {
  const chance = 1 / (1 + Math.exp(-(slope * score + offset)));
  return limit === null || strange <= limit ? chance : chance * (limit / strange) ** 2;
}

function sentence(about, ids) {
  let text = "";
  ids.forEach((id, place) => {
    const blank = place > 0 && about.spaced[ids[place - 1]] && about.spaced[id];
    text += (blank ? " " : "") + about.words[id];
  });
  return text;
}

// The greedy sentence about two images {rgb, width, height}.
async function captioned(ort, { about, encoder, decoder }, images) {
  const [rows, columns] = about.size, count = rows * columns * 3;
  const pixels = new Uint8Array(2 * count);
  images.forEach((one, side) => {
    pixels.set(resized(one.rgb, one.width, one.height, about.size), side * count);
  });
  const input = new ort.Tensor("uint8", pixels, [1, 2, rows, columns, 3]);
  const { memory, ood_score: strange } = await encoder.run({ images: input });
  const ids = [about.begin];
  let score = 0;
  while (ids.length < about.length) {
    const words = new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
    const { chances } = await decoder.run({ ids: words, memory });
    const next = chances.data.indexOf(chances.data.reduce((a, b) => Math.max(a, b)));
    score += Math.log(chances.data[next]);
    if (next === about.end) break;
    ids.push(next);
  }
  const calibration = about.calibration, limit = calibration && calibration.ood_threshold;
  return {
    text: sentence(about, ids.slice(1).filter((id) => id >= about.marks)),
    confidence: calibration && confidence(calibration, score, strange.data[0]),
    strange: limit !== null && strange.data[0] > limit,
  };
}

// What a user is told; see cc_train/doubt.py.
function told({ equal, unsure, min_confidence: least }, [before, after], said) {
  const known = said.confidence !== null;
  if (before.rgb.every((value, at) => value === after.rgb[at])) {
    return { text: equal, confidence: known ? 1 : null };
  }
  return known && said.confidence < least ? { ...said, text: unsure[Number(said.strange)] } : said;
}

async function start() {
  let ort;
  try {
    ort = await import(RUNTIME);
  } catch {
    say("onnxruntime-web is not here. In this folder: npm install --prefix . onnxruntime-web");
    return;
  }
  ort.env.wasm.numThreads = 1; // more need headers that few servers send
  const about = await (await fetch("captioner.json")).json();
  const load = (name) => ort.InferenceSession.create(`${name}.onnx`);
  const graphs = { about, encoder: await load("encoder"), decoder: await load("decoder") };
  const chosen = {};
  let asked = 0;
  const show = async (side) => {
    const now = ++asked;
    try {
      chosen[side] = await read(element(side).files[0], element(`shown-${side}`));
      const images = SIDES.map((one) => chosen[one]);
      if (images.includes(undefined)) return;
      const [before, after] = images;
      if (before.width !== after.width || before.height !== after.height) {
        say("The two images differ in size: give two of the same view");
        return;
      }
      say("…");
      const { text, confidence: chance } = told(about, images, await captioned(ort, graphs, images));
      if (now !== asked) return; // another pair was chosen since
      say(text, chance === null ? "" : `${Math.min(99, Math.round(100 * chance))} % sure`);
    } catch (error) {
      say(`Not captioned: ${error.message}`);
    }
  };
  SIDES.forEach((side) => {
    element(side).onchange = () => show(side);
    if (element(side).files.length) show(side); // chosen while the captioner was loaded
  });
  document.body.dataset.ready = "yes";
  say(`Choose two images for ${about.name}`);
}

if (typeof document !== "undefined") await start();
