-- mailbox_heads: return how much waits in mailboxes and since when, without sending the commands.
--
-- KEYS[1…]  the mailboxes
--
-- returns for each its length and the id of its oldest command, which is empty if there is none (a key of another type is length -1)

local answers = {}
for i = 1, #KEYS do
  local length = redis.pcall('XLEN', KEYS[i])
  if type(length) ~= 'number' then
    answers[2 * i - 1], answers[2 * i] = -1, ''
  else
    local head = redis.call('XRANGE', KEYS[i], '-', '+', 'COUNT', 1)[1]
    answers[2 * i - 1], answers[2 * i] = length, head and head[1] or ''
  end
end
return answers
