-- entry_text: the fields of a mailbox's entry as one text, where they do not stand in their mailbox: in
-- `delayed` and in dead letters.
--
-- The text of an entry that has an envelope only is the envelope. Any other is the byte 0xc1, with which no
-- MessagePack begins, and for each field its name, a colon, the length of its value, a colon and the value.
-- `mailboxes.pack_entry` does the same in Python.

-- Return the fields and values of a text, in their order.
local function fields_in(text)
  if string.byte(text) ~= 0xc1 then return {FIELD.ENVELOPE, text} end
  local fields, at = {}, 2
  while at <= #text do
    local name, length, from = string.match(text, '^([^:]+):(%d+):()', at)
    -- None of ours.
    if not name or #fields == 64 or from + length - 1 > #text then return {FIELD.ENVELOPE, text} end
    fields[#fields + 1], fields[#fields + 2] = name, string.sub(text, from, from + length - 1)
    at = from + length
  end
  return #fields > 0 and fields or {FIELD.ENVELOPE, text}
end

-- Return the envelope in a text; empty if there is none.
local function envelope_of_text(text)
  local fields = fields_in(text)
  for i = 1, #fields, 2 do
    if fields[i] == FIELD.ENVELOPE then return fields[i + 1] end
  end
  return ''
end
