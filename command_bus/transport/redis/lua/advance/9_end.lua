-- What all steps share, and the counters.

if limits and is_home then end_limits() end
if queue_up then queue_up.finish() end
expire_outcomes(now)
for inbox in pairs(touched) do try('PEXPIRE', inbox, reply_ttl) end
if #taken > 0 then
  local claim = {'XCLAIM', ready, group, owner, '0'}
  for i = 1, #taken do claim[5 + i] = taken[i] end
  -- A renewal sequence that nothing else writes.
  for _, word in ipairs({'RETRYCOUNT', '0', 'JUSTID'}) do claim[#claim + 1] = word end
  try(unpack(claim))  -- the group may be gone: what has started has started
end
if started > 0 then keep_fence() end
if settled > 0 then
  try('HINCRBY', stats, 'depth', -settled - freed)
  try('HINCRBY', stats, 'settled', settled)
end
for name, count in pairs(counts) do
  if count > 0 then try('HINCRBY', stats, name, count) end
end
answers[2 * count + 2] = usual
return answers
