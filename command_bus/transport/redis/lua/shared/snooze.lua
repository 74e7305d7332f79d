-- snooze: the part `z` of a mailbox's record: |z=<count>:<message>:<first start in ms>:<1 or 0>. It says how
-- often this message, the mailbox's oldest, was put off by its handler, when it truly was first started, and
-- whether that is what its entity waits for (state w). Of another message it says nothing: a script of
-- another release may have left it.
--
-- A command that is put off has run, and so has one that is suspended or parked (its count is 0 if it never
-- was put off). So the record's first start becomes the time of its wake, below zero: its deadline no longer
-- counts, and a worker that does not know it waits for a newer one from then on.

-- Return parts that say when a message was first started, whose record will not. It is replayed, and the
-- count of its snoozes begins again.
local function with_first(parts, message, first)
  local truly = string.match(parts, '|z=%d+:' .. string.gsub(message, '-', '%%-') .. ':(%d+)')
    or string.match(first, '%d+')
  return string.gsub(parts, '|z=[^|]*', '') .. '|z=0:' .. message .. ':' .. truly .. ':0'
end

-- Return parts without the snoozes of the message that was settled or removed.
local function without_snooze(parts)
  if not parts or parts == '' then return parts end
  return (string.gsub(parts, '|z=[^|]*', ''))
end

-- Return the first start of a mailbox's oldest command that is woken.
local function woken(first, parts)
  if first == '0' or not parts or not string.find(parts, '|z=%d+:[%d-]+:%d+:1') then return first end
  local time = redis.call('TIME')
  return '-' .. string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
