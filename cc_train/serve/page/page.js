// The pair at the top, which both tabs share, and the tab that captions it.
"use strict";

const $ = (selector) => document.querySelector(selector);
const SIDES = ["before", "after"];
const pair = { before: null, after: null }; // {name, data (base64)}
let sentence = ""; // the caption that is shown; it may be empty
let confidence = null; // of it; null where the captioner gives none
let loads = 0; // pairs of the server that are on their way
let captioning = false; // whether an answer is awaited
let asked = 0; // counts requests, so that an answer to an older pair is not shown

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function show(element, visible) {
  element.hidden = !visible;
  return element;
}

function fail(error) {
  show($("#error"), true).textContent = error.message || String(error);
}

async function ask(url, content) {
  const options = content === undefined ? {} : {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(content),
  };
  let answer;
  try {
    answer = await fetch(url, options);
  } catch {
    throw new Error("The server does not answer. Start cc-train serve again.");
  }
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error);
  return value;
}

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name}: cannot be read.`));
    reader.readAsDataURL(file);
  });
}

async function read(file) {
  return { name: file.name, data: await base64(file), url: URL.createObjectURL(file) };
}

// Takes images by side at once, so that no half of a pair is ever captioned or saved.
function put(images, filled = () => {}) {
  for (const [side, image] of Object.entries(images)) {
    if (pair[side]) URL.revokeObjectURL(pair[side].url);
    pair[side] = image;
    draw(side);
  }
  show($("#view"), pair.before !== null && pair.after !== null);
  document.dispatchEvent(new CustomEvent("pair", { detail: Object.keys(images) }));
  filled();
}

function draw(side) {
  const zone = $(`.drop[data-side="${side}"]`);
  zone.querySelector("img")?.remove();
  zone.classList.toggle("full", pair[side] !== null);
  if (pair[side] === null) return;
  const picture = make("img", { alt: `${side}: ${pair[side].name}`, src: pair[side].url });
  picture.onerror = () => picture.replaceWith(make("span", { textContent: pair[side].name }));
  zone.append(picture);
}

// Of two files at once the first is before, in the order of their names.
async function take(files, side) {
  const listed = [...files];
  if (listed.length === 0) return;
  try {
    if (listed.length > 1) {
      listed.sort((a, b) => order(a.name) - order(b.name) || a.name.localeCompare(b.name));
      put({ before: await read(listed[0]), after: await read(listed[1]) });
    } else {
      put({ [side]: await read(listed[0]) });
    }
    await caption();
  } catch (error) {
    fail(error);
  }
}

const order = (name) => (/before|_a\b/i.test(name) ? 0 : /after|_b\b/i.test(name) ? 2 : 1);

async function fetched(url, name) {
  const answer = await fetch(url);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return new File([await answer.blob()], name);
}

// A pair that the server has: an example, one that waits for captions, or a collected one.
// filled: is called as soon as the pair is there.
async function load(url, name, filled) {
  const images = {};
  loads++;
  busy();
  try {
    for (const side of SIDES) {
      images[side] = await read(await fetched(`${url}/${side}`, `${name} ${side}`));
    }
  } catch (error) {
    captioned(false);
    throw error;
  } finally {
    loads--;
    busy();
  }
  put(images, filled);
  await caption();
}

const images = () => Object.fromEntries(
  SIDES.map((side) => [side, { name: pair[side].name, data: pair[side].data }]));

async function caption() {
  show($("#error"), false);
  if (!pair.before || !pair.after) return;
  const number = ++asked;
  captioning = true;
  busy();
  let done = false;
  try {
    const value = await ask("/caption", { ...images(), beams: Number($("#beams").value) });
    if (number !== asked) return;
    result(value);
    done = true;
  } catch (error) {
    if (number !== asked) return;
    show($("#result"), false);
    fail(error);
  } finally {
    if (number === asked) {
      captioning = false;
      busy();
      captioned(done);
    }
  }
}

// done: whether there is a caption of the pair, and not an error.
function captioned(done) {
  document.dispatchEvent(new CustomEvent("captioned", { detail: done }));
}

// While an answer is awaited the one that is shown is of another pair.
function busy() {
  const waits = captioning || loads > 0;
  show($("#busy"), waits);
  $("#result").classList.toggle("stale", waits);
}

function result(value) {
  show($("#result"), true);
  const raw = value.raw_caption ?? null;
  [sentence, confidence] = [value.caption, value.confidence];
  $("#sentence").textContent = sentence || "(nothing)";
  show($("#raw"), raw !== null).textContent = `Its own sentence: ${raw || "(nothing)"}`;
  show($("#confidence"), value.confidence !== null);
  if (value.confidence !== null) {
    $("#confidence meter").value = value.confidence;
    // 100 % would be certainty, which no calibration gives.
    const percent = Math.min(99, Math.round(100 * value.confidence));
    $("#confidence span").textContent = `right with a chance of ${percent} %`;
  }
  heat(value);
  show($("#masked"), value.mask !== null);
  if (value.mask !== null) {
    $("#masked .images").replaceChildren(...SIDES.map((side) => make("div", { className: "over" },
      make("img", { src: pair[side].url, alt: side }),
      make("img", { src: value.mask, alt: `where it changed, over ${side}` }))));
    $("#masked .note").replaceChildren(...regions(value.regions));
  }
  show($("#imagined"), value.imagined.length > 0);
  $("#imagined .strip").replaceChildren(...value.imagined.map(
    (url, index) => make("img", { src: url, alt: `imagined frame ${index + 1}` })));
  show($("#ranked"), value.beams.length > 0);
  $("#ranked tbody").replaceChildren(...value.beams.map((beam) => make("tr", {},
    make("td", { textContent: beam.caption || "(nothing)" }),
    make("td", { textContent: beam.score.toFixed(2), className: "number" }))));
}

// A mask of one class is simply what changed; of several, each has its colour.
function regions(listed) {
  if (listed.length === 0) return ["Nowhere: the mask is empty."];
  const share = (region) => `${(100 * region.share).toFixed(1)} % of the image`;
  if (listed.length === 1 && listed[0].class === 1) return [share(listed[0])];
  return listed.map((region) => {
    const colour = make("i");
    colour.style.background = region.colour;
    return make("span", {}, colour, `class ${region.class}: ${share(region)}`);
  });
}

function heat(value) {
  show($("#looked"), value.words.length > 0);
  if (value.words.length === 0) return;
  const choices = [{ word: "all words", images: value.looked }, ...value.words];
  const buttons = choices.map((choice) => {
    const button = make("span", { textContent: choice.word, role: "button", tabIndex: 0 });
    button.onclick = button.onkeydown = (event) => {
      if (event.type === "keydown" && event.key !== "Enter") return;
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      $("#looked .images").replaceChildren(...choice.images.map(
        (url, index) => make("img", { src: url, alt: `${SIDES[index]}: ${choice.word}` })));
    };
    return button;
  });
  $("#looked .words").replaceChildren(...buttons);
  buttons[0].click();
}

// Side by side, one after the other in one place, or one through the other; enlarged where the pointer is.
let blinking = 0;

function view(mode) {
  const both = $("#pair");
  both.dataset.view = mode;
  for (const button of document.querySelectorAll("#view button")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === mode));
  }
  show($("#mix"), mode === "overlay");
  clearInterval(blinking);
  if (mode === "blink") blinking = setInterval(() => both.classList.toggle("after"), 500);
  looking();
}

function looking() {
  const zoom = Number($("#zoom").value);
  $("#pair").style.setProperty("--zoom", zoom);
  $("#pair").classList.toggle("looking", zoom > 1 || $("#pair").dataset.view !== "beside");
}

for (const button of document.querySelectorAll("#view button")) {
  button.onclick = () => view(button.dataset.view);
}
$("#zoom").onchange = looking;
$("#mix input").oninput = (event) => {
  $("#pair").style.setProperty("--mix", event.target.value / 100);
};
$("#pair").onmousemove = (event) => {
  for (const zone of document.querySelectorAll(".drop")) {
    const box = zone.getBoundingClientRect();
    const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    if (x < 0 || x > 1 || y < 0 || y > 1) continue;
    $("#pair").style.setProperty("--x", `${100 * x}%`);
    $("#pair").style.setProperty("--y", `${100 * y}%`);
  }
};
const typing = (event) => event.target.matches("input, textarea, select");
document.addEventListener("keydown", (event) => {
  if (typing(event) || event.ctrlKey || event.metaKey || event.altKey || $("#view").hidden) return;
  const mode = { b: "blink", o: "overlay" }[event.key];
  if (mode) view($("#pair").dataset.view === mode ? "beside" : mode);
});

function tab(name) {
  for (const other of ["caption", "collect"]) {
    $(`#tab-${other}`).setAttribute("aria-selected", String(other === name));
    show($(`#${other}`), other === name);
  }
}

for (const zone of document.querySelectorAll(".drop")) {
  const input = zone.querySelector("input");
  zone.onclick = () => input.click();
  zone.onkeydown = (event) => {
    if (event.key === "Enter" || event.key === " ") input.click();
  };
  input.onclick = (event) => event.stopPropagation();
  input.onchange = () => {
    take(input.files, zone.dataset.side).then(() => { input.value = ""; });
  };
  zone.ondragover = (event) => {
    event.preventDefault();
    zone.classList.add("over");
  };
  zone.ondragleave = () => zone.classList.remove("over");
  zone.ondrop = (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer.files, zone.dataset.side);
  };
}
for (const name of ["caption", "collect"]) $(`#tab-${name}`).onclick = () => tab(name);
$("#swap").onclick = () => {
  [pair.before, pair.after] = [pair.after, pair.before];
  SIDES.forEach(draw);
  caption();
};
$("#beams").onchange = caption;

const started = ask("/about").then((about) => {
  $("#about").textContent = about.sends_to === null
    ? `${about.name}, images of ${about.size} px`
    : `${about.name}: both images are sent to ${about.sends_to}`;
  $("#beams").max = about.most_beams;
  show($("#beams").parentElement, about.most_beams > 1);
  show($("#examples"), about.examples > 0);
  for (let number = 0; number < about.examples; number++) {
    const button = make("button", { type: "button", title: `Example ${number + 1}` },
      ...SIDES.map((side) => make("img", { src: `/examples/${number}/${side}`, alt: side })));
    button.onclick = () => load(`/examples/${number}`, `example ${number + 1}`).catch(fail);
    $("#examples .list").append(button);
  }
  return about;
});
started.catch(fail);
