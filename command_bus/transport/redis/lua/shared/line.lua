-- line: entities that wait for a worker, in fair order. Uses record, newer.
--
-- Once classes or shares are used, the ready stream holds at most 64 undelivered activations. An entity that has no room there waits in the line:
-- its record has the state q, no activation, and its place. Each script that adds to or takes from the ready stream fills it up again.
--
-- flows   hash: c<class> what a class has used, v<class> its virtual time, s<class> its starts, w:<tenant> a weight; `most`, if it is not
--         64. The line is in use if this key exists
-- turns   sorted set of flows, by their virtual time behind that of their class's span
-- line    sorted set of equal scores: flow/stamp/mailbox name; a place is flow/stamp, a flow the digit of a class and a tenant
--
-- Classes are 0 high, 1 normal, 2 low. Next comes the class that has used least for its weight, in it the flow whose virtual time is least
-- (start-time fair queueing), in that the first. A start is paid when an activation is made for it, each further one when it happens.
--
-- A record's part `c=tenant,high,normal` has the ids of the last high and normal commands of its entity; < before an id: those before it.
-- So the class is the highest of all that wait. Without the part it is normal, without a tenant.

local READY_MOST, CLASS_SPAN, TURN = 64, 2251799813685248, 10000
local CLASS_COSTS = {[0] = 1, 4, 16}

-- Return the line of a shard; nil if its key is none of ours.
local function open_line(ready, active, flows, turns, line)
  local call, try, sub, match, find, format = redis.call, redis.pcall, string.sub, string.match, string.find, string.format
  local self, used, virtual, starts, weights, due, stamps, time = {}, {}, {}, {}, {}, {}, 0, nil
  local values = try('HMGET', flows, 'c0', 'c1', 'c2', 'v0', 'v1', 'v2', 's0', 's1', 's2', 'most')
  if values.err then return nil end
  self.most = tonumber(values[10] or READY_MOST) or READY_MOST
  for class = 0, 2 do
    used[class], virtual[class], starts[class] = tonumber(values[class + 1] or 0), tonumber(values[class + 4] or 0), tonumber(values[class + 7] or 0)
  end

  local function cost_of(flow)
    local tenant = sub(flow, 2)
    if not weights[tenant] then
      local weight = tenant ~= '' and try('HGET', flows, 'w:' .. tenant)
      weights[tenant] = type(weight) == 'string' and tonumber(weight) or 1
    end
    return math.max(1, math.floor(TURN / weights[tenant] + 0.5))
  end
  local function set_turn(flow, at) try('ZADD', turns, format('%.0f', tonumber(sub(flow, 1, 1)) * CLASS_SPAN + at), flow) end

  local function reaches(bound, head)
    if bound == '' then return false end
    if sub(bound, 1, 1) == '<' then return not head or is_behind(sub(bound, 2), head) end
    return not head or bound == head or is_behind(bound, head)
  end
  local function flow_of(parts, head)
    local tenant, high, normal = match(parts or '', '|c=([^,|]*),([^,|]*),([^,|]*)')
    if not tenant then return '1' end
    return (reaches(high, head) and '0' or reaches(normal, head) and '1' or '2') .. tenant
  end
  local function stamp()
    time, stamps = time or call('TIME'), stamps + 1
    return format('%s%06d-%06d', time[1], time[2], stamps)
  end
  local function enter(name, flow, at)
    local place = flow .. '/' .. at
    try('ZADD', line, '0', place .. '/' .. name)
    if not try('ZSCORE', turns, flow) then set_turn(flow, virtual[tonumber(sub(flow, 1, 1))]) end
    return place
  end

  -- Put an entity into the line, and return its record. `head` is its next command, if there may be several classes; `message` a lone one,
  -- `activation` that which it had. Like `queue` this does not fail.
  function self.join(name, attempt, first, parts, head, message, activation)
    local ms, count = match(activation or '', '^(%d+)-(%d+)$')
    local place = enter(name, flow_of(parts, head or message), ms and format('%s000-%06d', ms, count) or stamp())
    return 'q|||' .. (message or '') .. '|' .. attempt .. '|' .. first .. '|' .. place .. (parts or '')
  end

  -- Return the id of the first command in a mailbox; nil if there is none.
  function self.head_of(box)
    local head = try('XRANGE', box, '-', '+', 'COUNT', 1)[1]
    return head and head[1]
  end

  -- Return whether an entity whose record says that it waits in the line has its place there.
  function self.has(name, place)
    return try('ZSCORE', line, place .. '/' .. name) and try('ZSCORE', turns, match(place, '^[^/]*')) and true
  end

  -- Return the parts of an idle entity's record with its first command.
  function self.parts_of(flow, id)
    if flow == '1' then return '' end
    local class, bound = sub(flow, 1, 1), id
    return '|c=' .. sub(flow, 2) .. ',' .. (class == '0' and bound or '') .. ',' .. (class == '1' and bound or '')
  end

  -- Return the record with a command that came behind others. If it is of a higher class than the entity has, that moves forward.
  function self.noted(record, name, flow, id)
    local fields, parts = match(record, '^([^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*)(.*)$')
    if not fields or is_newer(record) then return record end
    local tenant, high, normal = match(parts, '|c=([^,|]*),([^,|]*),([^,|]*)')
    local class, theirs = sub(flow, 1, 1), sub(flow, 2)
    if not tenant then
      if flow == '1' then return record end
      tenant, high, normal = '', '', '<' .. id
    end
    if theirs ~= '' then tenant = theirs end
    if class == '0' then high = id elseif class == '1' then normal = id end
    local place = match(fields, '^q|.*|([^|]*)$')
    if place and class < sub(place, 1, 1) then
      try('ZREM', line, place .. '/' .. name)
      fields = sub(fields, 1, #fields - #place) .. enter(name, class .. tenant, stamp())
    end
    return fields .. string.gsub(parts, '|c=[^|]*', '', 1) .. '|c=' .. tenant .. ',' .. high .. ',' .. normal
  end

  -- Charge a start that no activation was made for.
  function self.charge(parts, head)
    local flow = flow_of(parts, head)
    due[flow] = (due[flow] or 0) + 1
  end

  local function pay(flow, count)
    local class = tonumber(sub(flow, 1, 1))
    used[class], starts[class] = used[class] + count * CLASS_COSTS[class], starts[class] + count
    local at = try('ZSCORE', turns, flow)
    at = type(at) == 'string' and tonumber(at) - class * CLASS_SPAN or virtual[class]
    set_turn(flow, at + count * cost_of(flow))
    return at
  end

  -- Return the first of a class's flows that has somebody in the line, and its first place. Flows before it are idle: their time is over.
  local function first_of(class)
    while true do
      local low, high = format('%.0f', class * CLASS_SPAN), format('(%.0f', (class + 1) * CLASS_SPAN)
      local found = try('ZRANGEBYSCORE', turns, low, high, 'WITHSCORES', 'LIMIT', '0', '1')
      if not found[1] then
        virtual[class] = 0
        return false
      end
      local flow = found[1]
      local member = try('ZRANGEBYLEX', line, '[' .. flow .. '/', '(' .. flow .. '0', 'LIMIT', '0', '1')[1]
      if member then return {flow, member} end
      try('ZREM', turns, flow)
      virtual[class] = math.max(virtual[class], tonumber(found[2]) - class * CLASS_SPAN)
    end
  end

  -- Give the entity at a place an activation; return whether it waited there.
  local function admit(flow, member)
    try('ZREM', line, member)
    local place, name = match(member, '^([^/]*/[^/]*)/(.*)$')
    local record = place and call('HGET', active, name)
    local _, _, _, message, attempt, first, at, parts = parse_record(record or '')
    if not at or sub(record, 1, 2) ~= 'q|' or at ~= place then return false end
    local added = try('XADD', ready, '*', 'e', name)
    local state = message == '' and 'r|' or 'o|'
    call('HSET', active, name, state .. (type(added) == 'string' and added or '0-0') .. '||' .. message .. '|' .. attempt .. '|' .. first .. '|' .. parts)
    virtual[tonumber(sub(flow, 1, 1))] = pay(flow, 1)
    return true
  end

  -- Return how many activations the ready stream has that were not delivered.
  function self.undelivered()
    local pending, length = try('XPENDING', ready, 'workers'), try('XLEN', ready)
    return (type(length) == 'number' and length or 0) - (pending.err and 0 or tonumber(pending[1]))
  end

  -- Fill the ready stream up, and write what was charged: once, behind all that the script changes.
  function self.finish()
    for flow, count in pairs(due) do pay(flow, count) end
    local room, firsts = 0, {}
    if try('ZCARD', line) ~= 0 then
      room = self.most - self.undelivered()
    elseif try('XLEN', ready) == 0 then  -- none waits or runs: nothing to share
      try('DEL', turns)
      virtual = {[0] = 0, 0, 0}
    end
    while room > 0 do
      local next_class = nil
      for class = 0, 2 do
        if firsts[class] == nil then firsts[class] = first_of(class) end
        if firsts[class] and (not next_class or used[class] < used[next_class]) then next_class = class end
      end
      if not next_class then break end
      for class = 0, 2 do
        if not firsts[class] then used[class] = math.max(used[class], used[next_class]) end
      end
      if admit(unpack(firsts[next_class])) then room = room - 1 end
      firsts[next_class] = nil
    end
    local least, write = math.min(used[0], used[1], used[2]), {'HSET', flows}
    for class = 0, 2 do
      for letter, value in pairs({c = used[class] - least, v = virtual[class], s = starts[class]}) do
        write[#write + 1], write[#write + 2] = letter .. class, format('%.0f', value)
      end
    end
    try(unpack(write))
  end
  lined = self
  return self
end

