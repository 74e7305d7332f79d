
-- limit_queues: who waits for a limit, and who is granted its start.

-- Add to `limits` what changes its queues.
local function add_queues(limits, state_key, places_key, now)
  -- Return since when a mailbox waits, in us; it may stand before all that wait for a place (see shared/limits.lua).
  function limits.micros_since(since) return tonumber(since) * (string.byte(since) == 48 and 10 or 1) end
  -- Reserve tokens and take places for a start of a mailbox's next command, or of this message.
  function limits.grant(mailbox, message, list, since, shard, keyed)
    local scopes = {}
    for _, each in ipairs(list) do
      local rule = limits.rule_of(each[1])
      scopes[each[1]] = rule.tick and math.min(each[2], rule.burst) or 0
      if rule.tick then limits.reserve(each[1], scopes[each[1]]) end
      if rule.most and not each[3] then limits.move_place('ZADD', each[1], mailbox) end
    end
    limits.keep_pass(mailbox, 'g', '', message, since, shard, scopes, string.match(keyed, '\t~.*$'))
  end
  -- Return whether a grant lets its mailbox start: the rule may be another one since.
  function limits.still_holds(scope, cost, mailbox, is_lent)
    local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
    if rule.tick and limits.tokens_of(rule, bucket) + bucket.reserved + 0.000001 < math.min(cost, rule.burst) then return false end
    return is_lent or not rule.most or redis.call('ZSCORE', places_key, 's\n' .. scope .. '\n' .. mailbox)
  end
  -- Take a pass back: its tokens are free, its places go to who waits for them.
  function limits.drop(mailbox)
    local pass = limits.pass_of(mailbox)
    if not pass then return end
    for scope, cost in pairs(pass.scopes) do
      if pass.kind == 'g' then limits.reserve(scope, -cost) end
      limits.move_place('ZREM', scope, mailbox)
      limits.woken[scope] = true
    end
    limits.passes[mailbox], limits.changed[mailbox] = false, true
  end
  -- Write the passes that a script has changed, all at once.
  function limits.keep_passes()
    local kept, gone, granted_at = {'HSET', state_key}, {'HDEL', state_key}, string.format('%.0f', now)
    for mailbox in pairs(limits.changed) do
      local pass = limits.passes[mailbox]
      if pass then
        local texts = {}
        for scope, cost in pairs(pass.scopes) do texts[#texts + 1] = cost .. ' ' .. scope end
        kept[#kept + 1] = 'p\n' .. mailbox
        kept[#kept + 1] = pass.kind .. '|' .. pass.since .. '|' .. granted_at .. '|' .. pass.shard .. '\n' .. pass.activation .. '\n' .. pass.message
          .. '\n' .. table.concat(texts, '\t') .. pass.callers
      else
        gone[#gone + 1] = 'p\n' .. mailbox
      end
    end
    if #kept > 2 then redis.call(unpack(kept)) end
    if #gone > 2 then redis.call(unpack(gone)) end
  end
  -- Return what is written of a mailbox that waits: since when, its shard, the scope that refused it, the message, what its worker read.
  function limits.waiting(mailbox)
    return string.match(redis.call('HGET', state_key, 'w\n' .. mailbox) or '', '^(%d+)|(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  end
  -- Return whether the first in a queue needs no place, because its caller has one.
  function limits.is_first_lent(scope)
    local first = limits.is_queued(scope)
    return first and string.byte(first, #scope + 4) == 48
  end
  function limits.leave_queue(mailbox, scope, since)
    redis.call('ZREM', places_key, 'q\n' .. scope .. '\n' .. since .. '\n' .. mailbox)
    redis.call('HDEL', state_key, 'w\n' .. mailbox)
    limits.queues[scope] = nil
  end

  -- Put a mailbox into the queue of the scope that refuses it. It keeps the time of its first refusal.
  function limits.wait(mailbox, scope, message, keyed, shard)
    local since, _, before = limits.waiting(mailbox)
    if before then limits.leave_queue(mailbox, before, since) end
    local pass = limits.pass_of(mailbox)
    since = since or (pass and pass.since ~= '0' and pass.since) or string.format('%016.0f', now)
    local is_lent = limits.lent(keyed)[scope]
    since = string.format('%016.0f', limits.micros_since(since) / (is_lent and 10 or 1))
    limits.drop(mailbox)
    local member, is_new = 'q\n' .. scope .. '\n' .. since .. '\n' .. mailbox, not limits.is_queued(scope)
    if is_new or is_lent then limits.woken[scope] = true end
    redis.call('ZADD', places_key, 0, member)
    redis.call('HSET', state_key, 'w\n' .. mailbox, since .. '|' .. shard .. '\n' .. scope .. '\n' .. message .. '\n' .. (keyed or ''))
    if is_new or member < limits.queues[scope] then limits.queues[scope] = member end
  end
end
