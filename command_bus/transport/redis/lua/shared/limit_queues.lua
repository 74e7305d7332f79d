
-- limit_queues: who waits for a limit, and who is granted its start.

-- Add to `limits` what changes its queues.
local function add_queues(limits, state_key, places_key, now)
  -- Return what the time since which a mailbox waits is divided by: it may stand before others (see shared/limits.lua).
  function limits.precedence_of(since) return string.byte(since) ~= 48 and 1 or (string.byte(since, 2) >= 52 and 4 or 10) end
  -- Return since when a mailbox waits, in us.
  function limits.micros_since(since) return tonumber(since) * limits.precedence_of(since) end
  -- Reserve tokens and take places for a start of a mailbox's next command, or of this message.
  function limits.grant(mailbox, message, list, since, shard, keyed)
    local scopes = {}
    for _, each in ipairs(list) do
      local rule = limits.rule_of(each[1])
      scopes[each[1]] = rule.tick and math.min(each[2], rule.burst) or 0
      if rule.tick then limits.reserve(each[1], scopes[each[1]]) end
      if rule.most and not each[3] then limits.move_place('ZADD', each[1], mailbox, not limits.pass_of(mailbox)) end
    end
    redis.call('ZADD', places_key, 0, 'g\n' .. mailbox)
    limits.keep_pass(mailbox, 'g', '', message, since, shard, scopes, string.match(keyed, '\t~.*$'))
  end
  -- Return whether a grant lets its mailbox start: the rule may be another one since.
  function limits.still_holds(scope, cost, mailbox, is_lent)
    local rule, bucket = limits.rule_of(scope), limits.bucket_of(scope)
    if rule.tick and limits.tokens_of(rule, bucket) + bucket.reserved + 0.000001 < math.min(cost, rule.burst) then return false end
    if next(limits.moved) then limits.write_places() end
    return is_lent or not rule.most or redis.call('ZSCORE', places_key, 's\n' .. scope .. '\n' .. mailbox)
  end
  -- Return what is written of a mailbox that waits: since when, its shard, the scope that refused it, the message, what its worker read.
  function limits.waiting(mailbox)
    return string.match(redis.call('HGET', state_key, 'w\n' .. mailbox) or '', '^(%d+)|(%d+)\n([^\n]*)\n([^\n]*)\n(.*)$')
  end
  -- Return whether the first in a queue needs no place, because its caller has one.
  function limits.is_first_lent(scope)
    local first = limits.is_queued(scope)
    return first and limits.precedence_of(string.sub(first, #scope + 4)) == 10
  end
  -- Return whether one that was suspended waits for a place: the first, or the first behind those whose callers have one.
  function limits.is_paid_queued(scope)
    local first = limits.is_queued(scope)
    local precedence = first and limits.precedence_of(string.sub(first, #scope + 4)) or 1
    if precedence ~= 10 then return precedence == 4 end
    local from = 'q\n' .. scope .. '\n0'
    return #redis.call('ZRANGEBYLEX', places_key, '[' .. from .. '4', '(' .. from .. ':', 'LIMIT', 0, 1) > 0
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
    local is_paid = string.find(keyed or '', limits.PAID, 1, true)
    since = string.format('%016.0f', limits.micros_since(since) / (is_lent and 10 or is_paid and 4 or 1))
    limits.drop(mailbox)
    local member, is_new = 'q\n' .. scope .. '\n' .. since .. '\n' .. mailbox, not limits.is_queued(scope)
    if is_new or is_lent or is_paid then limits.woken[scope] = true end
    redis.call('ZADD', places_key, 0, member)
    redis.call('HSET', state_key, 'w\n' .. mailbox, since .. '|' .. shard .. '\n' .. scope .. '\n' .. message .. '\n' .. (keyed or ''))
    if is_new or member < limits.queues[scope] then limits.queues[scope] = member end
  end
end
