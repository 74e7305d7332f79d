-- line_turns: whose turn it is in the line (see shared/line.lua). Uses record.
--
-- Next comes the class that has used least for its weight, in it the flow whose virtual time is least, in
-- that the first. Flows, places and records are read and written for many entities at once: a call costs more
-- than what it does.

local CLASS_SPAN, TURN = 2251799813685248, 10000
local CLASS_COSTS, LONGEST_TURN = {[0] = 1, 4, 16}, 1000 * TURN

-- Return by how much a start puts off the next one of a tenant with a weight.
local function cost_of_weight(weight)
  return math.max(1, math.min(math.floor(TURN / weight + 0.5), LONGEST_TURN))
end

-- Return four functions: return the virtual time of a flow; set the virtual time of a flow; pay for starts of
-- a flow; give activations to so many of the first in the line. They keep up what classes have used, their
-- virtual times and starts, and how often each flow was served.
local function line_turns(ready, active, flows, turns, line, used, virtual, starts, served)
  local call, try, sub, match, format = redis.call, redis.pcall, string.sub, string.match, string.format
  local weights = {}

  local function cost_of(flow)
    local tenant = sub(flow, 2)
    if not weights[tenant] then
      local weight = tenant ~= '' and try('HGET', flows, 'w:' .. tenant)
      weights[tenant] = type(weight) == 'string' and tonumber(weight) or 1
    end
    return cost_of_weight(weights[tenant])
  end
  local function score_of(flow, at) return format('%.0f', tonumber(sub(flow, 1, 1)) * CLASS_SPAN + at) end
  -- Return nil for a flow that has no turn, or one beyond its class's span, where it would never come.
  local function turn_of(flow)
    local class, score = tonumber(sub(flow, 1, 1)), try('ZSCORE', turns, flow)
    local at = class and type(score) == 'string' and tonumber(score) - class * CLASS_SPAN
    return at and at >= 0 and at < CLASS_SPAN and at or nil
  end
  local function set_turn(flow, at) try('ZADD', turns, score_of(flow, at), flow) end

  local function pay(flow, count)
    local class = tonumber(sub(flow, 1, 1))
    served[flow] = (served[flow] or 0) + count
    used[class], starts[class] = used[class] + count * CLASS_COSTS[class], starts[class] + count
    set_turn(flow, (turn_of(flow) or virtual[class]) + count * cost_of(flow))
  end

  -- What is filled in is read and written for many entities at once: flows of each class with their turns, of
  -- each flow its first places.
  local flows_of, passed, admitted, paid = {}, {line}, {active}, {}

  -- Write what was taken out of the line, and whom it became.
  local function write_admitted()
    local moved = {turns}
    if #passed > 1 then try('ZREM', unpack(passed)) end
    if #admitted > 1 then call('HSET', unpack(admitted)) end
    for flow, at in pairs(paid) do
      moved[#moved + 1], moved[#moved + 2] = score_of(flow, at), flow
    end
    if #moved > 1 then try('ZADD', unpack(moved)) end
    passed, admitted, paid = {line}, {active}, {}
  end

  -- Read the weights of these flows' tenants at once; behind each flow stands its turn.
  local function read_weights(found)
    local tenants, fields = {}, {}
    for i = 1, #found, 2 do
      local tenant = sub(found[i], 2)
      if not weights[tenant] and tenant ~= '' then
        tenants[#tenants + 1], fields[#fields + 1] = tenant, 'w:' .. tenant
      end
    end
    if #fields == 0 then return end
    for i, weight in ipairs(call('HMGET', flows, unpack(fields))) do
      weights[tenants[i]] = tonumber(weight or 1) or 1
    end
  end

  -- Read the first flows of a class, at most so many.
  local function read_flows(class, most)
    write_admitted()
    local low, high = format('%.0f', class * CLASS_SPAN), format('(%.0f', (class + 1) * CLASS_SPAN)
    local found = try('ZRANGEBYSCORE', turns, low, high, 'WITHSCORES', 'LIMIT', '0', most)
    local read = {places = math.max(1, math.floor(2 * most / math.max(#found, 1)))}
    read_weights(found)
    for i = 1, #found, 2 do
      if tonumber(sub(found[i], 1, 1)) == class then
        read[#read + 1] = {flow = found[i], at = tonumber(found[i + 1]) - class * CLASS_SPAN, next = 1,
          count = 0}
      else
        try('ZREM', turns, found[i])  -- no flow of ours
      end
    end
    -- Others stand behind it.
    read.bound = #found == 2 * most and tonumber(found[#found]) - class * CLASS_SPAN
    flows_of[class] = read
    return read
  end

  -- Read the next places of a flow, with the records of their entities.
  local function read_places(flow, most)
    if flow.count > 0 then write_admitted() end  -- else none of its places was taken out
    local from, to, names = '[' .. flow.flow .. '/', '(' .. flow.flow .. '0', {}
    local members = try('ZRANGEBYLEX', line, from, to, 'LIMIT', '0', most)
    for i, member in ipairs(members) do names[i] = match(member, '^[^/]*/[^/]*/(.*)$') or '' end
    flow.members, flow.names, flow.next, flow.count = members, names, 1, #members
    if #names > 0 then flow.records = call('HMGET', active, unpack(names)) end
  end

  -- Return the first of a class's flows that has somebody in the line. Flows before it are idle: their time
  -- is over.
  local function first_of(class, room)
    local read = flows_of[class] or read_flows(class, room + 1)
    while true do
      local first = nil
      for _, flow in ipairs(read) do
        if not flow.over and (not first or flow.at < first.at) then first = flow end
      end
      if read.bound and (not first or first.at > read.bound) then
        read = read_flows(class, room + 1)
      elseif not first then
        virtual[class] = 0
        return false
      else
        if first.next > first.count then read_places(first, read.places) end
        if first.count > 0 then return first end
        try('ZREM', turns, first.flow)
        first.over = true
        virtual[class] = math.max(virtual[class], first.at)
      end
    end
  end

  -- Give the entity at a flow's first place an activation; return whether it waited there.
  local function admit(class, flow)
    local i = flow.next
    local member, name, record = flow.members[i], flow.names[i], flow.records[i]
    flow.next = i + 1
    passed[#passed + 1] = member
    local place = sub(member, 1, #member - #name - 1)
    local state, _, _, message, attempt, first, at, parts = parse_record(record or '')
    if state ~= STATE.IN_LINE or at ~= place then return false end
    local added = try('XADD', ready, '*', FIELD.ENVELOPE, name)
    state = message == '' and STATE.READY or STATE.LONE
    admitted[#admitted + 1] = name
    admitted[#admitted + 1] = state .. '|' .. (type(added) == 'string' and added or '0-0') .. '||' .. message
      .. '|' .. attempt .. '|' .. first .. '|' .. parts
    used[class], starts[class], virtual[class] = used[class] + CLASS_COSTS[class], starts[class] + 1, flow.at
    flow.at, served[flow.flow] = flow.at + cost_of(flow.flow), (served[flow.flow] or 0) + 1
    paid[flow.flow] = flow.at
    return true
  end

  local function admit_first(room)
    local firsts = {}
    while room > 0 do
      local next_class = nil
      for class = 0, 2 do
        if firsts[class] == nil then firsts[class] = first_of(class, room) end
        if firsts[class] and (not next_class or used[class] < used[next_class]) then next_class = class end
      end
      if not next_class then break end
      for class = 0, 2 do
        if not firsts[class] then used[class] = math.max(used[class], used[next_class]) end
      end
      if admit(next_class, firsts[next_class]) then room = room - 1 end
      firsts[next_class] = nil
    end
    write_admitted()
  end
  return turn_of, set_turn, pay, admit_first
end
