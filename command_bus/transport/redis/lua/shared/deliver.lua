-- deliver: give a follow-up its place: a command that a handler sent, or the outcome of one for the durable
-- command that waits for it. A full or drained mailbox does not refuse it. One that takes nothing, because
-- its key is of another type, has it as a delayed command, which is tried again each second. Uses put_one,
-- delayed, postpone, arrive.

local OUTCOME = '!'  -- the flow of an outcome

-- Return the parts of a follow-up's text, `target|flow|mailbox name|command id`: the target is empty in the
-- mailbox's own shard, else the number of that. An outcome names the mailbox and the command that wait for
-- it.
local function parse_follow_up(text)
  return string.match(text, '^(%d*)|([^|]*)|([^|]*)|(.*)$')
end

-- Let an outcome reach its command, if that still knows the child: `extra` is the child's id and the name of
-- the call.
local function deliver_outcome(keys, box, side, name, outcome, extra)
  local child, call = string.match(extra, '^([^|]*)|(.*)$')
  if child then arrive_outcome(keys, side, call, child, outcome, name, box) end
end

-- Put it into its mailbox, or let it wait until a moment, `at`; nil if it takes its place at once. Called
-- behind the first write, so it does not fail. Return true if its mark says that it was here before: a shard
-- that has gone back in time sends what it sent. `keys` has the names of the keys ready, active, lone, paused
-- (nil where nothing is paused), due, delayed, later and suspended, and `now` in ms; `queue_up` is the line,
-- nil where none is in use. A command with a mark has that as `extra`, and the mark's key as `other`. An
-- outcome has the side record's.
local function deliver(keys, box, other, text, at, envelope, extra, queue_up)
  local _, flow, name, id = parse_follow_up(text)
  if flow == OUTCOME then return deliver_outcome(keys, box, other, name, envelope, extra) end
  flow = stored_flow(flow)
  if extra ~= '' and not redis.pcall('SET', other, extra, 'NX') then return true end
  local _, lines = parts_sent(envelope)
  if lines then at = at or stands_until(keys.due, keys.delayed, keys.later, name, id, lines, keys.now) end
  if not at and put_one(keys, name, box, envelope, flow, queue_up) then at = keys.now + 1000 end
  if at then
    keep_delayed(keys.ready, keys.due, keys.delayed, keys.later, name, id, at, with_flow(envelope, flow),
      lines)
  end
end
