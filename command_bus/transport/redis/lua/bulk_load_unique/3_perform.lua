-- Perform the commands in their order.

local admissions = {}
for i = 1, count do
  local at = head + stride * (i - 1)
  local box, check = tonumber(ARGV[at + 1]), sub(checks, 4 * i - 3, 4 * i)
  local before = known[i] or seen[asked[i]]
  local admission, fault
  if before then
    admission = before == check and '=' or '!'
    repeated = repeated + 1
  elseif not room[box] then
    admission = ADMISSION.TAKES_NOTHING
  elseif drained[box] then
    admission = ADMISSION.DRAINED
  elseif refused[box] then
    admission = ADMISSION.EARLIER_REFUSED
  elseif sequenced and tonumber(ARGV[at + 4]) <= numbers[ARGV[at + 5]] then
    admission = ADMISSION.STALE
  else
    admission, fault = decide(box, at, i, check)
    if fault then return fault end  -- at the memory limit: this would have been the first write
    if string.find('etnx', admission, 1, true) then refused[box] = true end
  end
  admissions[i] = admission
end

finish()
expire_outcomes()
note_entities(homes, fresh, last, reached, ARGV[5])
if accepted + folded > 0 then call('PEXPIRE', ids, ARGV[5]) end
if accepted > 0 then
  -- A counter that cannot grow must not cost the answer.
  redis.pcall('HINCRBY', stats, 'depth', accepted - superseded)
  redis.pcall('HINCRBY', stats, 'accepted', accepted)
  redis.pcall('HINCRBY', record, 'added', accepted)
end
if superseded > 0 then
  redis.pcall('HINCRBY', stats, 'superseded', superseded)
  redis.pcall('HINCRBY', record, 'replaced', superseded)
end
if folded > 0 then
  redis.pcall('HINCRBY', stats, 'folded', folded)
  redis.pcall('HINCRBY', record, 'folded', folded)
end
if repeated > 0 then redis.pcall('HINCRBY', record, 'duplicates', repeated) end
return table.concat(admissions) .. shared .. ' ' .. table.concat(others)
