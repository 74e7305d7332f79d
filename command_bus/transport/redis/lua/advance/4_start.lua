-- How a step begins: what stands next in its mailbox, and whether another waits.

local events, letter_ids = {}, {}

local function note_event(...) events[#events + 1] = {...} end

-- Return the first command of a mailbox, or the one behind `settles`; without its fields if it was read
-- ahead. Raises if the mailbox is no stream.
local function next_of(step, settles)
  local box = step.box
  if settles and step.ahead and not publish then return {step.ahead} end
  if heads and not repeated[box] then return heads[box] end
  local head = call('XRANGE', box, settles and '(' .. settles or '-', '+', 'COUNT', 1)[1]
  if head then head[2] = fields_of(lone, step.name, head[2]) end
  return head
end

local function envelope_in(fields)
  for i = 1, #fields, 2 do
    if fields[i] == FIELD.ENVELOPE then return fields[i + 1] end
  end
  return ''
end

-- Return what the answer has of a command: its envelope, or all its fields; behind the envelope those that
-- were read with it.
local function body_of(box, fields)
  if not fields then return false end
  local envelope = #fields == 2 and fields[1] == FIELD.ENVELOPE and fields[2]
  local entries = not repeated[box] and further[box]
  if not envelope or not entries then return envelope or fields end
  local more, size = {}, #envelope
  for i = 2, #entries do
    local entry = entries[i][2]
    size = size + #(entry[2] or '')
    if #entry ~= 2 or entry[1] ~= FIELD.ENVELOPE or size > AHEAD_BYTES then break end
    more[2 * i - 3], more[2 * i - 2] = entries[i][1], entry[2]
  end
  return {envelope, more}
end

local function another_waits(name)
  return limits and is_place_wanted(name) or does_another_wait()
end

-- Remove what is settled: all before the first command that is not. Raises if this user may not: then the
-- lease must not end, or settled commands would start again. A key of another type holds none.
local function trim(step, oldest)
  local trimmed = try('XTRIM', step.box, 'MINID', '=', oldest)
  if type(trimmed) == 'table' and not find(trimmed.err, 'WRONGTYPE', 1, true) then error(trimmed, 0) end
end

-- Return whether a mailbox is given up although it has a next command.
local function ends_lease(step)
  if any_paused and holds_of(paused, step.name) then return true end
  local follow = step.follow
  if follow == FOLLOW.LEAVE or (follow == FOLLOW.YIELD and another_waits(step.name)) then return true end
  return limits and limit_verdict(step)
end

-- The states that a mailbox can enter. Each sets its record and returns the answer to the step, and what the
-- answer has of the command.

local function set_record(name, record)
  records[name] = record
  changed[name] = true
end

local function release(step, state, attempt, first, parts)
  released[#released + 1] = step.activation
  set_record(step.name, pack_record(state, '', attempt, first, parts))
end

local function requeue(step, attempt, first, parts, head)
  released[#released + 1] = step.activation
  set_record(step.name, queue(ready, step.name, attempt, first, parts, head))
  return 'yield'
end

local refuse, answered = nil, nil
local SUSPECT = 3  -- asks without an answer: workers seem to die of what they read for it

if limits then
  -- Return the parts of a record whose limits were asked by a worker that has lived to hear the answer.
  function answered(parts)
    local asks = tonumber(string.match(parts, '|ask=(%d+)'))
    return asks and asks <= SUSPECT and string.gsub(parts, '|ask=%d+', '') or parts
  end

  -- Let a command wait for a limit: in its entity's place, or with its lease until its worker has asked.
  function refuse(step, head, attempt, first, parts, refused, others)
    local name, activation = step.name, step.activation
    if refused == 'ask' then
      local id = head[3] and head[1] ~= activation and head[1] or ''  -- of a lone one that was in the line
      -- Who takes over a lone one lines it up.
      local asks = head[3] and 0 or (tonumber(string.match(parts, '|ask=(%d+)')) or 0) + 1
      if not head[3] then parts = string.gsub(parts, '|ask=%d+', '') .. '|ask=' .. asks end
      set_record(name, (head[3] and STATE.LONE or STATE.READY) .. '|' .. activation .. '||' .. id .. '|'
        .. attempt .. '|' .. first .. '|' .. parts)
      local is_due = tonumber(attempt) == 0 and sub(first, 1, 1) ~= '-'
      local body = {
        head[1], body_of('', head[2]), is_paid(parts, head) and '1' or '', named_flow(parts, head) or '',
        is_due and '1' or '', asks > SUSPECT and '1' or '', others,
      }
      return 'ask', body
    end
    if publish then note_event('limited', name, envelope_in(head[2]), attempt, '', owner, refused) end
    release(step, STATE.LIMITED, attempt, first, parts)
    return 'wait'
  end
end

local several = nil

-- Return what moves the places of commands that stand in several lines.
local function open_lines()
  local keys = {ready = ready, active = active, lone = lone, paused = any_paused and paused}
  function keys.left(box) repeated[box] = true end  -- its head was read before the first step
  several = several or open_several(keys,
    function(other)
      if records[other] == nil then records[other] = call('HGET', active, other) end
      return records[other]
    end,
    function(other, record, box)
      set_record(other, record)
      if not record then emptied[#emptied + 1] = box end
    end)
  return several
end

-- Start a command under the lease of a step: the next one, or none; a lone one has a state behind its fields.
local function start(step, head, attempt, first, parts)
  local name, activation, follow, others = step.name, step.activation, step.follow, ''
  if not head then
    released[#released + 1] = activation
    if not alone[name] then emptied[#emptied + 1] = step.box end
    set_record(name, false)
    return 'idle'
  end
  if any_paused and holds_of(paused, name) then
    release(step, STATE.STOPPED, attempt, first, parts)
    return 'stop'
  end
  if head[2] and #head[2] > 2 then
    local may_start, stands = open_lines().stand(head, name, step.box, attempt, first, parts)
    if not may_start then
      released[#released + 1] = activation
      set_record(name, stands)
      return 'wait'
    end
    parts = stands
    local lines = limits and open_lines().field_in(head[2], FIELD.LINES)
    if lines then others = limits.of_others(lines, name) end
  end
  if follow == FOLLOW.LEAVE or (follow == FOLLOW.YIELD and another_waits(name)) then
    return requeue(step, attempt, first, parts, head[1])
  end
  local refused = limits and check_limits(step, head, parts, others)
  if refused then return refuse(step, head, attempt, first, parts, refused, others) end
  started = started + 1
  if queue_up and step.verb ~= VERB.TAKE then queue_up.charge(parts, head[1], 1) end
  if parts ~= '' then
    parts = string.gsub(parts, '|paid=[^|]*', '')
    if limits then parts = answered(parts) end
    if find(parts, '|begun=', 1, true) then
      if not may_have_run(head[1], parts) then
        parts = string.gsub(parts, '|begun=[^|]*', '')
      elseif byte(first) ~= BELOW_ZERO then
        first = '-' .. (first == '0' and now_text or first)
      end
    end
  end
  if first == '0' then first = now_text end
  local running = next_fence() .. '|' .. head[1] .. '|' .. attempt + 1 .. '|' .. first
  -- A record, packed in place: this runs for each command.
  set_record(name,
    (head[3] or STATE.HELD) .. '|' .. activation .. '|' .. running .. '|' .. step.holder .. parts)
  if publish then
    local fence = string.match(running, '^%d+')
    note_event('started', name, envelope_in(head[2]), attempt + 1, fence, owner, '')
  end
  return running .. parts .. (limits and place_of(name) or ''), body_of(step.box, head[2])
end
