-- fetch: deliver activations to a worker, without waiting for any, and start the lone commands among them.
--
-- uses: memory_limit, record, newer, fences, open_line(line_flow, line_runs, line_turns, line_served, line)
-- uses: open_limits(line_flow, limits, limit_passes, limit_turns, limit_queues, limit_wakes)
--
-- KEYS[1]   ready     stream of activations; its pending entries are the leases
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   lone      hash: mailbox name -> envelope (see shared/lone.lua)
-- KEYS[4]   fence     the shard's highest fence
-- KEYS[5]   paused    hash: scope -> mode|since in ms|why
-- KEYS[6]   watched   hash: entity type -> number of events to keep
-- KEYS[7]   rules     hash: what limits apply
-- KEYS[8…]  limits, places and due, where the worker knows of limits and this is the first shard (see
--           shared/limits.lua); then flows, turns and line, where it knows that the line is in use (see
--           shared/line.lua)
-- ARGV[1]   group     of consumers
-- ARGV[2]   owner     consumer name of the worker
-- ARGV[3]   count     of activations at most
-- ARGV[4]   number    of the first lease: the holder of what is started is the owner, '#f' and a number, one
--                     more for each activation
-- ARGV[5]   more      how many keys of limits there are: 3 or 0
-- ARGV[6]   starts    '0': nothing is started, for that is a step of advance.lua where replicas confirm it
--
-- returns now in ms, then for each activation four values: its id; the mailbox's name, nil if it names none;
--         'fence|message|1|first start in ms', with '|place=1' if limits gave this lease a place, and the
--         envelope of the command that now runs under it, both nil if a take has to start it
--
-- While anything is paused or watched it starts nothing: advance.lua does. So it does with what a limit
-- refuses, and with what the first shard has to be asked about.

local ready, active, lone = KEYS[1], KEYS[2], KEYS[3]
local group, owner, number = ARGV[1], ARGV[2], tonumber(ARGV[4])
local call, format = redis.call, string.format

pass_memory_limit(ready, group)
local time = call('TIME')
local now = format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local line = 8 + ARGV[5]
local queue_up = KEYS[line] and call('EXISTS', KEYS[line]) == 1
  and open_line(ready, active, KEYS[line], KEYS[line + 1], KEYS[line + 2])
-- Before anything is read or started: it reads no record that this script changes.
if queue_up then queue_up.finish(tonumber(ARGV[3])) end
local found = call('XREADGROUP', 'GROUP', group, owner, 'COUNT', ARGV[3], 'STREAMS', ready, '>')
if not found then return {now} end

local answers, names, places = {now}, {}, {}
for i, entry in ipairs(found[1][2]) do
  local fields, at, name = entry[2], 4 * i - 2, false
  for field = 1, #fields, 2 do
    if fields[field] == FIELD.ENVELOPE then name = fields[field + 1] end
  end
  answers[at], answers[at + 1], answers[at + 2], answers[at + 3] = entry[1], name, false, false
  if name then names[#names + 1], places[#places + 1] = name, at end
end
if #names == 0 or ARGV[6] == '0' then return answers end
local limits, is_home = nil, line > 8
if call('EXISTS', KEYS[5], KEYS[6], KEYS[7]) > 0 then
  if call('EXISTS', KEYS[5], KEYS[6]) > 0 then return answers end
  limits = open_limits(KEYS[7], is_home and KEYS[8], is_home and KEYS[9], time[1] * 1000000 + time[2],
    is_home)
end

local starting, at_of, messages, parts_of = {}, {}, {}, {}
for i, record in ipairs(call('HMGET', active, unpack(names))) do
  if record == STATE.LONE .. '|' .. answers[places[i]] .. '|||0|0|' then
    starting[#starting + 1], at_of[#at_of + 1] = names[i], places[i]
  elseif queue_up and record then
    local front = STATE.LONE .. '|' .. answers[places[i]] .. '||'
    local message, parts = nil, nil
    if string.sub(record, 1, #front) == front then
      message, parts = string.match(record, '^([^|]*)|0|0|(.*)$', #front + 1)
    end
    if message and (parts == '' or string.sub(parts, 1, 1) == '|') then
      starting[#starting + 1], at_of[#at_of + 1] = names[i], places[i]
      messages[#starting], parts_of[#starting] = message ~= '' and message, parts
    end
  end
end
if #starting == 0 then return answers end

-- Leave out what limits do not let start, here or now. The others take their tokens and places.
local function admitted()
  local kept, kept_at, kept_messages, kept_parts = {}, {}, {}, {}
  if is_home then limits.read_passes(starting) end
  for i, name in ipairs(starting) do
    local activation, scopes, asks = answers[at_of[i]], limits.scopes_of(name)
    if not asks and not (scopes[1] and limits.refusing_of(scopes, name, activation, '')) then
      if scopes[1] then limits.start(name, activation, '', scopes, '0') end
      local at = #kept + 1
      kept[at], kept_at[at], kept_messages[at], kept_parts[at] = name, at_of[i], messages[i], parts_of[i]
    end
  end
  return kept, kept_at, kept_messages, kept_parts
end

if limits then
  starting, at_of, messages, parts_of = admitted()
  if #starting == 0 then return answers end
end

local next_fence, keep_fence = fences_of(KEYS[4], time)
local changed = {active}
for i, envelope in ipairs(call('HMGET', lone, unpack(starting))) do
  local at = at_of[i]
  local id = answers[at]
  local running = next_fence() .. '|' .. (messages[i] or id) .. '|1|' .. now
  changed[2 * i] = starting[i]
  changed[2 * i + 1] = STATE.LONE_HELD .. '|' .. id .. '|' .. running .. '|' .. owner .. '#f'
    .. format('%.0f', number + (at - 2) / 4) .. (parts_of[i] or '')
  if is_home and limits and limits.pass_of(starting[i]) then running = running .. '|place=1' end
  answers[at + 2], answers[at + 3] = running, envelope or ''
end
if is_home and limits then limits.keep(ready, KEYS[10]) end
call('HSET', unpack(changed))
keep_fence()
return answers
