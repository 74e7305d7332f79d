-- Apply the verb. The record's attempt begins at `at`.
local function apply_verb(step, verb, name, activation, follow, left, record, at)
  if publish and is_watched(name) then note_end(step, verb, name, left, record, at) end
  local parts = find(record, '=', at, true) and string.match(record, '^[^|]*|[^|]*|[^|]*(|.*)', at) or ''
  if parts ~= '' then parts = string.gsub(parts, '|started=[^|]*', '') end
  if left and left.unused and is_home and sub(record, at, -1):match('^%d+|%d') then limits.give_back(limits.scopes_of(name)) end
  if settling[verb] then return settle(step, verb, name, activation, holders[step], follow, left, parts) end
  if not park then make_other_verbs() end
  parts = parts .. '|started=' .. messages[step]
  local attempt, first = string.match(record, '^(%d+)|([^|]*)|', at)
  if verb == VERB.PARK then return park(step, name, left, attempt, first, parts) end
  if verb == VERB.WAIT then return wait(step, name, left[1], left[2], attempt, first, parts) end
  if verb == VERB.SUSPEND then return suspend(step, name, activation, left, parts, first) end
  return give_back(step, left[1], attempt, first, parts)
end

-- Answer a step whose command does not run under this lease: the mailbox is ready, the step was done before,
-- or the lease is not ours.
local function perform_by_record(step, verb, name, activation, follow, record)
  local state, held_by, held_fence, held_message, attempt, first, held_for, parts = parse_record(record)
  if held_by ~= activation then return 'gone' end
  if state == STATE.READY then
    if verb == VERB.TAKE then
      local head = next_of(step)
      taken[#taken + 1] = activation
      return start(step, name, activation, holders[step], head, attempt, first, follow, parts)
    elseif verb == VERB.GIVE_BACK and runs[step] == '' then
      return requeue(step, attempt, first, limits and holders[step] ~= '' and answered(parts) or parts)
    elseif verb == VERB.WAIT_FOR_LIMIT then
      repeated[KEYS[before + step]] = true
      local head = publish and next_of(step)
      if head then note_event('limited', name, envelope_in(head[2]), attempt, '', owner, '') end
      release(step, STATE.LIMITED, attempt, first, limits and answered(parts) or parts)
      return 'wait'
    elseif settling[verb] and limits and is_limited(name) then  -- asked again: what follows it stands here until its limits are asked
      repeated[KEYS[before + step]] = true
      return start(step, name, activation, holders[step], next_of(step), attempt, first, follow, parts)
    end
    return 'gone'
  end
  if not find(state, '^[hHO]$') or held_for ~= holders[step] then return 'gone' end
  local head = state == STATE.LONE_HELD and {held_message, {FIELD.IN_LONE}}
    or call('XRANGE', KEYS[before + step], held_message, held_message)[1]
  if not head then return 'gone' end
  bodies[step] = body_of('', fields_of(lone, name, head[2]))
  return format('%s|%s|%s|%s%s', held_fence, held_message, attempt, first,
    parts .. (limits and place_of(name) or ''))
end

-- Perform a step of the holder of a lone command, if that can stay one: it starts, is suspended, or is
-- settled. Return nil if it has to be lined up.
local function perform_alone(step, verb, name, activation, follow, record, at)
  if any_paused or publish or (limits and verb == VERB.TAKE and would_wait(step, name, activation)) then
    return nil
  end
  if settling[verb] or (verb == VERB.SUSPEND and not limits) then
    return apply_verb(step, verb, name, activation, follow, lefts[step], record, at)
  end
  if verb ~= VERB.TAKE or follow ~= FOLLOW.STAY then return nil end
  local id, since, parts = activation, '0', ''
  if record ~= 'o|' .. activation .. '|||0|0|' then
    local state, held_by, _, message, attempt, first, _, others = parse_record(record)
    if state ~= STATE.LONE or held_by ~= activation or attempt ~= '0' then return nil end
    if first == '0' and not queue_up or first ~= '0' and limits then return nil end
    id, since, parts = message ~= '' and message or id, first, others
  end
  taken[#taken + 1] = activation
  return start(step, name, activation, holders[step], {id, {FIELD.ENVELOPE, alone[name]}, STATE.LONE_HELD}, 0,
    since, follow, parts)
end

-- Perform a step. The two usual cases compare the record without parsing it, which costs more; where it has
-- parts, a take parses it.
local function perform(step, verb)
  local name, operation, activation = names[step], operations[step], activations[step]
  local record = records[name]
  if not record then return 'gone' end
  local follow = sub(operation, 2, 2)
  if alone[name] then
    local ours = '|' .. activation .. '|' .. runs[step] .. '|'
    if find(record, ours, 2, true) == 2 and (messages[step] or not settling[verb]) then
      local answer = perform_alone(step, verb, name, activation, follow, record, #ours + 2)
      if answer then return answer end
      local lined_up, fault = line_up(active, KEYS[before + step], name, record)
      if fault then error(fault, 0) end
      alone[name], records[name], record = nil, lined_up, lined_up
    end
  end
  if messages[step] and verb ~= VERB.TAKE then
    local ours, state = '|' .. activation .. '|' .. runs[step] .. '|', byte(record)
    if (state == HELD or state == HELD_AND_CHANGED) and find(record, ours, 2, true) == 2 then
      if state == HELD_AND_CHANGED then nexts[step], repeated[KEYS[before + step]] = nil, true end
      return apply_verb(step, verb, name, activation, follow, lefts[step], record, #ours + 2)
    end
  elseif verb == VERB.TAKE and record == 'r|' .. activation .. '|||0|0|' then
    local head = next_of(step)
    taken[#taken + 1] = activation
    return start(step, name, activation, holders[step], head, 0, '0', follow, '')
  end
  return perform_by_record(step, verb, name, activation, follow, record)
end

local publish_events = nil

if publish then
  -- Publish the events of a step if it has succeeded.
  function publish_events(done)
    if done then
      for _, event in ipairs(events) do
        if event[1] == 'dead_lettered' or event[1] == 'parked' then event[7] = letter_id end
        publish(unpack(event))
      end
    end
    events = {}
  end
end

return perform, publish_events
end

local perform, publish_events = performing()
local answers = {now_text}
for step = 1, steps do
  local done, answer = pcall(perform, step, verbs[step])
  if publish then publish_events(done) end
  if done then
    answers[2 * step], answers[2 * step + 1] = answer, bodies[step] or false
  else
    answers[2 * step], answers[2 * step + 1] =
      'error', type(answer) == 'table' and answer.err or tostring(answer)
  end
end
