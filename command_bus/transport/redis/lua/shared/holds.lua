-- holds: the hash `paused`: scope -> mode|since in ms|why. A scope is a mailbox's name, <entity type>:*,
-- @<subscription>:* or *; the mode is p (paused) or d (draining: new commands are refused, those that wait
-- are run).

-- Return whether a mailbox is paused, and whether it is drained. `paused` may be nil: there is no such hash.
local function holds_of(paused, name)
  local held, drained = false, false
  if not paused then return held, drained end
  local kind = string.match(name, '^[^:/]*')
  local delivered = (string.match(kind, '@.*') or kind) .. ':*'
  for _, value in ipairs(redis.call('HMGET', paused, name, kind .. ':*', delivered, '*')) do
    local draining = value and string.sub(value, 1, 2) == 'd|'
    held, drained = held or (value and not draining), drained or draining
  end
  return held, drained
end
