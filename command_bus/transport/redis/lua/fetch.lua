-- fetch: deliver activations to a worker, without waiting for any, and start the lone commands among them.
--
-- uses: memory_limit, record, newer, fences, line_turns, line_served, line
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[4]   fence     the shard's highest fence
-- KEYS[5]   paused    hash: scope -> mode|since in ms|why
-- KEYS[6]   watched   hash: entity type -> number of events to keep
-- KEYS[7]   rules     hash: what limits apply
-- KEYS[8]   flows     hash: what classes and shares have used (see shared/line.lua); this and the next two are missing where the worker
--                     knows of no line in use
-- KEYS[9]   turns     sorted set of flows, by their virtual time
-- KEYS[10]  line      sorted set of the places of entities that wait
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker
-- ARGV[3]   count     of activations at most
-- ARGV[4]   number    of the first lease: the holder of what is started is the owner, '#f' and a number, one more for each activation
--
-- returns now in ms, then for each activation four values: its id; the mailbox's name, nil if it names none; 'fence|message|1|first start
--         in ms' and the envelope of the command that now runs under this lease, both nil if a take has to start it
--
-- While anything is paused, watched or limited it starts nothing: advance.lua does.

local ready, active, lone = KEYS[1], KEYS[2], KEYS[3]
local group, owner, number = ARGV[1], ARGV[2], tonumber(ARGV[4])
local call, format = redis.call, string.format

pass_memory_limit(ready, group)
local time = call('TIME')
local now = format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local found = call('XREADGROUP', 'GROUP', group, owner, 'COUNT', ARGV[3], 'STREAMS', ready, '>')
local queue_up = KEYS[8] and call('EXISTS', KEYS[8]) == 1 and open_line(ready, active, KEYS[8], KEYS[9], KEYS[10])
if queue_up then queue_up.finish() end  -- before anything is started: it reads no record that this script changes
if not found then return {now} end

local answers, names, places = {now}, {}, {}
for i, entry in ipairs(found[1][2]) do
  local fields, at, name = entry[2], 4 * i - 2, false
  for field = 1, #fields, 2 do
    if fields[field] == 'e' then name = fields[field + 1] end
  end
  answers[at], answers[at + 1], answers[at + 2], answers[at + 3] = entry[1], name, false, false
  if name then names[#names + 1], places[#places + 1] = name, at end
end
if #names == 0 or call('EXISTS', KEYS[5], KEYS[6], KEYS[7]) > 0 then return answers end

local starting, at_of, messages, parts_of = {}, {}, {}, {}
for i, record in ipairs(call('HMGET', active, unpack(names))) do
  if record == 'o|' .. answers[places[i]] .. '|||0|0|' then
    starting[#starting + 1], at_of[#at_of + 1] = names[i], places[i]
  elseif queue_up and record then
    local front = 'o|' .. answers[places[i]] .. '||'
    local message, parts = nil, nil
    if string.sub(record, 1, #front) == front then message, parts = string.match(record, '^([^|]*)|0|0|(.*)$', #front + 1) end
    if message and (parts == '' or string.sub(parts, 1, 1) == '|') then
      starting[#starting + 1], at_of[#at_of + 1] = names[i], places[i]
      messages[#starting], parts_of[#starting] = message ~= '' and message, parts
    end
  end
end
if #starting == 0 then return answers end

local next_fence, keep_fence = fences_of(KEYS[4], time)
local changed = {active}
for i, envelope in ipairs(call('HMGET', lone, unpack(starting))) do
  local at = at_of[i]
  local id = answers[at]
  local running = next_fence() .. '|' .. (messages[i] or id) .. '|1|' .. now
  changed[2 * i] = starting[i]
  changed[2 * i + 1] = 'O|' .. id .. '|' .. running .. '|' .. owner .. '#f' .. format('%.0f', number + (at - 2) / 4) .. (parts_of[i] or '')
  answers[at + 2], answers[at + 3] = running, envelope or ''
end
call('HSET', unpack(changed))
keep_fence()
return answers
