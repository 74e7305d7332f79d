-- line_served: how many starts each flow had lately, in the hash `flows`: n:<flow> -> minute:its
-- starts:starts of the minute before it.
--
-- Without clocks of its own: a minute is that of the server's time. `counted` is the number of these fields,
-- about. fill_line.lua deletes those that are over; while there are ten thousand, no further flow is counted.

local COUNTED_MOST = 10000

-- Add what flows were served to the fields that are written: starts by flow, at a time in s.
local function add_served(flows, seconds, served, counted, write)
  local names, fields, minute, before = {}, {}, math.floor(seconds / 60), counted
  for flow in pairs(served) do
    names[#names + 1], fields[#fields + 1] = flow, 'n:' .. flow
  end
  if #names == 0 then return end
  local values = redis.pcall('HMGET', flows, unpack(fields))
  for i, flow in ipairs(names) do
    local at, now, past = string.match(values[i] or '', '^(%d+):(%d+):(%d+)$')
    if not at then counted = counted + 1 end
    if at or counted <= COUNTED_MOST then
      at, now, past = tonumber(at), tonumber(now), tonumber(past)
      if at ~= minute then past, now = at == minute - 1 and now or 0, 0 end
      write[#write + 1], write[#write + 2] =
        fields[i], string.format('%.0f:%.0f:%.0f', minute, now + served[flow], past)
    end
  end
  counted = math.min(counted, COUNTED_MOST)
  if counted ~= before then write[#write + 1], write[#write + 2] = 'counted', counted end
end

