-- Apply a step to a record.

local note_end = nil
if publish then
  local event_of = {
    [VERB.COMPLETE] = 'completed', [VERB.REJECT] = 'rejected', [VERB.EXPIRE] = 'expired',
    [VERB.BURY] = 'dead_lettered', [VERB.PARK] = 'parked', [VERB.CANCEL] = 'cancelled',
    [VERB.SUSPEND] = 'suspended',
  }

  -- Note the event of a verb: without the ids of a command that is not signed as it should be, whose mark
  -- waits. Recovery settles without a lease of its own (an empty holder), so the command was interrupted
  -- first.
  function note_end(step, record, at)
    local verb, name, fence = step.verb, step.name, string.match(step.run, '^%d+')
    local entry = call('XRANGE', step.box, step.message, step.message)[1]
    local envelope = entry and envelope_in(fields_of(lone, name, entry[2])) or ''
    local attempt, worker = string.match(record, '^(%d+)|[^|]*|([^#|]*)', at)
    if fence .. '|' .. step.message ~= step.run then attempt = '1' end  -- behind the first of a run
    if step.holder == '' and verb ~= VERB.GIVE_BACK then
      note_event('interrupted', name, envelope, attempt, fence, worker, '')
    end
    local kind, detail = event_of[verb], ''
    if verb == VERB.WAIT then
      kind, detail = waits[step.why], step.delay .. (step.error ~= '' and ' ' .. step.error or '')
    elseif verb == VERB.GIVE_BACK then
      kind = step.counts == '1' and 'interrupted' or 'handed_back'
    elseif verb == VERB.SUSPEND then
      detail = step.ends
    elseif step.waiting then
      envelope = ''
    end
    note_event(kind, name, envelope, attempt, fence, worker, detail)
  end
end

-- Apply the verb. The record's attempt begins at `at`.
local function apply_verb(step, record, at)
  local has_parts = find(record, '=', at, true)
  local parts = has_parts and string.match(record, '^[^|]*|[^|]*|[^|]*(|.*)', at) or ''
  if parts ~= '' then parts = string.gsub(parts, '|started=[^|]*', '') end
  if step.members or find(parts, '|run=', 1, true) or find(parts, '|cap=', 1, true) then
    runs = runs or run_functions()
    parts = runs.ended(step, parts)
    if not parts then return 'gone' end
  end
  if publish and is_watched(step.name) then
    for _, member in ipairs(step.members or {}) do note_end(member, record, at) end
    note_end(step, record, at)
    if step.run_end then runs.note_rest(step) end
  end
  if step.unused and is_home and sub(record, at, -1):match('^%d+|%d') then
    local head = find(parts, '|w=', 1, true) and call('XRANGE', step.box, step.message, step.message)[1]
    local lines = head and open_lines().field_in(head[2], FIELD.LINES)
    limits.give_back(limits.scopes_of(step.name, lines and limits.of_others(lines, step.name)))
  end
  if settling[step.verb] then return settle(step, parts) end
  others = others or other_verbs()
  local attempt, first = string.match(record, '^(%d+)|([^|]*)|', at)
  if step.members then
    attempt, first = '1', now_text
    if step.states then call('HLEN', step.states) end
    trim(step, step.message)
    write_before(step)
  end
  local apply = others[step.verb] or others[VERB.GIVE_BACK]
  return apply(step, attempt, first, parts .. '|started=' .. step.message)
end

-- Answer a step whose command does not run under this lease: the mailbox is ready, the step was done before,
-- or the lease is not ours.
local function perform_by_record(step, record)
  local state, held_by, held_fence, held_message, attempt, first, held_for, parts = parse_record(record)
  if held_by ~= step.activation then return 'gone' end
  local verb, name = step.verb, step.name
  if state == STATE.READY then
    if verb == VERB.TAKE then
      local head = next_of(step)
      taken[#taken + 1] = step.activation
      return start(step, head, attempt, first, parts)
    elseif verb == VERB.GIVE_BACK and step.run == '' then
      return requeue(step, attempt, first, limits and step.holder ~= '' and answered(parts) or parts)
    elseif verb == VERB.WAIT_FOR_LIMIT then
      repeated[step.box] = true
      local head = publish and next_of(step)
      if head then note_event('limited', name, envelope_in(head[2]), attempt, '', owner, '') end
      release(step, STATE.LIMITED, attempt, first, limits and answered(parts) or parts)
      return 'wait'
    elseif settling[verb] and limits and is_limited(name) then
      -- Asked again: what follows it stands here until its limits are asked.
      repeated[step.box] = true
      local answer, body = start(step, next_of(step), attempt, first, parts)
      return find(answer, '|', 1, true) and answer .. '|again=1' or answer, body
    end
    return 'gone'
  end
  local runs = state == STATE.HELD or state == STATE.HELD_AND_CHANGED or state == STATE.LONE_HELD
  if not runs or held_for ~= step.holder then return 'gone' end
  local head = state == STATE.LONE_HELD and {held_message, {FIELD.IN_LONE}}
    or call('XRANGE', step.box, held_message, held_message)[1]
  if not head then return 'gone' end
  local place = limits and place_of(name) or ''
  return format('%s|%s|%s|%s%s|again=1', held_fence, held_message, attempt, first, parts .. place),
    body_of('', fields_of(lone, name, head[2]))
end

-- Perform a step of the holder of a lone command, if that can stay one: it starts, is suspended, or is
-- settled. Return nil if it has to be lined up.
local function perform_alone(step, record, at)
  local verb, activation = step.verb, step.activation
  if any_paused or publish or (limits and verb == VERB.TAKE and would_wait(step)) then return nil end
  if settling[verb] or (verb == VERB.SUSPEND and not limits) then return apply_verb(step, record, at) end
  if verb ~= VERB.TAKE or step.follow ~= FOLLOW.STAY then return nil end
  local id, since, parts = activation, '0', ''
  if record ~= STATE.LONE .. '|' .. activation .. '|||0|0|' then
    local state, held_by, _, message, attempt, first, _, further_parts = parse_record(record)
    if state ~= STATE.LONE or held_by ~= activation or attempt ~= '0' then return nil end
    if first == '0' and not queue_up or first ~= '0' and limits then return nil end
    id, since, parts = message ~= '' and message or id, first, further_parts
  end
  taken[#taken + 1] = activation
  return start(step, {id, {FIELD.ENVELOPE, alone[step.name]}, STATE.LONE_HELD}, 0, since, parts)
end

-- Perform a step. The two usual cases compare the record without parsing it, which costs more; where it has
-- parts, a take parses it.
local function perform(step)
  local name, verb, activation = step.name, step.verb, step.activation
  local record = records[name]
  if not record then return 'gone' end
  if alone[name] then
    local ours = '|' .. activation .. '|' .. step.run .. '|'
    if find(record, ours, 2, true) == 2 and (step.message or not settling[verb]) then
      local answer, body = perform_alone(step, record, #ours + 2)
      if answer then return answer, body end
      local lined_up, fault = line_up(active, step.box, name, record)
      if fault then error(fault, 0) end
      alone[name], records[name], record = nil, lined_up, lined_up
    end
  end
  if step.message and verb ~= VERB.TAKE then
    local ours, state = '|' .. activation .. '|' .. step.run .. '|', byte(record)
    if (state == HELD or state == HELD_AND_CHANGED) and find(record, ours, 2, true) == 2 then
      if state == HELD_AND_CHANGED then step.ahead, repeated[step.box] = nil, true end
      if verb ~= VERB.EXTEND then return apply_verb(step, record, #ours + 2) end
      runs = runs or run_functions()
      local answer = runs.extend(step, record)
      if answer then return answer end
    end
  elseif verb == VERB.TAKE and record == STATE.READY .. '|' .. activation .. '|||0|0|' then
    local head = next_of(step)
    taken[#taken + 1] = activation
    return start(step, head, 0, '0', '')
  end
  return perform_by_record(step, record)
end

local publish_events = nil

if publish then
  -- Publish the events of a step if it has succeeded.
  function publish_events(done)
    if done then
      for _, event in ipairs(events) do
        if event[1] == 'dead_lettered' or event[1] == 'parked' then event[7] = table.remove(letter_ids, 1) end
        publish(unpack(event))
      end
    end
    events, letter_ids = {}, {}
  end
end

return perform, publish_events
end

local perform, publish_events, is_plain = nil, nil, not (is_special or queue_up)
local answers = {now_text}
for number, step in ipairs(steps) do
  local name, activation, at = step.name, step.activation, 2 * number
  -- What an idle worker does for a lone command needs nothing of all that.
  if is_plain and alone[name] and records[name] == STATE.LONE .. '|' .. activation .. '|||0|0|'
      and step.verb == VERB.TAKE then
    local running = next_fence() .. '|' .. activation .. '|1|' .. now_text
    records[name] = STATE.LONE_HELD .. '|' .. activation .. '|' .. running .. '|' .. step.holder
    changed[name], started, taken[#taken + 1] = true, started + 1, activation
    answers[at], answers[at + 1] = running, alone[name]
  else
    if not perform then perform, publish_events = performing() end
    local done, answer, body = pcall(perform, step)
    if publish then publish_events(done) end
    if done then
      answers[at], answers[at + 1] = answer, body or false
    else
      answers[at], answers[at + 1] = 'error', type(answer) == 'table' and answer.err or tostring(answer)
    end
  end
end
