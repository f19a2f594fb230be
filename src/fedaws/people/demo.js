"use strict";
// The page of `fedaws demo voices`: plain requests to the server that it came from, and to nobody else.
const residents = { Ada: 100, Bo: 101, Cy: 102 };
const strangers = [103, 104, 105];
const element = (id) => document.getElementById(id);
const times = {}; // how often each voice has spoken: nobody says the same thing twice

async function ask(question, name = "", recording = null) {
  const options = recording ? { method: "POST", body: recording } : { method: question === "state" ? "GET" : "POST", body: question === "state" ? undefined : "" };
  const response = await fetch(`${question}?name=${encodeURIComponent(name)}`, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

async function spoken(person) {
  times[person] = (times[person] ?? -1) + 1;
  const response = await fetch(`voice/${person}/${times[person]}.wav`);
  return response.blob();
}

function say(text, open = "") {
  element("door").textContent = text;
  element("door").dataset.open = open;
}

async function enroll(name, recordings) {
  for (const recording of recordings) await ask("enroll", name, recording);
  say(`${name} is enrolled.`);
  await show();
}

async function knock(recording, who) {
  const answer = await ask("identify", "", recording);
  const near = answer.nearest.map((each) => `${each.name} ${each.score.toFixed(2)}`).join(", ") || "nobody is enrolled";
  say(answer.name === null ? `${who} knocks. The door stays shut. (${near})` : `${who} knocks. Come in, ${answer.name}! (${near})`, answer.name === null ? "no" : "yes");
}

function button(text, label, work) {
  const made = document.createElement("button");
  made.textContent = text;
  made.setAttribute("aria-label", label);
  made.addEventListener("click", () => busy(made, work));
  return made;
}

async function busy(pressed, work) {
  pressed.disabled = true;
  try {
    await work();
  } catch (error) {
    say(error.message, "no");
  }
  pressed.disabled = false;
}

function line(list, text, ...buttons) {
  const item = document.createElement("li");
  const words = document.createElement("span");
  words.textContent = text;
  item.append(words, ...buttons);
  element(list).append(item);
}

async function show() {
  const state = await ask("state");
  element("people").replaceChildren();
  for (const { name, examples } of state.people) {
    line("people", `${name} (${examples} examples)`, button("Forget", `forget ${name}`, async () => {
      await ask("remove", name);
      say(`${name} is forgotten.`);
      await show();
    }));
  }
  element("about").textContent = state.threshold === null ? "" : `A score of ${state.threshold.toFixed(3)} or more opens it.`;
}

function wav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + 2 * samples.length, true); text(8, "WAVEfmt "); view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); view.setUint16(22, 1, true); view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true); view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * samples.length, true);
  samples.forEach((x, i) => view.setInt16(44 + 2 * i, 32767 * Math.max(-1, Math.min(1, x)), true));
  return new Blob([view], { type: "audio/wav" });
}

async function recorded() {
  say("Speak now, for three seconds …");
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const parts = [];
  recorder.ondataavailable = (event) => parts.push(event.data);
  const ended = new Promise((resolve) => { recorder.onstop = resolve; });
  recorder.start();
  await new Promise((resolve) => setTimeout(resolve, 3000));
  recorder.stop();
  await ended;
  stream.getTracks().forEach((track) => track.stop());
  const context = new AudioContext();
  const sound = await context.decodeAudioData(await new Blob(parts).arrayBuffer());
  await context.close();
  return wav(sound.getChannelData(0), sound.sampleRate);
}

for (const [name, person] of Object.entries(residents)) {
  line("voices", `${name}, who lives here`,
    button("Enrol", `enrol ${name}`, async () => enroll(name, await Promise.all([1, 2, 3, 4, 5].map(() => spoken(person))))),
    button("Knock", `${name} knocks`, async () => knock(await spoken(person), name)),
    button("Listen", `listen to ${name}`, async () => new Audio(URL.createObjectURL(await spoken(person))).play()));
}
strangers.forEach((person, i) => line("voices", `Stranger ${i + 1}`,
  button("Knock", `stranger ${i + 1} knocks`, async () => knock(await spoken(person), `Stranger ${i + 1}`)),
  button("Listen", `listen to stranger ${i + 1}`, async () => new Audio(URL.createObjectURL(await spoken(person))).play())));
element("record-enroll").addEventListener("click", (event) => busy(event.target, async () => enroll(element("name").value, [await recorded()])));
element("record-knock").addEventListener("click", (event) => busy(event.target, async () => knock(await recorded(), "You")));
show();
