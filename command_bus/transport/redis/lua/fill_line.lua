-- fill_line: fill the ready stream from the line, and bring back what it has too much: what was ready when
-- the line came into use.
--
-- uses: memory_limit, record, newer, open_line(line_flow, line_runs, line_turns, line_served, line)
--
-- KEYS[1]   ready     stream of activations
-- KEYS[2]   active    hash: mailbox name -> record (see shared/record.lua)
-- KEYS[3]   flows     hash: what classes and shares have used (see shared/line.lua)
-- KEYS[4]   turns     sorted set of flows, by their virtual time
-- KEYS[5]   line      sorted set of the places of entities that wait
-- ARGV[1]   group     of consumers
-- ARGV[2]   most      activations that are brought back
--
-- returns how many were brought back, and how many places were none of ours
--
-- It also forgets a part of what was served longer than two minutes ago (see shared/line_served.lua), if its
-- user may.
--
-- What was not delivered stands at the stream's end. Its newest go first into the line, where they keep their
-- order: by their activation.

local ready, active, most = KEYS[1], KEYS[2], tonumber(ARGV[2])
local SWEPT = 1000  -- fields that are looked at

pass_memory_limit(ready, ARGV[1])
local queue_up = redis.call('EXISTS', KEYS[3]) == 1 and open_line(ready, active, KEYS[3], KEYS[4], KEYS[5])
if not queue_up then return {0, 0} end

-- Take an activation that no worker has back into the line; return whether it is one.
local function bring_back(id, fields)
  local name = fields[1] == FIELD.ENVELOPE and fields[2]
  local record = name and redis.call('HGET', active, name)
  local state, activation, _, message, attempt, first, _, parts = parse_record(record or '')
  if activation ~= id or (state ~= STATE.READY and state ~= STATE.LONE) then return false end
  if state == STATE.LONE and message == '' then message = id end
  redis.call('XDEL', ready, id)
  redis.call('HSET', active, name, queue_up.join(name, attempt, first, parts, nil, message, id))
  return true
end

-- The places have equal scores, else they have no order. What has another was put there by somebody else, and
-- goes: `reactivate.lua` finds whom it concerns.
local odd = redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', '(0')
  + redis.call('ZREMRANGEBYSCORE', KEYS[5], '(0', '+inf')

local back = 0
local surplus = math.min(queue_up.undelivered() - queue_up.most, most)
if surplus > 0 then
  for _, entry in ipairs(redis.call('XREVRANGE', ready, '+', '-', 'COUNT', surplus)) do
    if bring_back(entry[1], entry[2]) then back = back + 1 end
  end
end

-- Delete some counts of flows whose time is over.
local function forget_served(flows)
  local values = redis.call('HMGET', flows, 'counted', 'swept')
  local counted, over = tonumber(values[1] or 0) or 0, {'HDEL', flows}
  if counted == 0 then return end
  local page = redis.pcall('HSCAN', flows, values[2] or '0', 'MATCH', 'n:*', 'COUNT', SWEPT)
  if page.err then return end
  local minute = math.floor(redis.call('TIME')[1] / 60)
  for i = 1, #page[2], 2 do
    local at = tonumber(string.match(page[2][i + 1], '^(%d+):'))
    if not at or at < minute - 1 then over[#over + 1] = page[2][i] end
  end
  local gone = #over > 2 and redis.pcall(unpack(over)) or 0
  if type(gone) ~= 'number' then return end
  redis.pcall('HSET', flows, 'swept', page[1], 'counted', math.max(counted - gone, 0))
end

queue_up.finish()
forget_served(KEYS[3])
return {back, odd}
