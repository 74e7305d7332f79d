-- deliver: give a follow-up its place: a command that a handler sent with its settlement. A full or drained mailbox does not refuse it. One that
-- takes nothing, because its key is of another type, has it as a delayed command, which is tried again each second. Uses place, postpone.

-- Return the parts of a follow-up's text, `target|flow|mailbox name|command id`: the target is empty in the mailbox's own shard, else the number
-- of that.
local function parse_follow_up(text)
  return string.match(text, '^(%d*)|([^|]*)|([^|]*)|(.*)$')
end

-- Put it into its mailbox, or let it wait for so many ms. Called behind the first write, so it does not fail. `keys` has the names of the keys
-- ready, active, lone, paused, due, delayed and later; `queue_up` is the line, nil where none is in use.
local function deliver(keys, box, text, wait, envelope, queue_up)
  local _, flow, name, id = parse_follow_up(text)
  if wait == 0 and place(keys.ready, keys.active, keys.lone, keys.paused, name, box, envelope, flow, queue_up) then wait = 1000 end
  if wait > 0 then keep_delayed(keys.ready, keys.due, keys.delayed, keys.later, name, id, wait, with_flow(envelope, flow)) end
end
