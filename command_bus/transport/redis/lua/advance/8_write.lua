-- Write what the steps came to.

local TRIMMED_TOGETHER = 4  -- of fewer entries each is deleted

-- Return whether an entry stands before another one, as far as their texts show it.
local function stands_before(id, other)
  return find(id, '-', 1, true) == find(other, '-', 1, true) and (#id == #other and id < other)
end

-- Delete the entries of what was released. All before the oldest pending entry is settled: one trim walks
-- over it once, while each deletion walks over all that was deleted before it.
local function delete_released()
  -- The group may be gone.
  local pending = #released >= TRIMMED_TOGETHER and try('XPENDING', ready, group, '-', '+', '1')[1]
  local others = {}
  for _, id in ipairs(released) do
    if not pending or not stands_before(id, pending[1]) then others[#others + 1] = id end
  end
  if #others < #released and type(try('XTRIM', ready, 'MINID', '=', pending[1])) ~= 'number' then
    others = released  -- not permitted
  end
  if #others > 0 then call('XDEL', ready, unpack(others)) end
end

-- Give the places of the leases back that have ended, and keep what limits have become.
local function end_limits()
  local over = {}
  for _, activation in ipairs(released) do over[activation] = true end
  for _, step in ipairs(steps) do
    local pass = over[step.activation] and limits.pass_of(step.name)
    if pass and (pass.kind == PASS.GRANT or pass.activation == step.activation) then
      limits.drop(step.name)
    end
  end
  limits.keep(ready, due)
end

for name in pairs(changed) do
  local record = records[name]
  if record then
    kept[#kept + 1], kept[#kept + 2] = name, record
  else
    closed[#closed + 1] = name
  end
end
if #released > 0 then
  call('XACK', ready, group, unpack(released))
  delete_released()
end
if #emptied > 0 then call('DEL', unpack(emptied)) end
if #closed > 1 then
  call('HDEL', unpack(closed))
  closed[1] = lone
  try('HDEL', unpack(closed))
end
if #kept > 1 then call('HSET', unpack(kept)) end
