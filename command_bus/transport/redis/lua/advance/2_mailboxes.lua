-- Read at once what all steps need, above all the record of each mailbox and its next commands:
-- those behind the one that is settled, or the first; none where the worker knows the next one.

local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local now_text = format('%.0f', now)
local is_special, publish, is_watched = call('EXISTS', paused, KEYS[9], KEYS[12]) > 0, nil, nil
local usual_count = tonumber(ARGV[arg + 1] or 0)  -- see 2a_usual.lua
arg = arg + 1
local line = usual_count == 0 and KEYS[key + 1] or nil
local any_paused = is_special and call('EXISTS', paused) == 1
local limits, is_home, micros = nil, nil, time[1] * 1000000 + time[2]
if is_special then
  if call('EXISTS', KEYS[9]) == 1 then publish, is_watched = publisher(KEYS[9], KEYS[10]) end
  if call('EXISTS', KEYS[12]) == 1 then
    is_home = before == 14
    limits = open_limits(KEYS[12], is_home and KEYS[13], is_home and KEYS[14], micros, is_home, line)
    if is_home then limits.read_passes(names) end
  end
end

local queue_up = line and call('EXISTS', line) == 1
  and open_line(ready, active, line, KEYS[key + 2], KEYS[key + 3])
local next_fence, keep_fence = fences_of(fence_key, time)

-- Return whether another mailbox of this shard waits for a worker.
local others_wait = nil
local function does_another_wait()
  if others_wait == nil then
    local pending = try('XPENDING', ready, group)  -- the group may be gone: then no worker reads
    others_wait = not pending.err and call('XLEN', ready) > tonumber(pending[1])
  end
  return others_wait
end

local settling = {
  [VERB.COMPLETE] = true, [VERB.REJECT] = true, [VERB.EXPIRE] = true, [VERB.BURY] = true,
  [VERB.CANCEL] = true,
}
local records, heads, further, repeated = {}, nil, {}, {}
local alone = {}  -- mailbox name -> envelope of its lone command; true where it runs already

local seen, reading, behind, asked = {}, {'XREAD', 'COUNT', publish and '1' or ahead, 'STREAMS'}, {}, {}
for number, record in ipairs(count > 0 and call('HMGET', active, unpack(names)) or {}) do
  local step = steps[number]
  local box, name, verb = step.box, step.name, step.verb
  records[name] = record
  local state = record and byte(record)
  if (state == LONE or state == LONE_HELD) and is_lone(record) then
    seen[box], repeated[box], alone[name] = true, true, true
    if state == LONE and verb == VERB.TAKE then asked[#asked + 1] = name end
  elseif seen[box] then
    repeated[box] = true
  elseif step.ahead and not publish then  -- an event has the envelope
    seen[box] = true
  elseif record and find(record, '|w=', 1, true) then  -- of several entities: nothing is read ahead
    repeated[box] = true
  elseif verb == VERB.TAKE or settling[verb] then
    seen[box] = true
    reading[#reading + 1] = box
    behind[#behind + 1] = verb ~= VERB.TAKE and step.message or '0-0'
  end
end
if #asked > 0 then
  for i, envelope in ipairs(call('HMGET', lone, unpack(asked))) do alone[asked[i]] = envelope or '' end
end
if #behind > 0 then
  for i = 1, #behind do reading[#reading + 1] = behind[i] end
  local found = try(unpack(reading))
  -- Else a key is no stream: each step reads its own mailbox, and only that one fails.
  if not found or not found.err then
    heads = {}
    for _, stream in ipairs(found or {}) do
      local box, entries = stream[1], stream[2]
      entries[1][2] = fields_of(lone, sub(box, prefix + 1), entries[1][2])
      heads[box] = entries[1]
      if #entries > 1 then further[box] = entries end
    end
  end
end

-- What the steps come to.

local started, settled, freed = 0, 0, 0
local counts = {rejected = 0, expired = 0, buried = 0, dead = 0, retried = 0, snoozed = 0, handed_back = 0,
  cancelled = 0}
local changed, released, emptied, taken, touched = {}, {}, {}, {}, {}
local sending, returning = {}, {}
