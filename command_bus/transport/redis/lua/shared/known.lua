-- known: whether a command id is remembered. A mark is a letter, eight bytes of a digest, and the mailbox or
-- the reply. The digest has a byte for its format, the version of the command, two bytes of its name and
-- entity, and four of its fields: zeros if they are not known. It is all zeros for an id that no caller
-- chose, and for an encrypted command.

-- Return = if an id is remembered for this command, ! if for another, w if its mark is a key of another type.
-- Fields of different versions, or digests of another release, cannot be compared: the id decides then.
local function known(mark, digest)
  local value = redis.pcall('GET', mark)
  if type(value) == 'table' then return ADMISSION.WRONG_TYPE end
  if not value then return nil end
  local before = string.sub(value, 2, 9)
  if before == digest then return '=' end
  local format, version = string.byte(before, 1, 2)
  local own_format, own_version = string.byte(digest, 1, 2)
  if format == 0 or own_format == 0 then return '!' end
  if format ~= own_format then return '=' end
  if string.sub(before, 3, 4) ~= string.sub(digest, 3, 4) then return '!' end
  local unknown = '\0\0\0\0'
  return (version ~= own_version or string.sub(before, 5) == unknown or string.sub(digest, 5) == unknown)
    and '=' or '!'
end

