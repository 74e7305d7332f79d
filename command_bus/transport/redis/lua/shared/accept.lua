-- accept: accept the commands of a batch into their mailboxes, in order. Uses record, lone, holds, line,
-- admission, postpone, envelope_id, events.
--
-- A batch is a table:
--
-- ready, active, stats, due, delayed, later, paused, watched, arrivals, lone, flows, turns, line    keys
-- first_box  number of the key before the mailboxes
-- names      of the mailboxes; all else of a mailbox goes by its number there, too
-- room       commands that each may hold
-- suspects   how many of the mailboxes, from the first, may be full
-- many       how many commands of each the batch has
-- limit      of commands in the shard, as `limits_in` takes it
-- flow_of    a function that returns the flow of a command by its number
-- unique     what `open_unique` returns, if commands have unique keys
-- several    what `open_several` returns, if commands stand in several lines
--
-- `open_batch` adds: records, of `active`; refused, mailboxes of which a command was refused; publish, nil if
-- nothing is watched; folded, a number of commands; and three functions. A command with a unique key is a
-- table there, see shared/unique_line.lua; nil is one without.
--
-- usual    put a command that has nothing but its envelope into its mailbox: judge and accept at once, where
--          nothing in the batch or the shard asks for more, else nil. Return its admission, nil where `judge`
--          has to say why there is none; or nil and the error, as `accept`
-- judge    return why a command is not accepted, or nil; nothing is written. `others` are the numbers of the
--          further mailboxes in which it stands, nil if there are none (see shared/several.lua)
-- accept   put a command into its mailboxes, or keep it until then; return its admission, or nil and the
--          error of the whole batch: at the memory limit its first write fails
-- finish   write what mailboxes have become, and count; return how many were accepted, and superseded others
local function open_batch(batch)
  local call, try, format = redis.call, redis.pcall, string.format
  local active, stats, delayed, later, paused, flows =
    batch.active, batch.stats, batch.delayed, batch.later, batch.paused, batch.flows
  local first_box, names, room, flow_of = batch.first_box, batch.names, batch.room, batch.flow_of
  local drained, held, refused, is_kept, is_held, queue_up = {}, {}, {}, false, false, nil
  local accepted, superseded, places = 0, 0, 0
  if call('EXISTS', later, paused, batch.watched, flows) > 0 then
    is_kept, is_held = call('EXISTS', later) == 1, call('EXISTS', paused) == 1
    if call('EXISTS', batch.watched) == 1 then batch.publish = publisher(batch.watched, batch.arrivals) end
    queue_up = call('EXISTS', flows) == 1
      and open_line(batch.ready, active, flows, batch.turns, batch.line) or nil
  end
  local publish = batch.publish

  local records = #names > 0 and call('HMGET', active, unpack(names)) or {}
  for box = 1, batch.suspects do
    if records[box] then  -- an idle one is empty
      local length = try('XLEN', KEYS[first_box + box])
      room[box] = type(length) == 'number' and room[box] - length - (is_lone(records[box]) and 1 or 0)
    end
    if is_kept and room[box] then room[box] = room[box] - (tonumber(call('HGET', later, names[box])) or 0) end
  end
  if is_held then
    for box, name in ipairs(names) do held[box], drained[box] = holds_of(paused, name) end
  end
  local limit, newcomers = limits_in(batch.limit, active)
  local free = limit - (tonumber(call('HGET', stats, 'depth')) or 0)
  local put, spoiled, write = mailbox_writer(batch.ready, active, batch.lone, first_box, names, records, held,
    batch.many, queue_up)
  batch.records, batch.refused, batch.folded = records, refused, 0

  local function judge(box, command)
    if drained[box] then return ADMISSION.DRAINING end
    if refused[box] then return ADMISSION.PREDECESSOR_REFUSED end
    if command and batch.unique.folds(box, command) then return ADMISSION.FOLDED end
    local need = command and command.replaced and 0 or 1  -- the place of the one that it replaces
    if room[box] < need then return ADMISSION.ENTITY_FULL end
    if free < need then return ADMISSION.TOTAL_FULL end
    if newcomers and newcomers < 1 and not records[box] then return ADMISSION.TOO_MANY_ENTITIES end
    if command and command.mode == MODE.LATEST and batch.unique.may_not_replace(box) then
      return ADMISSION.MAY_NOT_REPLACE
    end
  end

  function batch.judge(box, command, others)
    local refusal, idle = judge(box, command), records[box] and 0 or 1
    for _, other in ipairs(others or {}) do
      refusal = refusal or (not room[other] and ADMISSION.WRONG_TYPE) or judge(other)
      idle = idle + (records[other] and 0 or 1)
    end
    if refusal or not others then return refusal end
    if free <= #others then return ADMISSION.TOTAL_FULL end
    return newcomers and newcomers < idle and ADMISSION.TOO_MANY_ENTITIES or nil
  end

  -- Put a command into its mailbox, and its places into the others. Return as `put`; if one takes nothing,
  -- reactivate.lua takes the places before it out.
  local function put_all(box, envelope, flow, others)
    if not others then return put(box, envelope, flow) end
    local text, becomes, several = '', nil, batch.several
    for _, other in ipairs(others) do
      if records[other] then becomes = several.of_home end
      local fault, id = put(other, several.place, flow, FIELD.HOME, names[box], several.of_place)
      if fault then return fault end
      text = text .. names[other] .. '=' .. id .. ' '
    end
    return put(box, envelope, flow, FIELD.LINES, text, becomes)
  end

  -- Return the admission of a command whose mailbox took nothing; nil and the error at the memory limit.
  local function failed(box, fault)
    if not spoiled(box, fault) and accepted == 0 then return nil, fault end
    room[box] = false
    return ADMISSION.WRONG_TYPE
  end

  local streams, many = {}, batch.many  -- of mailboxes that have a record, and in which no lone one is
  local function usual(box, envelope)
    local space, stream, fault = room[box], streams[box], nil
    if free < 1 or space < 1 or refused[box] then return nil end
    if stream then
      local added = try('XADD', stream, '*', FIELD.ENVELOPE, envelope)
      fault = type(added) == 'table' and added
    else
      fault = put(box, envelope)
    end
    if fault then return failed(box, fault) end
    if not stream and many[box] > 1 then streams[box] = KEYS[first_box + box] end
    accepted, free, room[box] = accepted + 1, free - 1, space - 1
    return '+'
  end
  if not (is_kept or is_held or publish or queue_up or newcomers) then batch.usual = usual end

  -- Keep a command until it takes its place, or put it there. Return the error if its mailbox takes nothing;
  -- then its place, d while it is kept, and until when.
  local function stand(box, envelope, id, flow, delay, key, others)
    local at, lines = waits_until(batch.due, delayed, later, names[box], id, delay), others and '' or nil
    for _, other in ipairs(others or {}) do lines = lines .. names[other] .. '= ' end
    if others and delay == 0 then at = stands_until(batch.due, delayed, later, names[box], id, lines, at) end
    if not at then return put_all(box, envelope, flow, others) end
    if key or others then envelope = '\193e:' .. #envelope .. ':' .. envelope end
    if key then envelope = envelope .. 'u:' .. #key .. ':' .. key end
    if others then envelope = envelope .. 'w:' .. #lines .. ':' .. lines end
    return postpone(batch.ready, batch.due, delayed, later, KEYS[first_box + box], names[box], id, at,
      with_flow(envelope, flow), lines), PLACE.DELAYED, at
  end

  function batch.accept(box, i, envelope, id, delay, command, others)
    local idle, fault, place, at = records[box] and 0 or 1, nil, nil, nil
    for _, other in ipairs(others or {}) do idle = idle + (records[other] and 0 or 1) end
    if command then id, delay = command.id, batch.unique.delay_of(command) end
    if delay ~= 0 or is_kept then
      local key = command and command.key
      fault, place, at = stand(box, envelope, id or id_in(envelope), flow_of(i), delay, key, others)
    else
      fault, place = put_all(box, envelope, queue_up and flow_of(i), others)
    end
    if fault then return failed(box, fault) end
    accepted = accepted + 1
    if newcomers and records[box] then newcomers = newcomers - idle end
    for _, other in ipairs(others or {}) do room[other] = room[other] - 1 end
    if others and not at then places, free = places + #others, free - #others end
    if command then batch.unique.hold(command, place, at) end
    if publish then
      publish('accepted', names[box], envelope, '', '', '',
        at and at > now_ms() and format('%.0f', at - now_ms()) or '')
    end
    if command and command.replaced and batch.unique.replace(box, command) then
      superseded = superseded + 1
      return ADMISSION.REPLACED
    end
    room[box], free = room[box] - 1, free - 1
    return '+'
  end

  -- A counter that cannot grow must not cost the answer.
  function batch.finish()
    write()
    if batch.unique then batch.unique.finish() end
    if accepted > 0 then
      try('HINCRBY', stats, 'depth', accepted + places - superseded)
      try('HINCRBY', stats, 'accepted', accepted)
    end
    if superseded > 0 then try('HINCRBY', stats, 'superseded', superseded) end
    if batch.folded > 0 then try('HINCRBY', stats, 'folded', batch.folded) end
    return accepted, superseded
  end
end
