// ckptfs hook: a checkpoint before every tool that may write.
// Made by `ckptfs hook install opencode`, which also brings it up to date; `uninstall` removes it.
// `server` is what version 1 of opencode calls, `setup` what version 2 does (and late versions 1,
// with a context that has no tools). Nothing in here may throw: that would block a tool.
import { spawn } from "node:child_process"

const COMMAND_LINE = "COMMAND"

function send(record) {
  return new Promise((resolve) => {
    try {
      const child = spawn("/bin/sh", ["-c", COMMAND_LINE], { stdio: ["pipe", "ignore", "ignore"] })
      const timer = setTimeout(() => child.kill(), 10000)
      const done = () => { clearTimeout(timer); resolve() }
      child.on("error", done)
      child.on("close", done)
      child.stdin.on("error", () => {})
      child.stdin.end(JSON.stringify({ agent: "opencode", ...record }))
    } catch {
      resolve()
    }
  })
}

function before(cwd, tool, input, session, call) {
  return send({
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
  server: async ({ directory }) => ({
    "tool.execute.before": async (input, output) => {
      await before(directory, input.tool, output?.args, input.sessionID, input.callID)
    },
    event: async ({ event }) => {
      if (event?.type === "session.idle")
        await send({
          hook_event_name: "Stop", cwd: directory, session_id: event.properties?.sessionID,
        })
    },
  }),
  setup: async (ctx) => {
    if (typeof ctx?.tool?.hook !== "function") return
    await ctx.tool.hook("execute.before", async (event) => {
      const cwd = await directoryOf(ctx, event.sessionID)
      await before(cwd, event.tool, event.input, event.sessionID, event.id)
    })
  },
}
