// An agent's harness in Node, as small as one can be; see agent.py.
//
//     node agent.js WAY PLAN

const { exec, spawn } = require("child_process");
const fs = require("fs");
const path = require("path");
const { setTimeout: sleep } = require("timers/promises");

const PATIENCE = 60_000;

function byExec(command) {
  return new Promise((resolve, reject) => {
    exec(command, { timeout: PATIENCE }, (error) => (error ? reject(error) : resolve()));
  });
}

function bySpawn(command, detached) {
  return new Promise((resolve, reject) => {
    const child = spawn("bash", ["-c", command], { detached, stdio: "ignore", timeout: PATIENCE });
    child.on("error", reject);
    child.on("close", (code) => (code === 0 ? resolve() : reject(new Error(`exit ${code} of: ${command}`))));
  });
}

// Written by a thread of libuv's, which has an id of its own.
async function writePlainly(file, text) {
  await fs.promises.writeFile(file, text);
}

async function writeAndRename(file, text) {
  const fresh = `${file}.tmp.${process.pid}.${Date.now().toString(16)}`;
  await fs.promises.writeFile(fresh, text);
  await fs.promises.rename(fresh, file);
}

function writeAtOnce(file, text) {
  fs.writeFileSync(file, text);
}

const RUNS = { exec: byExec, spawn: (c) => bySpawn(c, false), detached: (c) => bySpawn(c, true) };
const EDITS = { plain: writePlainly, rename: writeAndRename, sync: writeAtOnce };

async function main() {
  const [way, plan] = process.argv.slice(2);
  const run = RUNS[way] || byExec;
  for (const step of JSON.parse(fs.readFileSync(plan, "utf8"))) {
    if (step.run !== undefined) await run(step.run);
    for (const [file, text] of Object.entries(step.write || {})) {
      fs.mkdirSync(path.dirname(file), { recursive: true });
      await EDITS[way](file, text);
    }
    await sleep(step.gap * 1000);
  }
}

main().catch((error) => {
  console.error(error.message);
  process.exit(1);
});
