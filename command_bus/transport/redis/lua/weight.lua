-- weight: set the weight of a tenant, or take it back. What its flows have paid ahead is paid for at the new
-- weight.
--
-- uses: record, line_turns
--
-- KEYS[1]   flows     hash: what classes and shares have used (see shared/line.lua)
-- KEYS[2]   turns     sorted set of flows, by their virtual time
-- ARGV[1]   tenant    encoded
-- ARGV[2]   weight    empty: that of all others, 1
--
-- returns nothing

local flows, turns, tenant, weight = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local before = tonumber(redis.call('HGET', flows, 'w:' .. tenant) or 1) or 1
if weight == '' then
  redis.call('HDEL', flows, 'w:' .. tenant)
else
  if redis.call('EXISTS', flows) == 0 then redis.call('HSET', flows, 'c0', '0') end  -- the line is in use
  redis.call('HSET', flows, 'w:' .. tenant, weight)
end
local change = cost_of_weight(weight == '' and 1 or tonumber(weight)) / cost_of_weight(before)
for class = 0, 2 do
  local flow, span = class .. tenant, class * CLASS_SPAN
  local virtual = tonumber(redis.call('HGET', flows, 'v' .. class) or 0) or 0
  local ahead = (tonumber(redis.call('ZSCORE', turns, flow) or '') or 0) - span - virtual
  if ahead > 0 then
    redis.call('ZADD', turns, string.format('%.0f', span + virtual + ahead * change), flow)
  end
end
