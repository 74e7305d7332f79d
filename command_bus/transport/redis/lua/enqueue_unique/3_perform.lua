-- Perform the commands in their order.

local admissions, others, refused, accepted, depth = {}, {}, {}, 0, 0
local folded, superseded = 0, 0
for i = 1, #standers do
  local at, key = head + (i - 1) * stride, first_box + #names + 5 * i - 4
  local box, mode, mark = tonumber(ARGV[at + 1]), ARGV[at + 6], KEYS[key]
  local admission = not room[box] and ADMISSION.TAKES_NOTHING
    or (ARGV[at + 3] ~= '' and known(mark, ARGV[at + 3])) or nil
  if not admission then
    -- The place of the one that it replaces.
    local need = mode == MODE.LATEST and states[i] == 'waits' and 0 or 1
    if drained[box] or refused[box] then
      admission = drained[box] and ADMISSION.DRAINED or ADMISSION.EARLIER_REFUSED
    elseif is_folded(mode, states[i], windows[i]) then
      admission, folded = ADMISSION.FOLDED, folded + 1
    elseif room[box] < need or free < need or (newcomers and newcomers < 1 and not records[box]) then
      admission = room[box] < need and ADMISSION.MAILBOX_FULL or free < need and ADMISSION.SHARD_FULL
        or ADMISSION.TOO_MANY_MAILBOXES
    elseif mode == MODE.LATEST and may_not_replace(KEYS[first_box + box]) then
      admission = ADMISSION.MAY_NOT_REPLACE
    else
      local fault
      local was_idle = not records[box]
      admission, fault = accept(box, i, at, key, accepted)
      if fault then return fault end  -- at the memory limit: this would have been the first write
      if admission ~= ADMISSION.TAKES_NOTHING then accepted = accepted + 1 end
      if newcomers and was_idle and records[box] then newcomers = newcomers - 1 end
      if admission == ADMISSION.REPLACED then superseded = superseded + 1 end
    end
    if string.find('dpetnx', admission, 1, true) then refused[box] = true end
  end
  admissions[i] = admission
  if admission == ADMISSION.FOLDED or admission == ADMISSION.REPLACED then
    local id = select(7, parse_stander(standers[i]))
    others[#others + 1] = #id .. ':' .. id
  end
end

local answer = table.concat(admissions) .. table.concat(others)
finish()
expire_outcomes()
if accepted > 0 then
  -- A counter that cannot grow must not cost the answer.
  redis.pcall('HINCRBY', stats, 'depth', accepted - superseded)
  redis.pcall('HINCRBY', stats, 'accepted', accepted)
end
if superseded > 0 then redis.pcall('HINCRBY', stats, 'superseded', superseded) end
if folded > 0 then redis.pcall('HINCRBY', stats, 'folded', folded) end
if accepted > 0 or folded > 0 or next(refused) then
  redis.pcall('SET', last, ARGV[1] .. ':' .. answer, 'PX', ARGV[3])
end
return answer
