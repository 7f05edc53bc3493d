// ckptfs hook: a checkpoint before every tool that may write.
// Made by `ckptfs hook install opencode`, which also brings it up to date; `uninstall` removes it.
// `server` is what version 1 of opencode calls, `setup` what version 2 does (and late versions 1,
// with a context that has no tools). Nothing in here may throw: that would block a tool.
import { spawn } from "node:child_process"
import { createHash } from "node:crypto"
import { lstat, readdir, writeFile } from "node:fs/promises"
import { dirname, join } from "node:path"

const COMMAND_LINE = "COMMAND"

// -- by the control file of a mounted workspace, which takes a message in a millisecond -----------

// Tools of opencode that change no file, and ours, which save what has to be saved.
const READERS = new Set([
  "read", "grep", "glob", "list", "ls", "webfetch", "websearch", "codesearch", "lsp",
  "todowrite", "todoread", "task", "skill", "question",
])
const OWN = ["mcp__ckptfs__", "mcp_ckptfs_"]

const FILES = ["file_path", "filePath", "notebook_path", "absolute_path", "path"]
const COMMANDS = ["command", "cmd", "script"]
const PATCHED = /^\*\*\* (?:Add|Update|Delete) File: (.+)$/gm
const MESSAGE_MAX = 200

const oneLine = (text) => text.trim().split(/\s+/).join(" ")

function commandText(command) {
  const words = Array.isArray(command) ? command.join(" ") : String(command)
  const patched = [...words.slice(0, 64000).matchAll(PATCHED)].map((found) => found[1])
  return oneLine(patched.length ? patched.join(", ") : words.slice(0, 4000))
}

function subjectOf(input, workspace) {
  for (const key of FILES) {
    if (!input?.[key]) continue
    const path = String(input[key])
    return oneLine(path.startsWith(workspace + "/") ? path.slice(workspace.length + 1) : path)
  }
  const key = COMMANDS.find((name) => input?.[name])
  return key ? commandText(input[key]) : ""
}

// The words of `ckptfs hook`.
function messageFor(tool, input, workspace) {
  const subject = subjectOf(input, workspace)
  const name = oneLine(String(tool ?? "")) || "a tool"
  const message = [...(subject ? `${name}: ${subject}` : name)]
  if (message.length <= MESSAGE_MAX) return message.join("")
  return message.slice(0, MESSAGE_MAX - 3).join("") + "..."
}

// The workspace around a directory. Its control file stands in no listing; an ordinary file
// of that name does, and is not written to.
async function workspaceAround(directory) {
  for (let here = directory; ; here = dirname(here)) {
    const history = join(here, ".checkpoints")
    try {
      const [above, mark] = [await lstat(history), await lstat(join(history, ".mark"))]
      if (above.isDirectory() && mark.isFile() && !(await readdir(history)).includes(".mark"))
        return here
    } catch {}
    if (here === dirname(here)) return null
  }
}

// What a promise comes to, or nothing if it fails or takes too long: a mount may hang.
function patiently(promise, milliseconds) {
  let timer
  const late = new Promise((resolve) => { timer = setTimeout(resolve, milliseconds, null) })
  return Promise.race([promise.catch(() => null), late]).finally(() => clearTimeout(timer))
}

// -- by `ckptfs hook`, which knows more, and takes longer to start --------------------------------

// Comes to what the hook printed.
function send(record) {
  return new Promise((resolve) => {
    try {
      const child = spawn("/bin/sh", ["-c", COMMAND_LINE], { stdio: ["pipe", "pipe", "ignore"] })
      const timer = setTimeout(() => child.kill(), 10000)
      let said = ""
      child.stdout.on("data", (data) => { said += data })
      const done = () => { clearTimeout(timer); resolve(said.trim()) }
      child.on("error", done)
      child.on("close", done)
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify({ agent: "opencode", ...record }))
    } catch {
      resolve("")
    }
  })
}

// -- workspaces of opencode that are forks of the workspace ----------------------------------------

// A name that a fork may have; one that had to be changed for that ends in a digest, so that two
// names are never one fork.
const forkName = (wanted) => {
  const found = wanted.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 90).replace(/[.-]+$/, "")
  if (found === wanted) return found
  return `${found}-${createHash("sha256").update(wanted).digest("hex").slice(0, 8)}`
}

// `ckptfs hook` says where the fork is; only then there is one.
const forksOf = (directory) => ({
  name: "Fork",
  description: "A fork of this workspace by ckptfs, with everything in it, at once",
  configure: async (config) => {
    const name = forkName(`opencode-${config.name || config.id || "fork"}`)
    const workspace = await patiently(workspaceAround(directory), 2000)
    if (!workspace) throw new Error(`${directory} is in no mounted workspace of ckptfs`)
    return { ...config, name, directory: `${workspace}.forks/${name}` }
  },
  create: async (config) => {
    const path = await send({ hook_event_name: "WorktreeCreate", cwd: directory, name: config.name })
    if (path !== config.directory) throw new Error(`ckptfs made no fork at ${config.directory}`)
  },
  remove: async (config) => {
    await send({
      hook_event_name: "WorktreeRemove", cwd: directory, worktree_path: config.directory,
    })
  },
  target: async (config) => ({ type: "local", directory: config.directory }),
})

function offerForks(workspaces, directory) {
  try {
    workspaces?.register?.("ckptfs", forksOf(String(directory)))
  } catch {} // it is experimental: without it there are no such workspaces
}

// -- what opencode calls --------------------------------------------------------------------------

async function before(cwd, tool, input, session, call) {
  const name = String(tool ?? "").toLowerCase()
  if (READERS.has(name) || OWN.some((prefix) => name.startsWith(prefix))) return
  const workspace = cwd ? await patiently(workspaceAround(String(cwd)), 2000) : null
  if (workspace) {
    const mark = join(workspace, ".checkpoints", ".mark")
    await patiently(writeFile(mark, messageFor(tool, input, workspace), { flag: "r+" }), 10000)
    return
  }
  await send({
    hook_event_name: "PreToolUse", cwd, session_id: session,
    tool_name: tool, tool_input: input, tool_use_id: call,
  })
}

async function directoryOf(ctx, session) {
  try {
    const found = await ctx.session?.get?.({ sessionID: session })
    return found?.location?.directory ?? ctx.location?.directory ?? process.cwd()
  } catch {
    return ctx.location?.directory ?? process.cwd()
  }
}

export default {
  id: "ckptfs",
  server: async ({ directory, experimental_workspace }) => {
    offerForks(experimental_workspace, directory)
    return {
      "tool.execute.before": async (input, output) => {
        await before(directory, input.tool, output?.args, input.sessionID, input.callID)
      },
      event: async ({ event }) => {
        // A mark by the control file is taken in any case; this one only if something changed.
        if (event?.type === "session.idle")
          await send({
            hook_event_name: "Stop", cwd: directory, session_id: event.properties?.sessionID,
          })
      },
    }
  },
  setup: async (ctx) => {
    if (typeof ctx?.tool?.hook !== "function") return
    await ctx.tool.hook("execute.before", async (event) => {
      const cwd = await directoryOf(ctx, event.sessionID)
      await before(cwd, event.tool, event.input, event.sessionID, event.id)
    })
  },
}
