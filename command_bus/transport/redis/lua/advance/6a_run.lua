-- A run: neighbours of one entity that one call of a handler takes. The first is started as any command; then
-- the run is extended over those behind it. Parts of the record:
--
-- run     <last>:<count>: the command that runs and those behind it, to this one, run. It is there while the
--         mailbox is held
-- begun   <last>: those to this one were in a run that has ended without them, and may have run: none ends as
--         one that never ran, and its deadline no longer counts
-- cap     most commands of the next run; it is halved where a worker is lost, so that one which kills its
--         worker runs alone in the end, and doubled by each run that settles something
--
-- A step that ends a run names those that were settled before its own command (see LEFT.RUN), and the part
-- `run` as its worker knows it: after a failover the record may not have it.

local MOST_IN_RUN, runs = 256, nil

-- Return what runs need. They are seldom in use, and each function costs time.
local function run_functions()
  -- Let those behind the command that runs to another one run with it. If something was removed there,
  -- nothing is changed, and nil is returned.
  local function extend(step, record)
    local part = '|run=' .. step.last .. ':' .. step.count
    if byte(record) == HELD_AND_CHANGED then return nil end
    if find(record, part, 1, true) then return 'run' end  -- a repeated step
    local more, name = step.count - 1, step.name
    set_record(name, string.gsub(record, '|run=[^|]*', '') .. part)
    started = started + more
    if queue_up then queue_up.charge(string.match(record, '^' .. string.rep('[^|]*|', 6) .. '[^|]*(.*)$'),
      step.message, more) end
    if publish and is_watched(name) then
      local fence = string.match(step.run, '^%d+')
      for _, entry in ipairs(call('XRANGE', step.box, '(' .. step.message, step.last)) do
        note_event('started', name, envelope_in(entry[2]), 1, fence, owner, '')
      end
    end
    return 'run'
  end

  -- Return the parts of a record whose run a step ends, or that has a cap; nil if it is not the run that the
  -- step is of.
  local function ended(step, parts)
    local run, last, count = string.match(parts, '|run=(([^|:]*):(%d+))')
    if step.members and step.run_part ~= run then return nil end
    local cap = tonumber(string.match(parts, '|cap=(%d+)'))
    if step.members or settling[step.verb] then cap = cap and cap * 2 end
    if run and step.verb == VERB.GIVE_BACK and step.counts == '1' then
      cap, step.is_shared = step.holder == '' and math.max(math.floor(count / 2), 1) or 1, true
    end
    parts = string.gsub(parts, '|cap=%d+', '')
    if cap and cap < MOST_IN_RUN then parts = parts .. '|cap=' .. format('%d', cap) end
    if not run then return parts end
    step.run_end = last
    local begun = string.match(parts, '|begun=([^|]*)')
    if begun and is_behind(begun, last) then last = begun end
    parts = string.gsub(string.gsub(parts, '|run=[^|]*', ''), '|begun=[^|]*', '')
    return (step.members and own_parts(parts) or parts) .. '|begun=' .. last
  end

  -- Note that those of a run that a step leaves are given back.
  local function note_rest(step)
    local fence = string.match(step.run, '^%d+')
    for _, entry in ipairs(call('XRANGE', step.box, '(' .. step.message, step.run_end)) do
      note_event('handed_back', step.name, envelope_in(entry[2]), 1, fence, owner, '')
    end
  end

  return {extend = extend, ended = ended, note_rest = note_rest}
end
