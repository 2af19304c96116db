// The tab that writes captions of own pairs into a data set.
"use strict";

let waiting = []; // pairs without captions, in the order in which they are offered: {number, id}
let loaded = null; // the number of the waiting pair that is shown; null for any other pair
let proposed = ""; // the name that a dropped pair got of itself
let edited = null; // the name of the collected pair that "Save" replaces; null for a new pair
let split = null; // the split of new pairs, while the form has that of an edited one
let copied = {}; // by field, what the form has of an edited pair, or of one that is being saved
let forms = 0; // counts pairs in the form, so that a save clears none but its own
const FIELDS = ["#split", "#kind", "#captions"];
const UNCHANGED = "nothing changed"; // the caption that an unchanged pair is offered
const SURE = 0.5; // below it a proposal is wrong more often than right
const IDLE = Promise.resolve(true);
const CAPTIONING = "captioning …";
let awaited = false; // whether a proposal is to come with the caption
let collected = 0; // pairs that have captions
let saving = IDLE; // whether the pair could be stored, as soon as it is known

function values() {
  return Object.fromEntries(FIELDS.map((field) => [field, $(field).value]));
}

// The form is for another pair: what it says of the former one does not stay.
function fresh() {
  editing(null);
  loaded = null;
  forms++;
  $("#kind").value = "change";
  if (split !== null) $("#split").value = split;
  split = null;
  $("#captions").value = "";
}

// Both images of another pair are there. An edit ends; what was typed after "Save as a new pair" stays.
function replaced() {
  const typed = edited !== null ? [] : FIELDS.map((field) => [field, $(field).value])
    .filter(([field, value]) => value !== copied[field]);
  fresh();
  for (const [field, value] of typed) $(field).value = value;
}

// Shows another pair once the one that is being saved is stored, and not at all if it cannot be: its
// captions are still in the form then.
function after(shown) {
  saving.then((stored) => (stored ? shown() : undefined)).catch(fail);
}

function editing(id) {
  edited = id;
  show($("#edited"), id !== null).querySelector("span").textContent = `Save replaces the pair ${id}.`;
}

async function list() {
  const rows = await ask("/pairs");
  show($("#collected"), rows.length > 0);
  $("#collected h2").textContent = `${rows.length} collected`;
  collected = rows.length;
  left();
  $("#collected tbody").replaceChildren(...rows.map(row).reverse());
}

function row(one) {
  const url = `/pairs/${encodeURIComponent(one.id)}`;
  const edit = make("button", { type: "button", textContent: "Edit" });
  edit.onclick = () => after(() => load(url, one.id, () => {
    $("#id").value = proposed = one.id;
    split = $("#split").value;
    $("#split").value = one.split;
    $("#kind").value = one.kind;
    $("#captions").value = one.captions.join("\n");
    copied = values();
    editing(one.id);
    loaded = null;
    forms++;
  }));
  const remove = make("button", { type: "button", textContent: "Remove" });
  remove.onclick = () => ask("/pairs/remove", { id: one.id }).then(() => {
    if (edited === one.id) fresh();
    return list();
  }).catch(fail);
  return make("tr", {},
    make("td", {}, ...SIDES.map((side) => make("img", { src: `${url}/${side}`, alt: side }))),
    make("td", { textContent: one.id }),
    make("td", { textContent: `${one.split}, ${one.kind === "change" ? "changed" : "unchanged"}` }),
    make("td", {}, ...one.captions.map((text) => make("div", { textContent: text }))),
    make("td", {}, edit, " ", remove));
}

function left() {
  show($("#queue"), waiting.length > 0);
  const all = collected + waiting.length;
  Object.assign($("#queue progress"), { max: all, value: collected });
  $("#queue span").textContent = `${collected} of ${all} have captions`;
  show($("#go"), waiting.length > 0);
}

// A pair that is not saved is offered again after the others, also where it cannot be read.
async function next() {
  const first = waiting.shift();
  if (first === undefined) return;
  waiting.push(first);
  awaited = false; // it was of the former pair
  await load(`/queue/${first.number}`, first.id, () => {
    fresh();
    loaded = first.number;
    $("#id").value = proposed = first.id;
  });
}

async function save() {
  if (!pair.before || !pair.after) throw new Error("No pair. Drop two images above.");
  const [number, form, replaces, earlier] = [loaded, forms, edited, copied];
  copied = values();
  const saved = await ask("/pairs", {
    ...images(),
    id: $("#id").value,
    split: $("#split").value,
    kind: $("#kind").value,
    captions: $("#captions").value.split("\n"),
    replaces,
    number,
  }).catch((error) => {
    copied = earlier; // what is in the form is not stored
    throw error;
  });
  show($("#error"), false);
  waiting = waiting.filter((one) => one.number !== number);
  if (form === forms) {
    awaited = false;
    fresh();
    $("#id").value = "";
  } else if (replaces !== null && edited === replaces) {
    editing(saved.id);
  }
  const doubt = " It is marked as changed, but its captions say that nothing changed.";
  $("#saved").textContent = `${saved.id} is saved.${saved.contradicts ? doubt : ""}`;
  await list();
}

$("#form").onsubmit = (event) => {
  event.preventDefault();
  if ($("#save").disabled) return;
  $("#save").disabled = true; // a second click would store the pair again
  saving = save().then(() => true, (error) => {
    fail(error);
    return false;
  }).finally(() => {
    saving = IDLE;
    $("#save").disabled = false;
  });
};
function saveAndGoOn() {
  if (!$("#form").reportValidity()) return;
  $("#form").requestSubmit();
  after(next);
}

// An unchanged pair needs no sentence of its own.
function mark(kind) {
  const text = $("#captions");
  $("#kind").value = kind;
  if (kind === "no_change" && !text.value.trim()) text.value = UNCHANGED;
  if (kind === "change" && text.value.trim() === UNCHANGED) text.value = "";
}

const ACTS = {
  Digit1: () => mark("change"),
  Digit2: () => mark("no_change"),
  Digit3: () => $("#propose").click(),
};
document.addEventListener("keydown", (event) => {
  if ($("#collect").hidden || $("#form").hidden) return;
  const act = ACTS[event.code];
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (waiting.length > 0) saveAndGoOn();
    else $("#form").requestSubmit();
  } else if (act && !event.ctrlKey && !event.metaKey && (event.altKey || !typing(event))) {
    event.preventDefault();
    act();
  }
});
$("#go").onclick = saveAndGoOn;
$("#kind").onchange = () => mark($("#kind").value);
$("#edited button").onclick = () => editing(null);
$("#next").onclick = () => after(next);
function propose() {
  if (!$("#busy").hidden) {
    awaited = true;
    $("#saved").textContent = CAPTIONING;
    return;
  }
  if ($("#result").hidden) return fail(new Error("No caption. Drop two images above."));
  if (!sentence) return fail(new Error("The captioner says nothing of this pair."));
  if (confidence !== null && confidence < SURE) {
    return fail(new Error(`The captioner is not sure (${Math.round(100 * confidence)} %).`));
  }
  const text = $("#captions").value.trim();
  if (text.split("\n").includes(sentence)) return;
  $("#captions").value = [text, sentence].filter(Boolean).join("\n");
}
$("#propose").onclick = propose;
document.addEventListener("captioned", (event) => {
  if (!awaited || (event.detail && !$("#busy").hidden)) return;
  awaited = false;
  $("#saved").textContent = "";
  if (event.detail) propose();
});
// A name for a pair that was dropped: that of its first image. Both images at once are another pair
// than the one that is edited; one image is put into it.
document.addEventListener("pair", (event) => {
  $("#saved").textContent = awaited ? CAPTIONING : "";
  loaded = null;
  forms++;
  if (event.detail.length === SIDES.length) {
    const form = forms;
    // What is being saved stays in the form until it is stored: it may have to be saved again.
    if (edited === null && saving !== IDLE) {
      saving.then((stored) => (stored && form === forms ? replaced() : undefined)).catch(fail);
    } else if (split !== null) {
      replaced();
    }
  }
  if (edited === null && ["", proposed].includes($("#id").value) && pair.before) {
    const stem = pair.before.name.replace(/\.[a-z0-9]{1,5}$/i, "").replace(/[ _-]before$/i, "");
    proposed = stem.replace(/[^A-Za-z0-9_.-]+/g, "_").replace(/^[_.-]+/, "").slice(0, 90);
    $("#id").value = proposed;
  }
});
started.then((about) => {
  show($("#no-collection"), !about.collects);
  show($("#form"), about.collects);
  waiting = about.queue;
  left();
  if (about.collects) list().catch(fail);
}, () => {});
