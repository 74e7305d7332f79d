-- envelope_id: the command id in an envelope.

-- Return it: it follows the array's head and the version in every envelope, as MessagePack text (of up to 31,
-- 255 or 65,535 bytes). Nil of what is no envelope of ours.
local function id_in(envelope)
  local kind, size, low = string.byte(envelope, 3, 5)
  if not kind then return nil end
  if kind == 0xd9 and size then return string.sub(envelope, 5, 4 + size) end
  if kind == 0xda and low then return string.sub(envelope, 6, 5 + 256 * size + low) end
  if kind >= 0xa0 and kind < 0xc0 then return string.sub(envelope, 4, 3 + kind - 0xa0) end
end
