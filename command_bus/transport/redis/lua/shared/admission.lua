-- admission: put commands into mailboxes. Uses record, lone, alone, line.

-- Return the limit of commands in a text, and how many mailboxes more may have work. The text is `commands`,
-- or `commands:mailboxes` where their number is limited, too; else the second is nil.
local function limits_in(text, active)
  local limit = tonumber(text)
  if limit then return limit, nil end
  local commands, mailboxes = string.match(text, '^(%d+):(%d+)$')
  return tonumber(commands), tonumber(mailboxes) - redis.call('HLEN', active)
end

-- Return a function that returns the flow of a command by its number. The text has the flows, each with a
-- space, and a colon; then two bytes for each command: the number of its flow, 0 for none. It is empty if no
-- command has a class or a tenant; else this puts the line into use.
local function flow_reader(text, flows)
  if text == '' then return function() return '1' end end
  local colon, names = string.find(text, ':', 1, true), {}
  for flow in string.gmatch(string.sub(text, 1, colon), '(%S+) ') do names[#names + 1] = flow end
  if redis.call('EXISTS', flows) == 0 then redis.call('HSET', flows, 'c0', '0') end
  return function(i)
    local high, low = string.byte(text, colon + 2 * i - 1, colon + 2 * i)
    return names[256 * high + low] or '1'
  end
end

-- Return two functions and a third that ends the batch. `put` adds a command to a mailbox and activates that
-- if it was idle; it returns the error, if there is one, else nil and the command's id in the mailbox, which
-- a lone one has not. `spoiled` returns whether an error concerns one mailbox, not the server; a mailbox
-- whose ids are used up is activated, because the worker that empties it deletes it with its ids. `finish`
-- writes what mailboxes have become.
--
-- Mailboxes go by their number in `names`. `records` are those of `active`, `held` has those that start
-- nothing, `many` how many commands of each the batch has: the only one of an idle entity stays a lone one.
-- `queue_up` is the line, if it is in use; then `put` also takes the flow of the command. It may take a
-- further field of the entry, and a function that returns the record of an idle mailbox: see `of_place` in
-- shared/several.lua.
local function mailbox_writer(ready, active, lone, first_box, names, records, held, many, queue_up)
  local changed, envelopes, alone, idle, noted = {active}, {lone}, {}, {}, {}
  local told = nil  -- ms of an activation that tells the time
  local has_lined = false  -- an envelope was written

  local function enter(box, record)
    records[box] = record
    changed[#changed + 1] = names[box]
    changed[#changed + 1] = record
  end
  local function activate(box, activation, parts, place)
    if records[box] then return end
    local queued = place or activation and pack_record(STATE.READY, activation, '0', '0')
    enter(box, queued or (held[box] and pack_record(STATE.STOPPED, '', '0', '0', parts)
      or queue(ready, names[box], '0', '0', parts)))
  end

  -- A key that stands where the stream would (of another type, or with commands whose record was lost) is not
  -- passed over.
  for box = 1, #names do
    if many[box] == 1 and not records[box] and not held[box] then
      alone[box], idle[#idle + 1] = true, KEYS[first_box + box]
    end
  end
  if #idle > 0
      and (type(redis.pcall('HLEN', lone)) ~= 'number' or redis.call('EXISTS', unpack(idle)) > 0) then
    alone = {}
  end

  -- Let an idle entity's only command wait in the line; return nil if it cannot. The first one finds out:
  -- behind a write none fails.
  local function line_alone(box, envelope, flow)
    if not has_lined and type(redis.pcall('HSET', lone, names[box], envelope)) ~= 'number' then return nil end
    if has_lined then envelopes[#envelopes + 1], envelopes[#envelopes + 2] = names[box], envelope end
    has_lined = true
    local id = queue_up.new_id()
    enter(box, queue_up.join(names[box], '0', '0', queue_up.parts_of(flow), nil, id, nil, flow))
    return true
  end

  local function put(box, envelope, flow, field, value, becomes)
    local activation = nil
    if queue_up and alone[box] and #envelope <= LONE_BYTES and line_alone(box, envelope, flow) then return end
    if not queue_up and alone[box] and #envelope <= LONE_BYTES then
      local added = redis.pcall('XADD', ready, '*', FIELD.ENVELOPE, names[box])
      activation = type(added) == 'string' and added
      local ms = activation and string.match(activation, '^%d+')
      if activation and (ms == told or tells_time(activation)) then
        told = ms
        envelopes[#envelopes + 1], envelopes[#envelopes + 2] = names[box], envelope
        enter(box, pack_record(STATE.LONE, activation, '0', '0'))
        return
      end
    end
    if is_lone(records[box]) then
      local record, fault = line_up(active, KEYS[first_box + box], names[box], records[box])
      if fault then return fault end
      records[box] = record
    end
    local added = field
      and redis.pcall('XADD', KEYS[first_box + box], '*', FIELD.ENVELOPE, envelope, field, value)
      or redis.pcall('XADD', KEYS[first_box + box], '*', FIELD.ENVELOPE, envelope)
    if type(added) == 'table' then return added end
    if queue_up and records[box] then
      records[box], noted[box] =
        queue_up.noted(records[box], names[box], flow, added, KEYS[first_box + box]), true
    else
      local parts = queue_up and queue_up.parts_of(flow) or nil
      activate(box, activation, parts, becomes and becomes(held[box], added, value, parts))
    end
    return nil, added
  end
  local function spoiled(box, fault)
    if string.find(tostring(fault.err), ' ID', 1, true) then
      activate(box)
      return true
    end
    return string.find(tostring(fault.err), 'WRONGTYPE', 1, true)
  end
  local function finish()
    for box in pairs(noted) do enter(box, records[box]) end
    if #changed > 1 then redis.call('HSET', unpack(changed)) end
    if #envelopes > 1 then redis.call('HSET', unpack(envelopes)) end
    if queue_up then queue_up.finish() end
  end
  return put, spoiled, finish
end

