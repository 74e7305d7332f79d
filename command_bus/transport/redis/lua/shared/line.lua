-- line: entities that wait for a worker, in fair order. Uses record, newer, line_flow, line_runs, line_turns,
-- line_served.
--
-- Once classes or shares are used, the ready stream holds at most 8 undelivered activations. An entity that
-- has no room there waits in the line: its record has the state q, no activation, and its place. Each script
-- that adds to or takes from the ready stream fills it up again, one that reads from it first by what it
-- reads: so what is urgent starts behind a handful, and a read brings as many as it asks for.
--
-- flows   hash: c<class> what a class has used, v<class> its virtual time, s<class> its starts, w:<tenant> a
--         weight; n:<flow> what was served (see line_served.lua); `most`, if it is not 8. The line is in use
--         if this key exists
-- turns   sorted set of flows, by their virtual time behind that of their class's span
-- line    sorted set of equal scores: flow/stamp/mailbox name; a place is flow/stamp, a flow the digit of a
--         class and a tenant
--
-- Classes are 0 high, 1 normal, 2 low. Whose turn it is says line_turns.lua (start-time fair queueing). A
-- start is paid when an activation is made for it, each further one when it happens.

local READY_MOST, MOST_AT_ONCE = 8, 1000
local LETTERS = {'c', 'v', 's'}

-- Return the line of a shard; nil if its key is none of ours.
local function open_line(ready, active, flows, turns, line)
  local call, try, sub, match, find, format =
    redis.call, redis.pcall, string.sub, string.match, string.find, string.format
  local self, used, virtual, starts, served, due, stamps, time = {}, {}, {}, {}, {}, {}, 0, nil
  -- What `join` adds to the line at once; flows that are known to have a turn.
  local joined, has_turn = {line}, {}
  local values = try('HMGET', flows, 'c0', 'c1', 'c2', 'v0', 'v1', 'v2', 's0', 's1', 's2', 'most', 'counted')
  if values.err then return nil end
  -- What is none, because somebody wrote it there, is passed over.
  local function count_in(text, least, other)
    local count = tonumber(text or '')
    return count and count >= least and count < CLASS_SPAN and count or other
  end
  self.most = math.floor(count_in(values[10], 1, READY_MOST))
  for class = 0, 2 do
    used[class], virtual[class], starts[class] =
      count_in(values[class + 1], 0, 0), count_in(values[class + 4], 0, 0), count_in(values[class + 7], 0, 0)
  end
  local turn_of, set_turn, pay, admit_first =
    line_turns(ready, active, flows, turns, line, used, virtual, starts, served)

  local flow_of = flow_by_record()
  local function now()
    time = time or call('TIME')
    return time
  end
  local function stamp()
    stamps = stamps + 1
    return format('%s%06d-%06d', now()[1], time[2], stamps)
  end
  local function enter(name, flow, at)
    local place = flow .. '/' .. at
    joined[#joined + 1], joined[#joined + 2] = '0', place .. '/' .. name
    if not has_turn[flow] then
      if not turn_of(flow) then set_turn(flow, virtual[tonumber(sub(flow, 1, 1))]) end
      has_turn[flow] = true
    end
    return place
  end
  local function write_joined()
    if #joined > 1 then try('ZADD', unpack(joined)) end
    joined = {line}
  end

  -- Return the time as the id of a lone command that comes now.
  function self.new_id() return format('%.0f-0', now()[1] * 1000 + math.floor(time[2] / 1000)) end

  -- Put an entity into the line, and return its record; `finish` writes its place. `head` is its next
  -- command, if there may be several classes; `message` a lone one, `activation` that which it had, `flow`
  -- its flow if that is known. Like `queue` this does not fail.
  function self.join(name, attempt, first, parts, head, message, activation, flow)
    local ms, count = match(activation or '', '^(%d+)-(%d+)$')
    local place = enter(name, flow or flow_of(parts, head or message),
      ms and format('%s000-%06d', ms, count) or stamp())
    return STATE.IN_LINE .. '|||' .. (message or '') .. '|' .. attempt .. '|' .. first .. '|' .. place
      .. (parts or '')
  end

  -- Return the id of the first command in a mailbox; nil if there is none.
  function self.head_of(box)
    local head = try('XRANGE', box, '-', '+', 'COUNT', 1)[1]
    return head and head[1]
  end

  -- Return whether an entity whose record says that it waits in the line has its place there.
  function self.has(name, place)
    write_joined()
    return try('ZSCORE', line, place .. '/' .. name) and turn_of(match(place, '^[^/]*')) and true
  end

  -- Return the parts of an idle entity's record with its first command.
  function self.parts_of(flow) return flow == '1' and '' or '|f=' .. flow .. '*1@' end

  local function split(record)
    if is_newer(record) then return nil end
    return match(record, '^([^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*|[^|]*)(.*)$')
  end

  -- Return the fields of a record whose entity waits in the line as another flow than before, and put it
  -- there.
  local function moved(fields, name, flow, at)
    local place = match(fields, '^q|.*|([^|]*)$')
    write_joined()
    try('ZREM', line, place .. '/' .. name)
    fields = sub(fields, 1, #fields - #place) .. enter(name, flow, at or match(place, '/(.*)$'))
    write_joined()
    return fields
  end

  -- Return the record with a command that came behind others. If it is of a higher class than the entity has,
  -- that moves forward; one that waits for a limit asks again, and its limit puts it behind its new like.
  -- `box` is its mailbox.
  function self.noted(record, name, flow, id, box)
    local fields, parts = split(record)
    if not fields then return record end
    local runs = match(parts, '|f=([^|]*)')
    if not runs and flow == '1' then return record end
    local noted = string.gsub(parts, '|f=[^|]*', '', 1) .. '|f=' .. with_run(runs or NORMAL_RUN, flow, id)
    local class, attempt, first = sub(flow, 1, 1), match(fields, '^l||||([^|]*)|([^|]*)|')
    if attempt and class < '2' then
      local head = self.head_of(box)
      if class < sub(flow_of(parts, head), 1, 1) then return self.join(name, attempt, first, noted, head) end
    end
    local in_line = match(fields, '^q|.*|([^|]*)$')
    if in_line and class < sub(in_line, 1, 1) then fields = moved(fields, name, flow_of(noted), stamp()) end
    return fields .. noted
  end

  -- Return the record without commands that were removed from the mailbox. If the entity is of a lower class
  -- then, or of another tenant, it waits as that: in the line since when it has waited there; one that waits
  -- for a limit asks again.
  function self.left(record, name, ids, box)
    local fields, parts = split(record)
    local runs = fields and match(parts, '|f=([^|]*)')
    if not runs then return record end
    local head, others, rest =
      self.head_of(box), without_ids(runs, ids), string.gsub(parts, '|f=[^|]*', '', 1)
    local remaining = others == '' and rest or rest .. '|f=' .. others
    local flow, attempt, first = flow_of(remaining, head), match(fields, '^l||||([^|]*)|([^|]*)|')
    if attempt and flow ~= flow_of(parts, head) then
      return self.join(name, attempt, first, remaining, head)
    end
    local in_line = match(fields, '^q|.*|([^|]*)$')
    if in_line and flow ~= match(in_line, '^[^/]*') then fields = moved(fields, name, flow) end
    return fields .. remaining
  end

  -- Charge starts that no activation was made for.
  function self.charge(parts, head, count)
    local flow = flow_of(parts, head)
    due[flow] = (due[flow] or 0) + count
  end

  -- Return how many activations the ready stream has that were not delivered.
  function self.undelivered()
    local pending, length = try('XPENDING', ready, 'workers'), try('XLEN', ready)
    return (type(length) == 'number' and length or 0) - (pending.err and 0 or tonumber(pending[1]))
  end

  -- Fill the ready stream up, and by `more` that are read next, and write what was charged: once, behind all
  -- that the script changes.
  function self.finish(more)
    write_joined()
    for flow, count in pairs(due) do pay(flow, count) end
    if try('ZCARD', line) ~= 0 then
      admit_first(math.min(self.most + (more or 0) - self.undelivered(), MOST_AT_ONCE))
    elseif try('XLEN', ready) == 0 then  -- none waits or runs: nothing to share
      try('DEL', turns)
      virtual[0], virtual[1], virtual[2] = 0, 0, 0
    end
    local least, write = math.min(used[0], used[1], used[2]), {'HSET', flows}
    for class = 0, 2 do
      for number, value in ipairs({used[class] - least, virtual[class], starts[class]}) do
        local text = format('%.0f', value)
        if values[3 * number - 2 + class] ~= text then
          write[#write + 1], write[#write + 2] = LETTERS[number] .. class, text
        end
      end
    end
    add_served(flows, now()[1], served, tonumber(values[11] or 0) or 0, write)
    if #write > 2 then try(unpack(write)) end
  end
  lined = self
  return self
end
